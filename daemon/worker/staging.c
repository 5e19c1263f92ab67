#include "daemon/worker/staging.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "daemon/worker/device.h"
#include "daemon/worker/lanes.h"

#define SHARES 5 /* jobs that stage at once: two with spill files, three with clients' */
#define SLOTS_DEFAULT 15
#define SLOTS_MIN SHARES
#define SLOTS_MAX 32

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t given;
    void *idle[SLOTS_MAX];
    unsigned n_idle, n_made, limit;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER, .limit = SLOTS_DEFAULT};

void staging_limit(uint64_t pinned_bytes)
{
    uint64_t slots = pinned_bytes ? pinned_bytes / STAGING_BYTES : SLOTS_DEFAULT;

    pthread_mutex_lock(&pool.mutex);
    pool.limit = slots < SLOTS_MIN ? SLOTS_MIN : slots > SLOTS_MAX ? SLOTS_MAX : (unsigned)slots;
    pthread_mutex_unlock(&pool.mutex);
}

unsigned staging_lanes(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned share = pool.limit / SHARES;
    pthread_mutex_unlock(&pool.mutex);
    return share < LANES_MAX ? share : LANES_MAX;
}

static void *make(struct failure *failure)
{
    void *slot = mmap(NULL, STAGING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (slot == MAP_FAILED) {
        fail_errno(failure, HBM_E_NO_MEMORY, "mmap of a staging buffer", errno);
        return NULL;
    }
    madvise(slot, STAGING_BYTES, MADV_HUGEPAGE);
    device_pin(slot, STAGING_BYTES);
    return slot;
}

void *staging_take(struct failure *failure)
{
    void *slot = NULL;
    bool create = false;

    pthread_mutex_lock(&pool.mutex);
    while (!pool.n_idle && pool.n_made >= pool.limit)
        pthread_cond_wait(&pool.given, &pool.mutex);
    if (pool.n_idle)
        slot = pool.idle[--pool.n_idle];
    else {
        create = true;
        pool.n_made++;
    }
    pthread_mutex_unlock(&pool.mutex);
    if (!create)
        return slot;
    slot = make(failure);
    if (!slot) {
        pthread_mutex_lock(&pool.mutex);
        pool.n_made--;
        pthread_cond_signal(&pool.given);
        pthread_mutex_unlock(&pool.mutex);
    }
    return slot;
}

void staging_give(void *slot)
{
    if (!slot)
        return;
    pthread_mutex_lock(&pool.mutex);
    pool.idle[pool.n_idle++] = slot;
    pthread_cond_signal(&pool.given);
    pthread_mutex_unlock(&pool.mutex);
}

void staging_drop(void)
{
    pthread_mutex_lock(&pool.mutex);
    while (pool.n_idle) {
        void *slot = pool.idle[--pool.n_idle];

        device_unpin(slot);
        munmap(slot, STAGING_BYTES);
        pool.n_made--;
    }
    pthread_mutex_unlock(&pool.mutex);
}
