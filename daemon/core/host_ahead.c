#include "daemon/core/host_ahead.h"

#include <inttypes.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/core/arena.h"
#include "daemon/core/buffer.h"
#include "daemon/core/health.h"
#include "daemon/core/host_pool.h"
#include "daemon/core/room.h"
#include "proto/errors.h"

#define PIECES_MAX 128u /* of a device: each is an fd of ours */
/* Pinned at one go: one of 16 MiB held another process's CUDA calls up for 31 ms at most, one of 64 MiB for 79, one
 * of 256 MiB for 231 (H200, driver 580.159.04, 2026-11-30; pin_bench). */
#define PIECE_MAX ((uint64_t)32 << 20)
#define LOOK_MAX 512u /* arenas that are looked at: those that would leave first */
#define SETTLE_MS 100 /* a model's groups come one by one */
#define REST_MIN_MS 10
#define SURPLUS_MS 60000
#define RETRY_MS 1000
#define SHORT_MS 60000

struct piece {
    struct list node; /* device->ahead.pieces, oldest first */
    uint64_t size;
    int fd;
    uint64_t visit;    /* the last of core->visits that found something it would fit */
    uint64_t until_ms; /* nothing does: it goes then; 0: something does */
};

static void look_in(struct device *device, uint64_t ms)
{
    struct ahead *ahead = &device->ahead;
    uint64_t now = core_now(device->core), at = now + ms;

    if (ahead->making || (!ahead->cap && list_empty(&ahead->pieces)))
        return;
    if (at < ahead->not_before_ms)
        at = ahead->not_before_ms;
    if (!ahead->timer.at_ms || ahead->timer.at_ms > at)
        timer_arm(device->core, &ahead->timer, at - now);
}

/* Its room is the caller's. */
static int unlist(struct device *device, struct piece *piece)
{
    int fd = piece->fd;

    list_unlink(&piece->node);
    device->ahead.bytes -= piece->size;
    device->ahead.n--;
    device->pooled -= piece->size;
    free(piece);
    return fd;
}

static void drop(struct device *device, struct piece *piece)
{
    struct room room = {device->core, device, NULL, HBM_TIER_HOST, piece->size};

    room_release_with(&room, unlist(device, piece));
}

bool host_ahead_drop_one(struct device *device)
{
    struct list *first = list_first(&device->ahead.pieces);

    if (first)
        drop(device, list_entry(first, struct piece, node));
    return first != NULL;
}

bool host_ahead_drop_all(struct device *device)
{
    bool any = !list_empty(&device->ahead.pieces);

    device->ahead.not_before_ms = core_now(device->core) + SHORT_MS;
    while (host_ahead_drop_one(device)) {
    }
    look_in(device, 0);
    return any;
}

bool host_ahead_take(struct extent_create *create)
{
    list_for_each (node, &create->device->ahead.pieces) {
        struct piece *piece = list_entry(node, struct piece, node);
        if (piece->size != create->size)
            continue;
        create->pooled_fd = unlist(create->device, piece);
        create->pooled_token = 0; /* no worker has seen it */
        return true;
    }
    return false;
}

/* Zeros, for whoever comes first. */
static void keep(struct device *device, uint64_t size, int fd)
{
    struct ahead *ahead = &device->ahead;
    uint64_t capacity = device->capacity[HBM_TIER_HOST];
    bool fits = size <= capacity && device->used[HBM_TIER_HOST] <= capacity - size && size <= ahead->cap &&
                ahead->bytes <= ahead->cap - size;
    struct piece *piece = fits && !device->core->draining ? malloc(sizeof(*piece)) : NULL;

    if (!piece) {
        room_release_with(&(struct room){device->core, device, NULL, HBM_TIER_HOST, 0}, fd);
        return;
    }
    *piece = (struct piece){.size = size, .fd = fd};
    list_append(&ahead->pieces, &piece->node);
    ahead->bytes += size;
    ahead->n++;
    device->pooled += size;
    device->used[HBM_TIER_HOST] += size;
}

/* Longer and longer: what cannot be made, or ends its worker, is not worth trying all the time. */
static uint64_t pause_after(struct ahead *ahead, const struct job *job, uint64_t took_ms)
{
    if (!job->error) {
        ahead->failures = 0;
        return took_ms > REST_MIN_MS ? took_ms : REST_MIN_MS;
    }
    if (!ahead->failures)
        log_info("device %u: no host memory is made ahead for now: %s (%s)", job->device,
                 hbm_error_what(job->error), job->detail);
    return (uint64_t)RETRY_MS << (ahead->failures < 10 ? ahead->failures++ : 10);
}

static void made(struct job *job)
{
    struct ahead *ahead = container_of(job, struct ahead, job);
    struct device *device = container_of(ahead, struct device, ahead);
    uint64_t size = job->request.create.size, now = core_now(device->core), not_before;
    _cleanup_fd_ int fd = TAKE_FD(job->reply_fd);

    ahead->making = false;
    if (!job->error && (job->reply.create.size != size || fd < 0))
        job->error = HBM_E_INTERNAL;
    not_before = now + pause_after(ahead, job, now - ahead->since_ms);
    if (ahead->not_before_ms < not_before)
        ahead->not_before_ms = not_before;
    if (!job->error)
        keep(device, size, TAKE_FD(fd));
    look_in(device, 0);
}

static void make(struct device *device, uint64_t size)
{
    struct ahead *ahead = &device->ahead;
    struct core *core = device->core;

    ahead->job = (struct job){.opcode = JOB_CREATE, .device = device->index, .done = made, .reply_fd = -1};
    ahead->job.request.create =
        (struct job_create_request){.size = size, .kind = JOB_EXTENT_HOST, .flags = JOB_AHEAD};
    ahead->making = true;
    ahead->since_ms = core_now(core);
    core->env.submit(core->env.context, &ahead->job);
}

/* A piece of ours for it, that this visit has not counted for another. */
static bool is_covered(struct device *device, uint64_t size, uint64_t visit)
{
    list_for_each (node, &device->ahead.pieces) {
        struct piece *piece = list_entry(node, struct piece, node);
        if (piece->size != size || piece->visit == visit)
            continue;
        piece->visit = visit;
        return true;
    }
    return false;
}

/* As it is, and as a whole: what is parked leaves in another size, which nobody knows yet; what leaves now has its
 * piece. */
static bool may_leave(const struct arena *arena)
{
    const struct list *first = list_first(&arena->buffers);

    return first && !arena->transition && !arena->extent->lost && arena->handle == HBM_HANDLE_FD &&
           list_entry(first, struct buffer, arena_node)->park.encoding.codec == HBM_CODEC_RAW;
}

static uint64_t room_for_one(const struct device *device)
{
    const struct ahead *ahead = &device->ahead;
    uint64_t capacity = device->capacity[HBM_TIER_HOST], used = device->used[HBM_TIER_HOST];
    uint64_t left = ahead->cap > ahead->bytes ? ahead->cap - ahead->bytes : 0;
    uint64_t room = capacity > used ? capacity - used : 0;

    if (ahead->n >= PIECES_MAX)
        return 0;
    left = left < room ? left : room;
    return left < PIECE_MAX ? left : PIECE_MAX;
}

/* Marks what would be used; returns the first size that is missing and that there is room for, 0: none. */
static uint64_t look_through(struct device *device, uint64_t visit)
{
    uint64_t room = room_for_one(device), missing = 0;
    unsigned looked = 0;

    for (unsigned priority = 0; priority < PRIORITY_NEVER; priority++) {
        list_for_each (node, &device->recent[HBM_TIER_DEVICE][priority]) {
            const struct arena *arena = list_entry(node, struct arena, recent_node);
            uint64_t size = arena->extent->size;
            if (looked++ == LOOK_MAX)
                return missing;
            if (may_leave(arena) && !host_pool_covers(device, arena->owner, size, visit) &&
                !is_covered(device, size, visit) && !missing && size <= room)
                missing = size;
        }
    }
    return missing;
}

/* When the next one goes; 0: none does. */
static uint64_t expire(struct device *device, uint64_t visit)
{
    uint64_t now = core_now(device->core), next = 0;

    list_for_each_safe (node, &device->ahead.pieces) {
        struct piece *piece = list_entry(node, struct piece, node);
        if (piece->visit == visit)
            piece->until_ms = 0;
        else if (!piece->until_ms)
            piece->until_ms = now + SURPLUS_MS;
        if (!piece->until_ms)
            continue;
        if (piece->until_ms <= now)
            drop(device, piece);
        else if (!next || piece->until_ms < next)
            next = piece->until_ms;
    }
    return next;
}

static void look(struct timer *timer)
{
    struct ahead *ahead = container_of(timer, struct ahead, timer);
    struct device *device = container_of(ahead, struct device, ahead);
    struct core *core = device->core;
    uint64_t now = core_now(core), idle_at = ahead->used_ms + core->limits.host_pool_idle_ms;
    bool idle = idle_at <= now || core->draining || device->state == DEVICE_DRAINED;
    uint64_t visit = ++core->visits;
    char ignored[HBM_DETAIL_MAX];

    while (ahead->bytes > (idle ? 0 : ahead->cap))
        host_ahead_drop_one(device);
    if (idle)
        return;
    uint64_t missing = look_through(device, visit), next = expire(device, visit);
    if (missing && now >= ahead->not_before_ms && device->worker_pid && !device_check_ready(device, ignored) &&
        !health_check(core, ignored))
        make(device, missing);
    else if (!list_empty(&ahead->pieces))
        look_in(device, (next && next < idle_at ? next : idle_at) - now);
}

void host_ahead_init(struct device *device)
{
    list_init(&device->ahead.pieces);
    list_init(&device->ahead.timer.node);
    device->ahead.timer.fire = look;
    device->ahead.used_ms = core_now(device->core);
}

void host_ahead_limit(struct device *device, uint64_t cap)
{
    device->ahead.cap = cap;
    look_in(device, 0);
}

void host_ahead_wake(struct device *device)
{
    device->ahead.used_ms = core_now(device->core);
    look_in(device, SETTLE_MS);
}

void host_ahead_used(struct device *device)
{
    uint64_t now = core_now(device->core);
    bool was_idle = device->ahead.used_ms + device->core->limits.host_pool_idle_ms <= now;

    device->ahead.used_ms = now;
    if (was_idle)
        look_in(device, SETTLE_MS);
}

void host_ahead_clear(struct device *device)
{
    struct list *first;

    while ((first = list_first(&device->ahead.pieces)))
        fd_close(unlist(device, list_entry(first, struct piece, node)));
}
