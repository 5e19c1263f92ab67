/* Host device: memfds inside a reservation. Nothing of it reaches a forked child: the child is no session, so the
 * daemon could not know of its mappings. */
#include <errno.h>
#include <sys/mman.h>

#include "client/lib/backend.h"
#include "client/lib/error.h"

static int host_reserve(struct place *place)
{
    void *address = mmap(NULL, place->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (address == MAP_FAILED)
        return set_system_error("mmap", errno);
    madvise(address, place->size, MADV_DONTFORK);
    place->address = address;
    return 0;
}

static int host_map(struct place *place, int fd)
{
    int protection = place->access == HBM_RW ? PROT_READ | PROT_WRITE : PROT_READ;
    int there = place->address ? MAP_FIXED : 0;
    void *address = mmap(place->address, place->size, protection, MAP_SHARED | there, fd, 0);

    if (address == MAP_FAILED)
        return set_system_error("mmap of the arena", errno);
    madvise(address, place->size, MADV_DONTFORK);
    place->address = address;
    place->mapped = true;
    return 0;
}

static int host_unmap(struct place *place)
{
    if (mmap(place->address, place->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        return set_system_error("mmap", errno);
    madvise(place->address, place->size, MADV_DONTFORK);
    place->mapped = false;
    return 0;
}

static void host_release(struct place *place)
{
    if (place->address)
        munmap(place->address, place->size);
    place->address = NULL;
    place->mapped = false;
}

/* Work on host memory is done when the call that did it returns. */
static int host_fence(struct place *place, void *stream)
{
    (void)place, (void)stream;
    return 0;
}

static int host_wait(struct place *place)
{
    (void)place;
    return 0;
}

const struct backend backend_host = {
    .reserve = host_reserve,
    .map = host_map,
    .unmap = host_unmap,
    .release = host_release,
    .fence = host_fence,
    .wait = host_wait,
};
