#include "daemon/worker/touch.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PART ((uint64_t)32 << 20) /* mapped at a time */
#define HELPERS_MAX 7u            /* beside the job's own thread, and no more than half of the CPUs */
#define NODES_MAX 64
#define PREFER_NODE 1 /* MPOL_PREFERRED of linux/mempolicy.h */

struct touching {
    int memfd, node;
    uint64_t size;
    _Atomic uint64_t next; /* where the next part begins */
    _Atomic int error;     /* errno of the first that failed */
};

static int touch(struct touching *touching, uint64_t at)
{
    uint64_t size = touching->size - at < PART ? touching->size - at : PART;
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, touching->memfd, (off_t)at);

    if (bytes == MAP_FAILED)
        return errno;
    /* Writing would do it on any kernel, and end this process where memory is short. Before Linux 5.14 pages come
     * as they are used. */
    int error = madvise(bytes, size, MADV_POPULATE_WRITE) && errno != EINVAL ? errno : 0;
    munmap(bytes, size);
    return error;
}

static void *work(void *argument)
{
    struct touching *touching = argument;
    unsigned long mask = touching->node < 0 ? 0 : 1ul << touching->node;
    uint64_t at;

    if (mask) /* of this thread alone; refused: wherever it is, then */
        syscall(SYS_set_mempolicy, PREFER_NODE, &mask, NODES_MAX + 1);
    while (!atomic_load(&touching->error) && (at = atomic_fetch_add(&touching->next, PART)) < touching->size) {
        int error = touch(touching, at), none = 0;
        if (error)
            atomic_compare_exchange_strong(&touching->error, &none, error);
    }
    if (mask)
        syscall(SYS_set_mempolicy, 0, NULL, 0);
    return NULL;
}

static unsigned helpers_for(uint64_t size)
{
    uint64_t parts = (size + PART - 1) / PART;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned most = cpus / 2 > HELPERS_MAX ? HELPERS_MAX : cpus > 1 ? (unsigned)cpus / 2 : 0;

    return parts - 1 < most ? (unsigned)(parts - 1) : most;
}

int touch_pages(int memfd, uint64_t size, int node, struct failure *failure)
{
    struct touching touching = {.memfd = memfd, .node = node < NODES_MAX ? node : -1, .size = size};
    pthread_t helpers[HELPERS_MAX];
    unsigned n = 0, wanted = helpers_for(size);

    while (n < wanted && !pthread_create(&helpers[n], NULL, work, &touching))
        n++;
    work(&touching);
    while (n)
        pthread_join(helpers[--n], NULL);
    int error = atomic_load(&touching.error);
    return error
               ? fail_errno(failure, error == EFAULT ? HBM_E_NO_MEMORY : HBM_E_SYSTEM, "making pages ahead", error)
               : 0;
}
