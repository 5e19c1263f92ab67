#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/names.h"
#include "daemon/core/verbs.h"

struct alloc {
    struct core *core;
    struct call *call;
    struct alloc_args args;
    struct extent_create create;
};

/* Size and shape agree, or one follows from the other. */
static int settle_shape(struct alloc_args *args, char *detail)
{
    uint64_t bytes;

    if (!args->rank && !args->size) {
        snprintf(detail, HBM_DETAIL_MAX, "neither a size nor a shape");
        return HBM_E_INVALID;
    }
    if (!args->rank) {
        if (hbm_dtype_bits(args->dtype) != 8) {
            snprintf(detail, HBM_DETAIL_MAX, "%" PRIu64 " bytes of %s without a shape", args->size, hbm_dtype_name(args->dtype));
            return HBM_E_INVALID;
        }
        args->rank = 1;
        args->dims[0] = args->size;
    }
    if (!hbm_shape_bytes(args->dims, args->rank, args->dtype, &bytes)) {
        snprintf(detail, HBM_DETAIL_MAX, "the shape's size overflows 64 bits");
        return HBM_E_INVALID;
    }
    if (args->size && args->size != bytes) {
        snprintf(detail, HBM_DETAIL_MAX, "the size is %" PRIu64 ", the shape needs %" PRIu64, args->size, bytes);
        return HBM_E_INVALID;
    }
    if (!bytes) {
        snprintf(detail, HBM_DETAIL_MAX, "0 bytes");
        return HBM_E_INVALID;
    }
    args->size = bytes;
    return 0;
}

static int check_device(struct device *device, uint32_t handle, char *detail)
{
    int error = device_check_ready(device, detail);

    if (error)
        return error;
    if (handle == HBM_HANDLE_CUDA_IPC && !device->can_cuda_ipc) {
        snprintf(detail, HBM_DETAIL_MAX, "device %s hands out no cuda-ipc memory", device->uuid);
        return HBM_E_UNSUPPORTED;
    }
    return 0;
}

static int check(struct core *core, struct call *call, struct alloc_args *args, struct device **device)
{
    const char *why;

    *device = listener_device(core, &call->who, args->device);
    if (core->draining) {
        snprintf(call->detail, sizeof(call->detail), "nothing new is granted");
        return HBM_E_SHUTTING_DOWN;
    }
    if (args->name[0] && !name_is_valid(args->name, &why)) {
        snprintf(call->detail, sizeof(call->detail), "%s", why);
        return HBM_E_INVALID;
    }
    if (args->group[0] && !name_is_valid(args->group, &why)) {
        snprintf(call->detail, sizeof(call->detail), "group: %s", why);
        return HBM_E_INVALID;
    }
    if ((args->flags & WIRE_SHARED) && !call->who.admin) {
        snprintf(call->detail, sizeof(call->detail), "shared names are for administrators");
        return HBM_E_DENIED;
    }
    if ((args->flags & WIRE_KEEP) && !args->name[0]) {
        snprintf(call->detail, sizeof(call->detail), "a buffer that is kept needs a name to be found by");
        return HBM_E_INVALID;
    }
    int error = check_device(*device, args->handle, call->detail);
    return error ? error : settle_shape(args, call->detail);
}

static void refuse(struct alloc *alloc, int error, const char *detail)
{
    char copy[HBM_DETAIL_MAX]; /* detail may lie in the call that it is copied into */

    snprintf(copy, sizeof(copy), "%s", detail);
    extent_unref(alloc->create.extent);
    call_refuse(alloc->call, error, "%s", copy);
    free(alloc);
}

/* In an arena of its own; both have their rows. NULL with error, and the call's detail. */
static struct buffer *make_buffer(struct alloc *alloc, int *error)
{
    const struct alloc_args *args = &alloc->args;
    struct call *call = alloc->call;
    struct buffer_spec spec = {.name = args->name[0] ? args->name : NULL,
                               .dtype = args->dtype,
                               .rank = args->rank,
                               .dims = args->dims,
                               .size = args->size,
                               .keep = args->flags & WIRE_KEEP};
    struct arena *arena = arena_new(alloc->core, call->who.owner, args->flags & WIRE_SHARED, args->mode, args->handle,
                                    args->group, alloc->create.extent);

    if (!arena) {
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    alloc->create.extent = NULL; /* the arena's now */
    arena_prefer(arena, args->flags);
    struct buffer *buffer = buffer_new(arena, &spec, error, call->detail);
    if (!buffer) {
        arena_free(arena);
        return NULL;
    }
    ledger_put_arena(alloc->core, arena);
    ledger_put_buffer(alloc->core, buffer);
    return buffer;
}

static void created(struct extent_create *create)
{
    struct alloc *alloc = container_of(create, struct alloc, create);
    struct core *core = alloc->core;
    struct call *call = alloc->call;
    int error = 0;

    if (create->error) {
        refuse(alloc, create->error, create->detail);
        return;
    }
    if (!call->session) {
        refuse(alloc, HBM_E_DISCONNECTED, "the session went away");
        return;
    }
    struct buffer *buffer = make_buffer(alloc, &error);
    if (!buffer) {
        refuse(alloc, error, call->detail);
        return;
    }
    struct lease *lease = lease_new_buffer(call->session, buffer, HBM_RW, 0, &error, call->detail);
    if (!lease) {
        buffer_free(buffer);
        refuse(alloc, error, call->detail);
        return;
    }
    event_emit(&core->events, "buffer.allocated", buffer->id, buffer->name, buffer->arena->owner.listener,
               buffer->arena->owner.uid, call->session->pid, "%" PRIu64 " bytes on %s", buffer->size,
               buffer->arena->device->uuid);
    call_done(call, lease);
    free(alloc);
}

void verb_alloc(struct core *core, struct call *call, const struct alloc_args *args)
{
    struct alloc *alloc = calloc(1, sizeof(*alloc));
    struct device *device;

    if (!alloc) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    alloc->core = core;
    alloc->call = call;
    alloc->args = *args;
    int error = check(core, call, &alloc->args, &device);
    /* The name is looked at before memory is made, and taken after: EXISTS should not cost an allocation. */
    struct owner scope = owner_scope(call->who.owner, args->flags & WIRE_SHARED);
    if (!error && args->name[0] && names_find(&core->buffer_names, scope, args->name)) {
        snprintf(call->detail, sizeof(call->detail), "%.200s", args->name);
        error = HBM_E_EXISTS;
    }
    if (error) {
        refuse(alloc, error, call->detail);
        return;
    }
    alloc->create = (struct extent_create){.core = core,
                                           .device = device,
                                           .account = call->session->account,
                                           .tier = HBM_TIER_DEVICE,
                                           .kind = args->handle == HBM_HANDLE_CUDA_IPC ? JOB_EXTENT_CUDA_IPC : JOB_EXTENT_DEVICE,
                                           .size = alloc->args.size,
                                           .wait_ms = core->limits.memory_wait_ms,
                                           .done = created};
    extent_create_start(&alloc->create);
}
