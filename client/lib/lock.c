/* Locks of leases. */
#include <errno.h>

#include "client/lib/error.h"
#include "client/lib/lease.h"
#include "client/lib/residency.h"

static int lease_check(const hbm_lease *lease)
{
    return lease ? session_check(lease->session) : set_error(HBM_E_INVALID, "the lease is NULL");
}

static int lock_check(const hbm_lease *lease)
{
    int error = lease_check(lease);

    return error || !lease->lost ? error : lease_set_lost();
}

int hbm_lock(hbm_lease *lease, uint32_t timeout_ms)
{
    int error = lock_check(lease);

    return error ? error : residency_lock(lease->session, &(struct hold *){&lease->hold}, 1, timeout_ms);
}

int hbm_lock_on(hbm_lease *lease, void *stream, uint32_t timeout_ms)
{
    int error = lock_check(lease);

    return error ? error : residency_lock_on(lease->session, &lease->hold, stream, timeout_ms);
}

int hbm_unlock(hbm_lease *lease, void *const *streams, unsigned n)
{
    int error = lease_check(lease);

    if (!error && n && !streams)
        error = set_error(HBM_E_INVALID, "streams is NULL");
    return error ? error : residency_unlock(lease->session, &lease->hold, streams, n);
}

int hbm_lock_many(hbm_lease *const *leases, unsigned n, uint32_t timeout_ms)
{
    if (n == 0)
        return 0;
    if (!leases)
        return set_error(HBM_E_INVALID, "leases is NULL");
    FREE struct hold **holds = calloc(n, sizeof(*holds));
    if (!holds)
        return set_system_error("malloc", ENOMEM);
    for (unsigned i = 0; i < n; i++) {
        int error = lock_check(leases[i]);
        if (!error && leases[i]->session != leases[0]->session)
            error = set_error(HBM_E_INVALID, "lease %u is of another session than the first", i);
        if (error)
            return error;
        holds[i] = &leases[i]->hold;
    }
    return residency_lock(leases[0]->session, holds, n, timeout_ms);
}
