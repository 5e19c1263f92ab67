/* A new extent: its room, the worker that makes it, the store that keeps it, the ledger. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/extent.h"
#include "daemon/core/farewell.h"
#include "daemon/core/health.h"
#include "daemon/core/host_pool.h"
#include "daemon/core/ledger.h"
#include "daemon/core/pressure.h"
#include "daemon/core/room.h"

#define DISK_GRANULARITY 4096u
#define CLOSING_POLL_MS 2
#define CLOSING_MS 1000 /* what is waited at least for memory that is being given back */
#define SERVED_MS 30000 /* and at most for what is being moved away */

static void uncharge(struct extent_create *create)
{
    account_release(create->account, (enum account_thing)create->tier, create->size);
    if (create->is_object)
        account_release(create->account, ACCOUNT_OBJECTS, 1);
    create->is_object = false;
}

/* Its bytes, and its place in the store, if it will have one. */
static int charge(struct extent_create *create)
{
    struct account *account = create->account;
    int error = account_charge(account, (enum account_thing)create->tier, create->size, create->detail);

    if (error || !create->core->keeps || create->kind == JOB_EXTENT_CUDA_IPC)
        return error;
    error = create->moves ? account_charge_move(account, ACCOUNT_OBJECTS, 1, create->detail)
                          : account_charge(account, ACCOUNT_OBJECTS, 1, create->detail);
    create->is_object = !error;
    if (error)
        uncharge(create);
    return error;
}

/* Room in the device's tier and in the account, both or neither; a piece of the pool brings its room along. */
static int take_room(struct extent_create *create)
{
    struct device *device = create->device;
    uint64_t capacity = device->capacity[create->tier];

    if (create->size > capacity) {
        snprintf(create->detail, sizeof(create->detail),
                 "%" PRIu64 " bytes, the %s tier of %s has %" PRIu64 " in all", create->size,
                 hbm_tier_name(create->tier), device->uuid, capacity);
        return HBM_E_TOO_LARGE;
    }
    int error = charge(create);
    if (error)
        return error;
    if (create->filled_at_once && host_pool_take(create))
        return 0;
    if (create->tier == HBM_TIER_HOST)
        host_pool_make_room(create->core, device, create->size);
    if (device->used[create->tier] > capacity - create->size) {
        uncharge(create);
        snprintf(create->detail, sizeof(create->detail),
                 "%" PRIu64 " bytes, the %s tier of %s has %" PRIu64 " of %" PRIu64 " free", create->size,
                 hbm_tier_name(create->tier), device->uuid, capacity - device->used[create->tier], capacity);
        return HBM_E_NO_MEMORY;
    }
    device->used[create->tier] += create->size;
    pressure_wake(device, create->tier);
    return 0;
}

/* Nothing is charged yet, and who asked may be gone before its turn comes. */
static void wait_for_memory(struct extent_create *create)
{
    account_ref(create->account);
    list_append(&create->core->memory_waiters, &create->node);
    create->waits_since_ms = core_now(create->core);
    pressure_wake(create->device, create->tier);
}

static void end_wait(struct extent_create *create)
{
    timer_stop(create->core, &create->timer);
    if (!list_empty(&create->node))
        account_unref(create->account);
    list_unlink(&create->node);
}

static void create_end(struct extent_create *create, int error)
{
    end_wait(create);
    create->error = error;
    create->done(create);
}

static void create_fail(struct extent_create *create, int error)
{
    struct room room = {create->core, create->device, create->account, create->tier, create->size};

    if (create->is_object)
        account_release(create->account, ACCOUNT_OBJECTS, 1);
    create_end(create, error);
    room_release(&room);
}

static void create_stored(struct store_request *request)
{
    struct extent_create *create = container_of(request, struct extent_create, store);

    create->extent->stored = !request->refused;
    if (create->cancelled || request->refused) {
        if (!create->cancelled)
            snprintf(create->detail, sizeof(create->detail), "%s", STORE_IS_FULL);
        create->extent = extent_unref(create->extent);
        create_end(create, create->cancelled ? HBM_E_CANCELLED : HBM_E_LIMIT);
        return;
    }
    ledger_put_extent(create->core, create->extent);
    /* A row that could not be written is memory that nobody would find again. */
    int error = ledger_trouble(create->core) ? health_check(create->core, create->detail) : 0;
    if (error)
        create->extent = extent_unref(create->extent);
    create_end(create, error);
}

static void give_to_store(struct extent_create *create)
{
    if (create->cancelled) {
        create->extent = extent_unref(create->extent);
        create_end(create, HBM_E_CANCELLED);
        return;
    }
    if (create->extent->fd < 0) { /* cuda-ipc dies with its worker: nothing could be kept */
        ledger_put_extent(create->core, create->extent);
        create_end(create, 0);
        return;
    }
    create->store.fd = create->extent->fd;
    create->store.done = create_stored;
    create->store.use = create->moves ? STORE_MOVE : STORE_NEW;
    create->store.refused = false;
    extent_store_name(create->extent, create->store.name);
    create->core->env.store(create->core->env.context, &create->store);
}

static void unmade(struct job *job)
{
    create_fail(container_of(job, struct extent_create, job), HBM_E_NO_MEMORY);
}

/* The worker has a cuda-ipc block that nobody here has room to know. */
static void unmake(struct extent_create *create, uint64_t token)
{
    struct job *job = &create->job;

    *job = (struct job){.opcode = JOB_DESTROY, .device = create->device->index, .done = unmade, .reply_fd = -1};
    job->request.destroy.token = token;
    job->request.destroy.kind = JOB_EXTENT_CUDA_IPC;
    create->core->env.submit(create->core->env.context, job);
}

/* Takes the fd. False: it has ended, or will, with an error. */
static bool make_extent(struct extent_create *create, int fd, uint64_t token)
{
    struct extent *extent =
        extent_new(create->core, 0, create->device, create->account, create->tier, create->kind, create->size, fd);

    if (!extent) {
        farewells_say(create->core, &create->pooled_farewells, create->kind, create->pooled_token);
        fd_close(fd);
        snprintf(create->detail, sizeof(create->detail), OWNER_OUT_OF_MEMORY);
        if (create->kind == JOB_EXTENT_CUDA_IPC)
            unmake(create, token);
        else
            create_fail(create, HBM_E_NO_MEMORY);
        return false;
    }
    extent->is_object = create->is_object;
    if (token)
        extent->token = token;
    if (!list_empty(&create->pooled_farewells)) {
        farewells_clear(&extent->farewells);
        list_move_all(&extent->farewells, &create->pooled_farewells);
    }
    if (create->kind == JOB_EXTENT_DISK && create->core->encrypts_spill)
        extent->spill_key = create->core->spill_key;
    memcpy(extent->ipc_handle, create->job.reply.create.ipc_handle, sizeof(extent->ipc_handle));
    create->extent = extent;
    return true;
}

static void submit_create(struct extent_create *create);

static bool is_closing(const struct core *core, enum hbm_tier tier)
{
    list_for_each (node, &core->devices)
        if (list_entry(node, struct device, node)->closing[tier])
            return true;
    return false;
}

/* Once what was let go of is free, or takes too long. */
static void create_again(struct timer *timer)
{
    struct extent_create *create = container_of(timer, struct extent_create, timer);
    struct core *core = create->core;

    if (create->cancelled)
        create_fail(create, HBM_E_CANCELLED);
    else if (is_closing(core, create->tier) && core_now(core) < create->again_until_ms)
        timer_arm(core, timer, CLOSING_POLL_MS);
    else
        submit_create(create);
}

/* The machine may be short of what the tier is not: of memory that the pool has, or of what is being given back. */
static bool may_try_again(struct extent_create *create, int error)
{
    struct core *core = create->core;

    if (create->cancelled || (error != HBM_E_NO_MEMORY && error != HBM_E_NO_SPACE))
        return false;
    if (!create->again_until_ms)
        create->again_until_ms = core_now(core) + CLOSING_MS;
    return (create->tier == HBM_TIER_HOST && host_pool_drop(core)) ||
           (is_closing(core, create->tier) && core_now(core) < create->again_until_ms);
}

static void create_made(struct job *job)
{
    struct extent_create *create = container_of(job, struct extent_create, job);
    _cleanup_fd_ int fd = TAKE_FD(job->reply_fd);

    if (may_try_again(create, job->error)) {
        create->timer.fire = create_again;
        timer_arm(create->core, &create->timer, 0);
        return;
    }
    if (job->error) {
        memcpy(create->detail, job->detail, sizeof(create->detail));
        create_fail(create, job->error);
        return;
    }
    /* The size is ours to the byte: an import maps at no other. Anything else than what was asked is a worker's
     * bug. */
    if (job->reply.create.size != create->size || (fd < 0) != (create->kind == JOB_EXTENT_CUDA_IPC)) {
        snprintf(create->detail, sizeof(create->detail), "the worker made %" PRIu64 " bytes instead of %" PRIu64,
                 job->reply.create.size, create->size);
        create_fail(create, HBM_E_INTERNAL);
        return;
    }
    if (create->kind == JOB_EXTENT_DISK)
        device_tell_cache(create->device, job->reply.create.disk_direct);
    if (make_extent(create, TAKE_FD(fd), job->reply.create.token))
        give_to_store(create);
}

static void submit_create(struct extent_create *create)
{
    create->job =
        (struct job){.opcode = JOB_CREATE, .device = create->device->index, .done = create_made, .reply_fd = -1};
    create->job.share = account_share(create->account);
    create->job.request.create.size = create->size;
    create->job.request.create.kind = create->kind;
    uint64_t least = create->core->limits.pieces_bytes;
    if (create->kind == JOB_EXTENT_HOST && least && create->size >= least && !create->shared)
        create->job.request.create.flags = JOB_IN_PIECES;
    create->core->env.submit(create->core->env.context, &create->job);
}

static void make(struct extent_create *create)
{
    if (create->pooled_fd >= 0) {
        if (make_extent(create, TAKE_FD(create->pooled_fd), create->pooled_token))
            give_to_store(create);
    } else if (create->filled_at_once && create->kind == JOB_EXTENT_DEVICE) {
        if (make_extent(create, -1, 0))
            create_end(create, 0);
    } else {
        submit_create(create);
    }
}

void extent_create_finish(struct extent_create *create, int fd)
{
    list_init(&create->node);
    list_init(&create->timer.node);
    create->extent->fd = fd;
    create->cancelled = false;
    create->error = 0;
    give_to_store(create);
}

static void create_waited_out(struct timer *timer)
{
    struct extent_create *create = container_of(timer, struct extent_create, timer);
    struct core *core = create->core;

    /* Room is being made for it: that is worth some patience more. */
    if (create->error == HBM_E_NO_MEMORY && create->wait_ms && pressure_serves(create) &&
        core_now(core) < create->waits_since_ms + SERVED_MS) {
        timer_arm(core, timer, create->wait_ms);
        return;
    }
    pressure_explain(create);
    create_end(create, create->error);
}

/* Others may let go in time: of the device's memory, or of what the account may have. Who freed before he asks
 * shall not be told that there is no room, however little he would wait. */
static bool may_wait(const struct extent_create *create)
{
    bool could_have = create->error == HBM_E_NO_MEMORY ||
                      (create->error == HBM_E_LIMIT &&
                       account_could_have(create->account, (enum account_thing)create->tier, create->size));

    return could_have && (create->wait_ms || !list_empty(&create->core->closing));
}

void extent_create_start(struct extent_create *create)
{
    uint64_t grain = create->tier == HBM_TIER_DISK ? DISK_GRANULARITY : create->device->granularity;

    list_init(&create->node);
    list_init(&create->timer.node);
    list_init(&create->pooled_farewells);
    create->timer.at_ms = 0;
    create->timer.fire = create_waited_out;
    create->extent = NULL;
    create->pooled_fd = -1;
    create->is_object = false;
    create->job.reply.create = (struct job_create_reply){0};
    create->cancelled = false;
    create->again_until_ms = 0;
    create->error = 0;
    create->detail[0] = 0;
    if (create->size > UINT64_MAX - grain) {
        snprintf(create->detail, sizeof(create->detail), "%" PRIu64 " bytes", create->size);
        create_end(create, HBM_E_TOO_LARGE);
        return;
    }
    create->size = (create->size + grain - 1) / grain * grain;
    if (create->size == 0) /* an empty buffer still needs an arena that can be mapped */
        create->size = grain;
    create->error = health_check(create->core, create->detail);
    if (!create->error)
        create->error = take_room(create);
    if (may_wait(create)) {
        uint32_t least = list_empty(&create->core->closing) ? 0 : CLOSING_MS;
        wait_for_memory(create);
        timer_arm(create->core, &create->timer, create->wait_ms > least ? create->wait_ms : least);
    } else if (create->error) {
        create_end(create, create->error);
    } else {
        make(create);
    }
}

void extent_create_cancel(struct extent_create *create)
{
    bool waits_for_memory = !list_empty(&create->node);

    create->cancelled = true;
    if (waits_for_memory) {
        snprintf(create->detail, sizeof(create->detail), "cancelled while waiting for memory");
        create_end(create, HBM_E_CANCELLED);
    }
}

void extent_create_retry(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, memory_timer);

    list_for_each_safe (node, &core->memory_waiters) {
        struct extent_create *create = list_entry(node, struct extent_create, node);
        create->error = take_room(create);
        if (may_wait(create)) {
            pressure_wake(create->device, create->tier);
            continue;
        }
        end_wait(create);
        if (!create->error) {
            make(create);
            continue;
        }
        create_end(create, create->error);
        timer_arm(core, &core->memory_timer, 0); /* done may have changed the list: start again */
        return;
    }
}
