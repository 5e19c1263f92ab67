/* Buffers: allocate, attach, detach, free. */
#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/lease.h"
#include "client/lib/residency.h"

_Static_assert(HBM_WAIT == WIRE_WAIT && HBM_UNLOCKED == WIRE_UNLOCKED && HBM_KEEP == WIRE_KEEP &&
                   HBM_SHARED == WIRE_SHARED && HBM_REPLACE == WIRE_REPLACE && HBM_FORCE == WIRE_FORCE &&
                   HBM_LIVE == WIRE_LIVE && HBM_IN_PLACE == WIRE_IN_PLACE && HBM_PRIORITY(HBM_NEVER) == WIRE_PRIORITY(10) &&
                   HBM_DEVICE_ANY == WIRE_DEVICE_ANY,
               "flags are those of the wire");

int lease_end(hbm_session *session, uint64_t lease, uint64_t life)
{
    struct wire_detach_request request = {.lease = lease};
    struct wire_detach_reply reply;
    int error = conn_call_in(&session->conn, life, WIRE_DETACH, &request, &reply);

    return error > 0 ? 0 : error; /* not presented to the next daemon, it has ended */
}

void lease_give_back(hbm_session *session, uint64_t lease, uint64_t life)
{
    struct error_kept kept;

    error_keep(&kept);
    lease_end(session, lease, life);
    error_restore(&kept);
}

int lease_set_lost(void)
{
    return set_error(HBM_E_LOST, "after the daemon's restart it was not there any more; what is mapped here stays "
                                 "until it is detached");
}

uint64_t lease_free(hbm_lease *lease)
{
    if (!lease->session->inert)
        mapping_leave(lease->session, &lease->hold);
    uint64_t life = session_remove(lease->session, &lease->node);
    free(lease);
    return life;
}

static int check_placed(const struct wire_grant *grant)
{
    if (grant->offset > grant->arena_size || grant->size > grant->arena_size - grant->offset ||
        grant->rank > HBM_RANK_MAX)
        return set_error(HBM_E_BAD_REQUEST, "the daemon granted a buffer that lies outside its arena");
    return 0;
}

static int join_and_lock(hbm_lease *lease, int fd, uint64_t before, uint64_t life, unsigned flags,
                         uint32_t timeout_ms)
{
    const struct wire_grant *grant = &lease->grant;
    bool lock = !(flags & HBM_UNLOCKED);
    struct arena_grant arena = {
        .arena = grant->arena,
        .size = grant->arena_size,
        .slot = grant->slot,
        .device = grant->device,
        .handle = grant->handle,
        .access = grant->access,
        .present = grant->present,
        .in_place = flags & HBM_IN_PLACE,
        .ipc_handle = grant->ipc_handle,
        .life = life,
    };
    int error = check_placed(grant);

    if (!error)
        error = mapping_join(lease->session, &arena, fd, before, lock, &lease->hold);
    if (!error && lock && !lease->hold.locks)
        error = residency_lock(lease->session, &(struct hold *){&lease->hold}, 1, timeout_ms);
    return error;
}

/* Turns a reply into a lease. `error` is that of the call: a grant may have come although it failed. CONN_CUT: it
 * came in a life that is past, so that there is no such lease. */
static int take_grant(hbm_session *session, int error, const struct wire_grant *grant, struct conn_fds *fds,
                      uint64_t before, unsigned flags, uint32_t timeout_ms, hbm_lease **ret)
{
    int CLOSE_FD fd = conn_take_fd(fds, 0);
    hbm_lease *lease = NULL;

    if (!error) {
        lease = calloc(1, sizeof(*lease));
        if (!lease)
            error = set_system_error("malloc", ENOMEM);
    }
    if (lease) {
        lease->session = session;
        lease->grant = *grant;
        lease->grant.name[sizeof(lease->grant.name) - 1] = 0;
        if (!session_add(session, &session->leases, &lease->node, fds->life)) {
            free(lease);
            return CONN_CUT;
        }
        error = join_and_lock(lease, fd, before, fds->life, flags, timeout_ms);
    }
    if (error) {
        uint64_t life = lease ? lease_free(lease) : fds->life;
        if (grant->lease)
            lease_give_back(session, grant->lease, life);
        return error;
    }
    *ret = lease;
    return 0;
}

static int check_spec(const struct hbm_spec *spec)
{
    uint32_t priority;
    int error = 0;

    if (!spec)
        return set_error(HBM_E_INVALID, "spec is NULL");
    if (!hbm_dtype_name(spec->dtype))
        return set_error(HBM_E_INVALID, "dtype %u is none", spec->dtype);
    if (spec->rank > HBM_RANK_MAX)
        return set_error(HBM_E_INVALID, "rank %u is above %d", spec->rank, HBM_RANK_MAX);
    if (spec->size == 0 && spec->rank == 0)
        return set_error(HBM_E_INVALID, "neither size nor dims is given");
    if (spec->handle > HBM_HANDLE_CUDA_IPC)
        return set_error(HBM_E_INVALID, "handle %u is none", spec->handle);
    if (!wire_priority(spec->flags, 0, &priority))
        return set_error(HBM_E_INVALID, "priority %u is above HBM_NEVER", priority);
    if (spec->flags & ~(uint32_t)(HBM_KEEP | HBM_SHARED | WIRE_PRIORITY_MASK))
        return set_error(HBM_E_INVALID, "flags has bits that hbm_alloc does not take (0x%x)", spec->flags);
    if (spec->name)
        error = check_text("name", spec->name, HBM_NAME_MAX);
    if (!error && spec->group)
        error = check_text("group", spec->group, HBM_GROUP_MAX);
    return error;
}

int hbm_alloc(hbm_session *session, const struct hbm_spec *spec, hbm_lease **ret)
{
    struct wire_alloc_request request = {0};
    struct wire_alloc_reply reply;
    CONN_FDS fds = {0};
    int error = session_check(session);

    if (!error && !ret)
        error = set_error(HBM_E_INVALID, "ret is NULL");
    if (!error)
        error = check_spec(spec);
    if (error)
        return error;
    request.spec = (struct wire_spec){
        .size = spec->size,
        .device = spec->device,
        .dtype = spec->dtype,
        .rank = spec->rank,
        .handle = spec->handle,
        .mode = spec->mode ? spec->mode : 0600,
        .flags = spec->flags,
    };
    memcpy(request.spec.dims, spec->dims, spec->rank * sizeof(spec->dims[0]));
    if (spec->name)
        strcpy(request.spec.name, spec->name);
    if (spec->group)
        strcpy(request.spec.group, spec->group);
    uint64_t before = mapping_epoch(session);
    error = conn_call(&session->conn, WIRE_ALLOC, &request, &reply, NULL, 0, &fds);
    error = take_grant(session, error, &reply.grant, &fds, before, 0, HBM_FOREVER, ret);
    return error == CONN_CUT ? conn_retry() : error;
}

static int attach(hbm_session *session, uint64_t id, const char *name, unsigned access, unsigned flags,
                  uint32_t timeout_ms, hbm_lease **ret)
{
    struct wire_attach_request request = {.id = id, .access = access, .flags = flags, .timeout_ms = timeout_ms};
    int error;

    if (!ret)
        return set_error(HBM_E_INVALID, "ret is NULL");
    if (access > HBM_RW)
        return set_error(HBM_E_INVALID, "access %u is neither HBM_RO nor HBM_RW", access);
    if (flags & ~(unsigned)(HBM_UNLOCKED | HBM_IN_PLACE))
        return set_error(HBM_E_INVALID, "flags has bits that hbm_attach does not take (0x%x)", flags);
    if (name)
        strcpy(request.name, name);
    do {
        struct wire_attach_reply reply;
        CONN_FDS fds = {0};
        uint64_t before = mapping_epoch(session);
        error = conn_call_again(&session->conn, WIRE_ATTACH, &request, &request.timeout_ms, &reply, &fds);
        error = take_grant(session, error, &reply.grant, &fds, before, flags, timeout_ms, ret);
    } while (error == CONN_CUT);
    return error;
}

int hbm_attach(hbm_session *session, const char *name, unsigned access, unsigned flags, uint32_t timeout_ms,
               hbm_lease **ret)
{
    int error = session_check(session);

    if (!error)
        error = check_text("name", name, HBM_NAME_MAX);
    return error ? error : attach(session, 0, name, access, flags, timeout_ms, ret);
}

int hbm_attach_id(hbm_session *session, uint64_t id, unsigned access, unsigned flags, uint32_t timeout_ms,
                  hbm_lease **ret)
{
    int error = session_check(session);

    if (!error && id == 0)
        error = set_error(HBM_E_INVALID, "0 is no id");
    return error ? error : attach(session, id, NULL, access, flags, timeout_ms, ret);
}

void *hbm_pointer(const hbm_lease *lease)
{
    return lease->hold.mapping ? (char *)lease->hold.mapping->place.address + lease->grant.offset : NULL;
}

void hbm_lease_info(const hbm_lease *lease, struct hbm_info *ret)
{
    const struct wire_grant *grant = &lease->grant;
    uint64_t word = mapping_word(lease->session, lease->hold.mapping);

    *ret = (struct hbm_info){
        .id = grant->buffer,
        .pointer = word & LOCKWORD_AWAY ? NULL : hbm_pointer(lease),
        .size = grant->size,
        .name = *grant->name ? grant->name : NULL,
        .device = grant->device,
        .dtype = grant->dtype,
        .rank = grant->rank,
        .version = grant->version,
        .access = grant->access,
        .handle = grant->handle,
        .encoding = grant->encoding,
        .tier = word & LOCKWORD_HOST ? HBM_TIER_HOST : HBM_TIER_DEVICE,
    };
    memcpy(ret->dims, grant->dims, sizeof(ret->dims));
}

int hbm_detach(hbm_lease *lease)
{
    if (!lease)
        return set_error(HBM_E_INVALID, "the lease is NULL");
    hbm_session *session = lease->session;
    uint64_t id = lease->grant.lease;
    bool lost = lease->lost;
    int error = session_check(session);
    if (error)
        return error;
    uint64_t life = lease_free(lease);
    return lost ? 0 : lease_end(session, id, life);
}

int hbm_free(hbm_session *session, uint64_t id)
{
    struct wire_free_request request = {.id = id};
    struct wire_free_reply reply;
    int error = session_check(session);

    if (!error && id == 0)
        error = set_error(HBM_E_INVALID, "0 is no id");
    return error ? error : conn_call(&session->conn, WIRE_FREE, &request, &reply, NULL, 0, NULL);
}
