/* COPY: between extents of any two kinds, with the checksum of what was moved. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/control.h"
#include "daemon/worker/gds.h"
#include "daemon/worker/job.h"
#include "daemon/worker/relay.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/side.h"
#include "daemon/worker/staging.h"
#include "daemon/worker/stream.h"
#include "proto/memfd.h"

struct copy {
    struct job *job;
    const struct job_copy_request *request;
    struct side source, target;
    uint64_t *hashes; /* one a grain; NULL: not asked for */
    bool hash_only;
    struct kit kits[LANES_MAX];
    struct gds gds;
    bool straight;              /* the chunks that run now are moved by it */
    uint64_t first;             /* index of the first of them */
    uint64_t *there[LANES_MAX]; /* hashes of a chunk, by the device */
    struct head head;
};

/* Of a chunk that went past the CPU. */
static int hash_there(struct copy *copy, uint64_t index, unsigned lane, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    bool up = copy->source.is_disk;
    struct side *side = up ? &copy->target : &copy->source;
    struct kit *kit = &copy->kits[lane];
    uint64_t offset = (up ? r->target_offset : r->source_offset) + index * CHECKSUM_CHUNK;
    size_t bytes = checksum_chunk_bytes(r->bytes, index);
    enum device_stream stream = up ? DEVICE_UP_HASH : DEVICE_DOWN_HASH;
    uint64_t *hashes = copy->hashes + index * CHECKSUM_GRAINS;
    const unsigned char *from;

    if (!copy->there[lane] && bytes % CHECKSUM_GRAIN == 0)
        copy->there[lane] = device_hashes_new(CHECKSUM_GRAINS);
    if (!copy->there[lane] || bytes % CHECKSUM_GRAIN) {
        if (side_get(side, kit, offset, bytes, false, &from, failure))
            return failure->error;
        checksum_of_chunk(from, bytes, hashes);
        return 0;
    }
    if (device_hash(stream, NULL, side->view.bytes + offset, bytes / CHECKSUM_GRAIN, copy->there[lane], failure) ||
        device_mark(stream, &kit->mark, failure) || device_wait(&kit->mark, failure))
        return failure->error;
    memcpy(hashes, copy->there[lane], bytes / CHECKSUM_GRAIN * sizeof(*hashes));
    return 0;
}

/* *done: false if it is to be staged. */
static int move_straight(struct copy *copy, uint64_t index, unsigned lane, bool *done, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    uint64_t offset = index * CHECKSUM_CHUNK;
    size_t bytes = checksum_chunk_bytes(r->bytes, index);

    /* The mark is made first: with it this thread has the device's context. */
    if (kit_mark(&copy->kits[lane], failure))
        return failure->error;
    *done = gds_move(&copy->gds, r->source_offset + offset, r->target_offset + offset, bytes);
    return *done && copy->hashes ? hash_there(copy, index, lane, failure) : 0;
}

static int stage(struct copy *copy, uint64_t index, unsigned lane, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    struct kit *kit = &copy->kits[lane];
    uint64_t offset = index * CHECKSUM_CHUNK;
    size_t bytes = checksum_chunk_bytes(r->bytes, index);
    const unsigned char *from;

    if (side_get(&copy->source, kit, r->source_offset + offset, bytes, copy->target.is_disk, &from, failure))
        return failure->error;
    if (copy->hashes)
        checksum_of_chunk(from, bytes, copy->hashes + index * CHECKSUM_GRAINS);
    if (copy->hash_only)
        return 0;
    return side_put(&copy->target, kit, r->target_offset + offset, bytes, from, failure);
}

static int move_chunk(void *context, uint64_t number, unsigned lane, struct failure *failure)
{
    struct copy *copy = context;
    uint64_t index = copy->first + number;
    size_t bytes = checksum_chunk_bytes(copy->request->bytes, index);
    bool done = false;

    if ((copy->hash_only ? job_poll(copy->job, failure) : pace_wait(copy->job, bytes, failure)) ||
        (copy->straight && move_straight(copy, index, lane, &done, failure)) ||
        (!done && stage(copy, index, lane, failure)))
        return failure->error;
    if (!copy->hash_only)
        job_advance(copy->job, bytes);
    return 0;
}

/* So many of the next chunks, and how long they took. */
static int run(struct copy *copy, unsigned lanes, uint64_t count, uint64_t *ns, struct failure *failure)
{
    uint64_t start = monotonic_ns();
    int error = lanes_run(lanes, count, move_chunk, copy, failure);

    copy->first += count;
    *ns = monotonic_ns() - start;
    return error;
}

/* Some chunks both ways. */
static int measure(struct copy *copy, unsigned lanes, struct failure *failure)
{
    uint64_t bytes = GDS_SAMPLE * CHECKSUM_CHUNK, ns[2], unmeasured;

    for (unsigned straight = 0; straight < 2; straight++) {
        copy->straight = straight;
        if (run(copy, lanes, GDS_WARM, &unmeasured, failure) || run(copy, lanes, GDS_SAMPLE, &ns[straight], failure))
            return failure->error;
    }
    if (gds_way(copy->gds.direction) == GDS_UNMEASURED) /* it did not fail meanwhile */
        gds_measured(copy->gds.direction, bytes, ns[0], ns[1] + gds_open_share(&copy->gds, bytes));
    return 0;
}

static int by_lanes(struct copy *copy, unsigned lanes, uint64_t count, struct failure *failure)
{
    uint64_t ns;
    bool peer = copy->request->flags & (JOB_FROM_PEER | JOB_TO_PEER);
    /* Where a limit sets the pace there is nothing to measure. */
    uint64_t measured = pace_is_limited(copy->job) ? 0 : count;
    bool opened = !copy->hash_only && !peer && gds_open(&copy->gds, &copy->source, &copy->target, measured);

    if (opened && gds_way(copy->gds.direction) == GDS_UNMEASURED)
        measure(copy, lanes, failure);
    copy->straight = opened && gds_way(copy->gds.direction) == GDS_STRAIGHT;
    if (!failure->error)
        run(copy, lanes, count - copy->first, &ns, failure);
    if (opened && failure->error)
        device_drain(copy->source.is_disk ? DEVICE_UP_HASH : DEVICE_DOWN_HASH);
    for (unsigned i = 0; i < LANES_MAX; i++)
        device_hashes_free(copy->there[i]);
    gds_close(&copy->gds);
    return failure->error;
}

static int share_target(void *context, struct failure *failure)
{
    struct copy *copy = context;

    return copy->request->flags & JOB_MAKE_TARGET ? side_share(&copy->target, &copy->job->reply_fd, failure) : 0;
}

static int by_stream(struct copy *copy, bool inside, bool *hashed, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    bool up = copy->target.view.on_device && !(r->flags & JOB_TO_PEER);
    struct stream_copy stream = {
        .job = copy->job,
        .stream = inside ? DEVICE_COMPUTE : up ? DEVICE_UP : DEVICE_DOWN,
        .between = r->flags & (JOB_FROM_PEER | JOB_TO_PEER) && copy->source.view.on_device && copy->target.view.on_device,
        .source = copy->source.view.bytes + r->source_offset,
        .target = copy->target.view.bytes + r->target_offset,
        .bytes = r->bytes,
        .hashes = inside ? NULL : copy->hashes,
        .meanwhile = share_target,
        .context = copy,
        .head = copy->head,
    };
    if (stream_copy(&stream, hashed, failure))
        return failure->error;
    *hashed &= !inside || !copy->hashes;
    return 0;
}

/* One side is host memory and the other a peer's. */
static bool is_relay(const struct job_copy_request *r)
{
    return (r->flags & JOB_TO_PEER && r->source.kind == JOB_EXTENT_HOST) ||
           (r->flags & JOB_FROM_PEER && r->target.kind == JOB_EXTENT_HOST);
}

static int by_relay(struct copy *copy, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    struct relay relay = {
        .job = copy->job,
        .to_host = r->target.kind == JOB_EXTENT_HOST,
        .source = copy->source.view.bytes + r->source_offset,
        .target = copy->target.view.bytes + r->target_offset,
        .bytes = r->bytes,
        .hashes = copy->hashes,
    };

    return relay_copy(&relay, failure);
}

static int move(struct copy *copy, struct failure *failure)
{
    uint64_t count = checksum_chunks(copy->request->bytes);
    bool from_device = copy->source.view.on_device, to_device = copy->target.view.on_device;
    bool disk = copy->source.is_disk || copy->target.is_disk;

    if (is_relay(copy->request))
        return by_relay(copy, failure);

    if (!disk && (from_device || to_device)) {
        bool inside = from_device && to_device && !(copy->request->flags & (JOB_FROM_PEER | JOB_TO_PEER)), hashed;

        if (by_stream(copy, inside, &hashed, failure) || hashed)
            return failure->error;
        copy->hash_only = true; /* no link carried these bytes past the CPU */
    }
    int error = by_lanes(copy, disk || from_device ? staging_lanes() : lanes_of_cpu(), count, failure);
    kits_close(copy->kits);
    return error;
}

static int send_hashes(struct copy *copy, const uint64_t *hashes, uint64_t count, struct failure *failure)
{
    int fd = memfd_sealed("hbm-hashes", hashes, count * sizeof(*hashes));

    if (fd < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "memfd_create", -fd);
    copy->job->reply_fd = fd;
    return 0;
}

static int move_and_check(struct copy *copy, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;
    uint64_t count = checksum_grains(r->bytes);
    _cleanup_free_ uint64_t *hashes = NULL;

    if (r->flags & (JOB_CHECKSUM | JOB_VERIFY | JOB_HASHES) || is_relay(r)) {
        hashes = calloc(count + 1, sizeof(*hashes));
        if (!hashes)
            return fail(failure, HBM_E_SYSTEM, "out of memory for %llu hashes", (unsigned long long)count);
    }
    copy->hashes = hashes;
    if (move(copy, failure) || !hashes)
        return failure->error;
    if (r->flags & JOB_HASHES)
        return send_hashes(copy, hashes, count, failure);
    uint64_t found = checksum_combine(hashes, count);
    copy->job->reply.copy.checksum = found;
    if ((r->flags & JOB_VERIFY) && found != r->expected)
        return fail(failure, HBM_E_CHECKSUM, "%llu bytes have checksum %016llx, stored were %016llx",
                    (unsigned long long)r->bytes, (unsigned long long)found, (unsigned long long)r->expected);
    return 0;
}

static int open_target(struct copy *copy, unsigned fd, struct failure *failure)
{
    const struct job_copy_request *r = copy->request;

    if (r->flags & JOB_MAKE_TARGET) {
        if (r->source.kind == JOB_EXTENT_HOST && !(r->flags & (JOB_FROM_PEER | JOB_TO_PEER)))
            head_send(&copy->head, copy->job, copy->source.view.bytes + r->source_offset, r->bytes);
        return side_make(&copy->target, &r->target, failure);
    }
    return side_open(&copy->target, &r->target, r->target.kind == JOB_EXTENT_CUDA_IPC ? -1 : copy->job->fds[fd], true,
                     failure);
}

void job_copy(struct job *job)
{
    const struct job_copy_request *r = &job->request.copy;
    struct copy copy = {.job = job, .request = r};
    uint64_t start = monotonic_ns();
    bool has_fd = r->source.kind != JOB_EXTENT_CUDA_IPC;

    if (side_open(&copy.source, &r->source, has_fd ? job->fds[0] : -1, false, &job->failure))
        return;
    if (!open_target(&copy, has_fd, &job->failure)) {
        if (r->flags & JOB_HASHES && !(r->flags & (JOB_FROM_PEER | JOB_TO_PEER)))
            job_tell(job); /* those that share in the copy may map now */
        if (!move_and_check(&copy, &job->failure))
            share_target(&copy, &job->failure); /* no link took time for it */
        job->reply.copy.nanoseconds = monotonic_ns() - start;
        if (!job->failure.error)
            control_answer(job);
        side_close(&copy.target);
    }
    if (copy.head.n && job->failure.error) /* it may be on its way still */
        device_drain(DEVICE_UP);
    head_free(&copy.head);
    side_close(&copy.source);
}
