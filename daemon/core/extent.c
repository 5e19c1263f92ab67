#include "daemon/core/extent.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/farewell.h"
#include "daemon/core/host_pool.h"
#include "daemon/core/ledger.h"
#include "daemon/core/packing.h"
#include "daemon/core/pressure.h"
#include "daemon/core/room.h"
#include "proto/memfd.h"

struct extent *extent_ref(struct extent *extent)
{
    extent->refs++;
    return extent;
}

/* A cuda-ipc block is no fd, and a host extent may be mapped there. */
static bool is_known_to_worker(const struct extent *extent)
{
    return extent->kind == JOB_EXTENT_CUDA_IPC || (extent->kind == JOB_EXTENT_HOST && extent->device->is_cuda);
}

static void unstore(struct extent *extent)
{
    char name[STORE_NAME_MAX];

    if (!extent->stored || !extent->core->env.unstore)
        return;
    extent_store_name(extent, name);
    extent->core->env.unstore(extent->core->env.context, name);
}

static void uncount_stored(struct extent *extent)
{
    if (extent->is_object)
        account_release(extent->account, ACCOUNT_OBJECTS, 1);
    extent->is_object = false;
}

void extent_count_stored(struct extent *extent)
{
    extent->stored = true;
    if (!extent->core->keeps)
        return;
    account_charge_anyway(extent->account, ACCOUNT_OBJECTS, 1);
    extent->is_object = true;
}

static struct room room_of(const struct extent *extent)
{
    return (struct room){extent->core, extent->device, extent->account, extent->tier,
                         extent->uncounted ? 0 : extent->size};
}

void extent_discount(struct extent *extent)
{
    struct room room = room_of(extent);

    room_release(&room);
    extent->uncounted = true;
}

struct extent *extent_unref(struct extent *extent)
{
    if (!extent || --extent->refs)
        return NULL;
    struct core *core = extent->core;
    ledger_drop(core, extent->id);
    unstore(extent);
    uncount_stored(extent);
    idmap_remove(&core->ids, extent->id);
    list_unlink(&extent->node);
    if (host_pool_put(extent))
        extent->device->used[extent->tier] += extent->size; /* and goes on being used, there */
    else if (!extent->lost && core->env.unstore)
        farewells_say(core, &extent->farewells, extent->kind, extent->token);
    struct room room = room_of(extent);
    int fd = TAKE_FD(extent->fd);
    fd_close(extent->fd_to_read);
    packing_unref(extent->packing);
    farewells_clear(&extent->farewells);
    account_unref(extent->account); /* the room is charged to it until it is free */
    free(extent);
    room_release_with(&room, fd);
    return NULL;
}

int extent_fd_for(struct extent *extent, enum hbm_access access, int *fd)
{
    /* A GPU's extent is read-only by how it is mapped; a memfd by how it was opened. */
    if (access != HBM_RO || extent->device->is_cuda || extent->fd < 0) {
        *fd = extent->fd;
        return 0;
    }
    if (extent->fd_to_read < 0)
        extent->fd_to_read = memfd_reopen_read_only(extent->fd);
    *fd = extent->fd_to_read;
    return *fd < 0 ? *fd : 0;
}

bool fd_is_shareable(int fd)
{
    return fcntl(fd, F_GET_SEALS) < 0;
}

bool extent_is_shareable(const struct extent *extent)
{
    return !extent->device->is_cuda || extent->kind != JOB_EXTENT_HOST || fd_is_shareable(extent->fd);
}

void extent_export(struct extent *extent, enum hbm_access access)
{
    bool changes;

    if (extent->tier != HBM_TIER_HOST)
        return;
    changes = !extent->exported || (extent->has_checksum && access == HBM_RW);
    extent->exported = true;
    extent->has_checksum &= access != HBM_RW;
    if (changes)
        ledger_put_extent(extent->core, extent);
}

uint64_t extent_raw_size(const struct extent *extent)
{
    return extent->packing ? extent->packing->raw_size : extent->size;
}

bool extent_is_made(const struct extent *extent)
{
    return extent->kind != JOB_EXTENT_DEVICE || extent->fd >= 0;
}

void extent_describe(const struct extent *extent, struct job *job, struct job_extent *wire)
{
    job->share = account_share(extent->account); /* of several the last: who pays for the target */
    *wire = (struct job_extent){
        .kind = extent->kind, .encrypted = extent->spill_key != 0, .size = extent->size, .token = extent->token};
    if (extent->kind == JOB_EXTENT_HOST && extent->device->index != job->device &&
        !farewells_reach(&extent->farewells, job->device))
        wire->token = 0; /* it would stay mapped in a worker that is not told of its end */
    if (extent->fd >= 0)
        job->fds[job->n_fds++] = extent->fd;
}

void extent_store_name(const struct extent *extent, char name[STORE_NAME_MAX])
{
    const struct owner *owner = &extent->account->owner;
    char listener[12] = "";

    if (owner->listener)
        snprintf(listener, sizeof(listener), "%" PRIx32 ".", owner->listener);
    snprintf(name, STORE_NAME_MAX, "x-%" PRIx64 "-%s%" PRIx32 "-%" PRIx64, extent->id, listener, owner->uid,
             extent->size);
}

/* Of what has no token from its worker, and none for another reason than to be known again. */
static uint64_t own_token(enum job_extent_kind kind, uint64_t id)
{
    return kind == JOB_EXTENT_HOST || kind == JOB_EXTENT_DISK ? id : 0;
}

/* Its id, and what its end will take. False: memory is out. */
static bool take_identity(struct extent *extent, uint64_t id)
{
    struct core *core = extent->core;

    if (is_known_to_worker(extent) && !farewells_add(&extent->farewells, extent->device))
        return false;
    if (!id)
        extent->id = idmap_add(&core->ids, ID_EXTENT, extent);
    else if (idmap_put(&core->ids, id, extent) == 0)
        extent->id = id;
    return extent->id;
}

struct extent *extent_new(struct core *core, uint64_t id, struct device *device, struct account *account,
                          enum hbm_tier tier, enum job_extent_kind kind, uint64_t size, int fd)
{
    struct extent *extent = calloc(1, sizeof(*extent));

    if (!extent)
        return NULL;
    *extent = (struct extent){.refs = 1,
                              .core = core,
                              .device = device,
                              .account = account_ref(account),
                              .tier = tier,
                              .kind = kind,
                              .size = size,
                              .fd = fd,
                              .fd_to_read = -1};
    list_init(&extent->farewells);
    if (!take_identity(extent, id)) {
        account_unref(account);
        farewells_clear(&extent->farewells);
        free(extent);
        return NULL;
    }
    extent->token = own_token(kind, extent->id);
    list_append(&core->extents, &extent->node);
    return extent;
}

struct extent *extent_adopt(struct core *core, uint64_t id, struct device *device, struct owner owner,
                            enum hbm_tier tier, enum job_extent_kind kind, uint64_t size, int fd)
{
    struct account *account = account_of(core, owner);
    struct extent *extent = account ? extent_new(core, id, device, account, tier, kind, size, fd) : NULL;

    if (!extent)
        return NULL;
    extent->lost = fd < 0;
    if (fd >= 0)
        extent_count_stored(extent);
    device->used[tier] += size;
    pressure_wake(device, tier);
    account_charge_anyway(account, (enum account_thing)tier, size);
    return extent;
}
