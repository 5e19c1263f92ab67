/* Extents of the host device: memfds whose size is sealed, so that mapping one can never fault past its end. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/device.h"
#include "daemon/worker/meminfo.h"
#include "daemon/worker/touch.h"
#include "proto/memfd.h"

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

int device_create(const struct job_create_request *request, struct job_create_reply *reply, int *fd,
                  struct failure *failure)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), total = meminfo_bytes("MemTotal");

    if (request->kind == JOB_EXTENT_CUDA_IPC)
        return fail(failure, HBM_E_UNSUPPORTED, "the host device has no cuda-ipc memory");
    if (request->size > total)
        return fail(failure, HBM_E_NO_MEMORY, "%llu bytes wanted, this machine has %llu",
                    (unsigned long long)request->size, (unsigned long long)total);
    uint64_t size = (request->size + page - 1) / page * page;
    _cleanup_fd_ int memfd = memfd_fixed("hbm-extent", size);
    if (memfd < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "memfd_create", -memfd);
    if (request->flags & JOB_AHEAD && touch_pages(memfd, size, -1, failure))
        return failure->error;
    reply->size = size;
    *fd = TAKE_FD(memfd);
    return 0;
}

int device_destroy(const struct job_destroy_request *request, struct failure *failure)
{
    (void)request, (void)failure;
    return 0;
}

int device_map(const struct job_extent *extent, int fd, struct view *view, struct failure *failure)
{
    struct stat status;

    *view = (struct view){.size = extent->size};
    if (extent->kind == JOB_EXTENT_CUDA_IPC)
        return fail(failure, HBM_E_UNSUPPORTED, "the host device has no cuda-ipc memory");
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS)
        return fail(failure, HBM_E_BAD_REQUEST, "the fd is no memfd of a sealed size");
    if (fstat(fd, &status) < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "fstat", errno);
    if ((uint64_t)status.st_size != extent->size)
        return fail(failure, HBM_E_BAD_REQUEST, "the extent has %lld bytes, not %llu", (long long)status.st_size,
                    (unsigned long long)extent->size);
    void *bytes = mmap(NULL, extent->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return fail_errno(failure, HBM_E_SYSTEM, "mmap", errno);
    view->bytes = bytes;
    view->origin = VIEW_MEMFD;
    /* Handled as if the CPU could not reach it: so the paths of a GPU run wherever the host device does. */
    view->on_device = extent->kind == JOB_EXTENT_DEVICE;
    return 0;
}

/* The fd stays with the view: its handle is one more. */
int device_make(const struct job_extent *extent, struct view *view, struct failure *failure)
{
    struct job_create_request request = {.size = extent->size, .kind = extent->kind};
    struct job_create_reply reply;
    _cleanup_fd_ int fd = -1;

    if (device_create(&request, &reply, &fd, failure) || device_map(extent, fd, view, failure))
        return failure->error;
    view->handle = (uint64_t)TAKE_FD(fd) + 1;
    return 0;
}

unsigned device_make_chunks(void)
{
    return 0;
}

int device_share(struct view *view, int *fd, struct failure *failure)
{
    (void)failure;
    *fd = (int)view->handle - 1;
    view->handle = 0;
    return 0;
}

void device_unmap(struct view *view)
{
    if (view->bytes)
        munmap(view->bytes, view->size);
    if (view->handle)
        close((int)view->handle - 1);
    *view = (struct view){0};
}
