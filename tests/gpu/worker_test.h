/* The CUDA worker at the end of a socketpair, for tests of its jobs: `PROGRAM [path to hbm-worker-cuda] [directory on a
 * disk]`. They use no CUDA themselves: bytes go in and out through files. */
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/worker/ask.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)
#define IDLE_MS 300

static const char *program, *directory;
static char uuid[HBM_UUID_MAX];
static unsigned long long total;
static struct ask worker;
static unsigned passed, failed;

static inline bool ok(bool good, const char *what)
{
    printf("%s - %s%s%s\n", good ? "ok" : "FAIL", what,
           good || !worker.detail[0] ? "" : ": last refusal: ", good ? "" : worker.detail);
    fflush(stdout);
    good ? passed++ : failed++;
    return good;
}

/* The expected status, else the one that came is printed. */
static inline bool is(int status, int wanted)
{
    if (status != wanted)
        printf("# %s, not %s: %s\n", status == ASK_GONE ? "worker gone" : hbm_error_name(status),
               hbm_error_name(wanted), worker.detail);
    return status == wanted;
}

static inline bool probe(void)
{
    char command[512], line[256];

    snprintf(command, sizeof(command), "%s --probe", program);
    FILE *out = popen(command, "r");
    bool found =
        out && fgets(line, sizeof(line), out) && sscanf(line, "%47[^\t]\t%*[^\t]\t%llu", uuid, &total) == 2;
    if (out && pclose(out) != 0)
        found = false;
    return found;
}

static inline int begin(void)
{
    ask_start(&worker, program);
    return ask_begin(&worker, uuid, directory, IDLE_MS, NULL);
}

static inline void nap(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static inline struct job_query_reply query(void)
{
    struct job_query_request request = {0};
    union job_reply reply = {0};

    is(ask_job(&worker, JOB_QUERY, &request, NULL, 0, &reply, NULL), 0);
    return reply.query;
}

static inline unsigned char *random_bytes(uint64_t size, uint64_t seed)
{
    unsigned char *bytes = malloc(size + 8);

    for (uint64_t i = 0; i < size; i += 8) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t word = seed ^ seed >> 29;
        memcpy(bytes + i, &word, 8);
    }
    return bytes;
}

/* Writes or reads an extent by way of a file of this test's own. */
static inline bool by_file(const struct ask_extent *e, uint64_t offset, void *bytes, uint64_t size, bool out)
{
    struct job_range range = {.extent_offset = offset, .bytes = size};
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), ranges = memfd_sealed("ranges", &range, sizeof(range));
    bool good = file >= 0 && ranges >= 0 && (out || pwrite(file, bytes, size, 0) == (ssize_t)size) &&
                is(ask_file(&worker, e, file, ranges, 1, out, NULL), 0) &&
                (!out || pread(file, bytes, size, 0) == (ssize_t)size);

    close(file), close(ranges);
    return good;
}

static inline bool put(const struct ask_extent *e, uint64_t offset, const void *bytes, uint64_t size)
{
    return by_file(e, offset, (void *)(uintptr_t)bytes, size, false);
}

static inline bool get(const struct ask_extent *e, uint64_t offset, void *bytes, uint64_t size)
{
    return by_file(e, offset, bytes, size, true);
}

/* Exits with 77 where there is no GPU. */
static inline void worker_tests_begin(int argc, char **argv)
{
    program = argc > 1 ? argv[1] : getenv("HBM_WORKER_CUDA") ? getenv("HBM_WORKER_CUDA") : "build/hbm-worker-cuda";
    directory = argc > 2 ? argv[2] : "/var/tmp";
    signal(SIGPIPE, SIG_IGN);
    if (!probe()) {
        printf("# no GPU that %s can use\n", program);
        exit(77);
    }
}

/* The exit status. */
static inline int worker_tests_end(void)
{
    ok(ask_stop(&worker) == 0, "the worker ends with 0 at end of file");
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
