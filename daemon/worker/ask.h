/* The owner's end of a worker, for tests and benches: starts one, asks it things, waits for the answers.
 * Header only; needs proto/ alone. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/errors.h"
#include "proto/jobs.h"
#include "proto/memfd.h"
#include "proto/packet.h"

#define ASK_GONE 1 /* status of an answer that never came: the worker is gone */

struct ask {
    int fd;
    pid_t pid;
    uint32_t serial;
    int spill_key;               /* of START, borrowed; set after ask_start. -1: none, and disk extents are plain */
    uint64_t last_token;         /* of a disk extent */
    unsigned progress;           /* PROGRESS packets seen */
    char detail[HBM_DETAIL_MAX]; /* of the last refusal */
};

static inline void ask_start(struct ask *ask, const char *program)
{
    int pair[2];
    char number[16];

    *ask = (struct ask){.fd = -1, .spill_key = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    snprintf(number, sizeof(number), "%d", pair[1]);
    ask->pid = fork();
    if (ask->pid == 0) {
        int again = dup(pair[1]); /* the copy is not close-on-exec */
        snprintf(number, sizeof(number), "%d", again);
        execl(program, program, "--fd", number, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    ask->fd = pair[0];
}

/* Closes our end; the worker's wait status. */
static inline int ask_stop(struct ask *ask)
{
    int status = -1;

    close(ask->fd);
    while (waitpid(ask->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static inline uint32_t ask_send(struct ask *ask, unsigned opcode, const void *request, const int *fds,
                                unsigned n_fds)
{
    struct packet_header header = {.opcode = opcode, .serial = ++ask->serial};

    (void)packet_send(ask->fd, &header, request, job_row(opcode)->request_size, fds, n_fds);
    return ask->serial;
}

static inline void ask_cancel(struct ask *ask, uint32_t serial)
{
    struct packet_header header = {.opcode = JOB_CANCEL};
    struct job_cancel_request request = {.serial = serial};

    (void)packet_send(ask->fd, &header, &request, sizeof(request), NULL, 0);
}

/* The next answer, whichever job's it is; its serial goes to *serial. `reply` has room for a union job_reply. */
static inline int ask_receive(struct ask *ask, uint32_t *serial, union job_reply *reply, int *fd)
{
    static __thread struct packet packet;

    do {
        if (packet_receive(ask->fd, &packet))
            return ASK_GONE;
        ask->progress += packet.header.opcode == JOB_PROGRESS;
    } while (packet.header.opcode == JOB_PROGRESS);
    *serial = packet.header.serial;
    if (packet.header.status)
        memcpy(ask->detail, packet.body, sizeof(ask->detail));
    else if (reply)
        memcpy(reply, packet.body, packet.body_size < sizeof(*reply) ? packet.body_size : sizeof(*reply));
    if (fd)
        *fd = packet_take_fd(&packet, 0);
    packet_close_fds(&packet);
    return packet.header.status;
}

/* Sends one job and waits for its answer. */
static inline int ask_job(struct ask *ask, unsigned opcode, const void *request, const int *fds, unsigned n_fds,
                          union job_reply *reply, int *fd)
{
    uint32_t serial = ask_send(ask, opcode, request, fds, n_fds), answered = 0;
    int status;

    do
        status = ask_receive(ask, &answered, reply, fd);
    while (status != ASK_GONE && answered != serial);
    return status;
}

static inline int ask_begin(struct ask *ask, const char *uuid, const char *state_dir, uint64_t idle_ms,
                            union job_reply *reply)
{
    struct job_start_request request = {.idle_ms = idle_ms, .spill_key = ask->spill_key >= 0};

    snprintf(request.uuid, sizeof(request.uuid), "%s", uuid);
    snprintf(request.state_dir, sizeof(request.state_dir), "%s", state_dir);
    return ask_job(ask, JOB_START, &request, &ask->spill_key, request.spill_key, reply, NULL);
}

/* An extent as a test holds it; fd is -1 for cuda-ipc. */
struct ask_extent {
    struct job_extent extent;
    int fd;
};

static inline int ask_create_with(struct ask *ask, unsigned kind, uint64_t size, unsigned flags, struct ask_extent *made)
{
    struct job_create_request request = {.size = size, .kind = kind, .flags = flags};
    union job_reply reply = {0};

    made->fd = -1;
    int status = ask_job(ask, JOB_CREATE, &request, NULL, 0, &reply, &made->fd);

    made->extent = (struct job_extent){.kind = kind, .size = reply.create.size, .token = reply.create.token};
    if (kind == JOB_EXTENT_DISK) {
        made->extent.token = ++ask->last_token;
        made->extent.encrypted = ask->spill_key >= 0;
    }
    return status;
}

static inline int ask_create(struct ask *ask, unsigned kind, uint64_t size, struct ask_extent *made)
{
    return ask_create_with(ask, kind, size, 0, made);
}

static inline void ask_drop(struct ask *ask, struct ask_extent *extent)
{
    struct job_destroy_request request = {.token = extent->extent.token, .kind = extent->extent.kind};

    if (extent->fd >= 0)
        close(extent->fd);
    if (extent->fd < 0 || extent->extent.token)
        (void)ask_job(ask, JOB_DESTROY, &request, NULL, 0, NULL, NULL);
    extent->fd = -1;
}

static inline unsigned ask_fds(const struct ask_extent *a, const struct ask_extent *b, int fds[2])
{
    unsigned n = 0;

    if (a->fd >= 0)
        fds[n++] = a->fd;
    if (b && b->fd >= 0)
        fds[n++] = b->fd;
    return n;
}

struct ask_range {
    uint64_t source_offset, target_offset, bytes;
};

/* flags: JOB_CHECKSUM, JOB_VERIFY; *checksum is expected and gets what was found. */
static inline int ask_copy(struct ask *ask, const struct ask_extent *source, const struct ask_extent *target,
                           struct ask_range range, unsigned flags, uint64_t *checksum)
{
    struct job_copy_request request = {
        .source = source->extent,
        .target = target->extent,
        .source_offset = range.source_offset,
        .target_offset = range.target_offset,
        .bytes = range.bytes,
        .expected = checksum ? *checksum : 0,
        .flags = flags,
    };
    union job_reply reply = {0};
    int fds[2];
    int status = ask_job(ask, JOB_COPY, &request, fds, ask_fds(source, target, fds), &reply, NULL);

    if (!status && checksum)
        *checksum = reply.copy.checksum;
    return status;
}

/* Of n spans, each behind the one before it. */
static inline int ask_hashes(struct ask *ask, const struct ask_extent *extent, const struct job_span *spans, uint32_t n,
                             uint64_t *hashes)
{
    struct job_hash_request request = {
        .extent = extent->extent,
        .offset = spans[0].offset,
        .bytes = spans[n - 1].offset + spans[n - 1].bytes - spans[0].offset,
        .n_spans = n,
    };
    int fds[3], list = memfd_sealed("spans", spans, n * sizeof(*spans)), found = -1;
    unsigned n_fds = ask_fds(extent, NULL, fds);

    fds[n_fds++] = list;
    int status = ask_job(ask, JOB_HASH, &request, fds, n_fds, NULL, &found);
    close(list);
    memset(hashes, 0, n * sizeof(*hashes));
    if (!status && pread(found, hashes, n * sizeof(*hashes), 0) != (ssize_t)(n * sizeof(*hashes)))
        abort();
    if (found >= 0)
        close(found);
    return status;
}

static inline int ask_hash(struct ask *ask, const struct ask_extent *extent, uint64_t offset, uint64_t bytes,
                           uint64_t *hash)
{
    return ask_hashes(ask, extent, &(struct job_span){offset, bytes}, 1, hash);
}

/* `ranges` is a memfd of n ranges. */
static inline int ask_file(struct ask *ask, const struct ask_extent *extent, int file, int ranges, uint32_t n,
                           bool write, union job_reply *reply)
{
    struct job_file_request request = {
        .extent = extent->extent, .n_ranges = n, .write = write, .uid = geteuid()};
    int fds[3];
    unsigned n_fds = ask_fds(extent, NULL, fds);

    fds[n_fds++] = file;
    fds[n_fds++] = ranges;
    return ask_job(ask, JOB_FILE, &request, fds, n_fds, reply, NULL);
}
