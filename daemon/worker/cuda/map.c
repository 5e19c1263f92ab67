/* Mapping extents. Device memory is mapped for the time of a job: that is quick, and whoever frees it wants it back
 * at once. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/cuda/driver.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
/* Registered at one go, and aligned to that. On an H200, driver 580.159.04, other processes' CUDA calls take 2 ms at most
 * beside 1 GiB in such pieces, 140 beside 1 GiB in one (2026-11-30). */
#define REGISTERED ((size_t)64 << 20)

static _Atomic unsigned with_seams; /* mapped now */

size_t map_up_to_seam(const void *at, size_t bytes)
{
    size_t left = REGISTERED - (uintptr_t)at % REGISTERED;

    return !atomic_load(&with_seams) || bytes < left ? bytes : left;
}

static void unregister(unsigned char *bytes, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += REGISTERED)
        runtime_note("cudaHostUnregister", cudaHostUnregister(bytes + at));
    with_seams -= size > REGISTERED;
}

static int register_all(unsigned char *bytes, uint64_t size, struct failure *failure)
{
    for (uint64_t at = 0; at < size; at += REGISTERED) {
        size_t piece = size - at < REGISTERED ? size - at : REGISTERED;
        if (!runtime_check(failure, "cudaHostRegister",
                           cudaHostRegister(bytes + at, piece, cudaHostRegisterPortable | cudaHostRegisterMapped)))
            continue;
        with_seams += at > REGISTERED;
        unregister(bytes, at);
        return failure->error;
    }
    with_seams += size > REGISTERED;
    return 0;
}

/* At an address where pieces begin; MAP_FAILED with errno. */
static void *map_aligned(int fd, uint64_t size)
{
    unsigned char *room = mmap(NULL, size + REGISTERED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED)
        return MAP_FAILED;
    size_t before = (REGISTERED - (uintptr_t)room % REGISTERED) % REGISTERED;
    void *bytes = mmap(room + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (bytes == MAP_FAILED) {
        int error = errno;
        munmap(room, size + REGISTERED);
        errno = error;
        return MAP_FAILED;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (before + size + page - 1) / page * page;
    if (before)
        munmap(room, before);
    if (end < size + REGISTERED)
        munmap(room + end, size + REGISTERED - end);
    return bytes;
}

/* Host memory where the driver shares none, or holds everybody else up to make it: a memfd, pinned while it is mapped. */
static int map_memfd(const struct job_extent *extent, int fd, int seals, struct view *view, struct failure *failure)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "fstat", errno);
    if ((seals & SIZE_SEALS) != SIZE_SEALS || (uint64_t)status.st_size != extent->size)
        return fail(failure, HBM_E_BAD_REQUEST, "the memfd has no sealed size of %llu bytes",
                    (unsigned long long)extent->size);
    void *bytes = map_aligned(fd, extent->size);
    if (bytes == MAP_FAILED)
        return fail_errno(failure, HBM_E_SYSTEM, "mmap", errno);
    view->bytes = bytes;
    view->origin = VIEW_MEMFD;
    if (register_all(bytes, extent->size, failure))
        return failure->error;
    view->pinned = true;
    return 0;
}

/* Device memory for the device; host memory for the device and for the CPU. */
static int set_access(const struct job_extent *extent, CUdeviceptr address, struct failure *failure)
{
    CUmemAccessDesc access[2] = {
        {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    CUresult result = driver.MemSetAccess(address, extent->size, access, extent->kind == JOB_EXTENT_HOST ? 2 : 1);

    return driver_check_argument(failure, "cuMemSetAccess", result,
                                 "the fd is memory of another kind, or too much is mapped");
}

int map_handle(const struct job_extent *extent, uint64_t handle, struct view *view, struct failure *failure)
{
    CUdeviceptr address = 0;

    CUresult result = driver.MemAddressReserve(&address, extent->size, 0, 0, 0);
    if (driver_check(failure, "cuMemAddressReserve", result)) {
        driver_note("cuMemRelease", driver.MemRelease(handle));
        return failure->error;
    }
    result = driver.MemMap(address, extent->size, 0, handle, 0);
    if (driver_check_argument(failure, "cuMemMap", result, "an import maps only at its exact size")) {
        driver_note("cuMemAddressFree", driver.MemAddressFree(address, extent->size));
        driver_note("cuMemRelease", driver.MemRelease(handle));
        return failure->error;
    }
    view->bytes = (unsigned char *)(uintptr_t)address;
    view->origin = VIEW_VMM;
    view->handle = handle;
    if (set_access(extent, address, failure))
        unmap_extent(view);
    return failure->error;
}

static int map_shared(const struct job_extent *extent, int fd, struct view *view, struct failure *failure)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = driver.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (driver_check_argument(failure, "cuMemImportFromShareableHandle", result,
                              "the fd is no memory of a GPU seen here"))
        return failure->error;
    return map_handle(extent, handle, view, failure);
}

int map_extent(const struct job_extent *extent, int fd, struct view *view, struct failure *failure)
{
    int seals, error;

    *view = (struct view){.size = extent->size, .on_device = extent->kind != JOB_EXTENT_HOST};
    seals = extent->kind == JOB_EXTENT_HOST ? fcntl(fd, F_GET_SEALS) : -1;
    error = seals >= 0 ? map_memfd(extent, fd, seals, view, failure) : map_shared(extent, fd, view, failure);
    if (error)
        unmap_extent(view);
    return error;
}

int device_map(const struct job_extent *extent, int fd, struct view *view, struct failure *failure)
{
    *view = (struct view){.size = extent->size, .on_device = true};
    if (extent->kind == JOB_EXTENT_CUDA_IPC)
        return block_map(extent, view, failure);
    if (extent->kind == JOB_EXTENT_HOST && extent->token)
        return keep_map(extent, fd, view, failure);
    return map_extent(extent, fd, view, failure);
}

void unmap_extent(struct view *view)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)view->bytes;

    switch (view->origin) {
    case VIEW_NONE:
        break;
    case VIEW_MEMFD:
        if (view->pinned)
            unregister(view->bytes, view->size);
        munmap(view->bytes, view->size);
        break;
    case VIEW_VMM:
        driver_note("cuMemUnmap", driver.MemUnmap(address, view->size));
        driver_note("cuMemAddressFree", driver.MemAddressFree(address, view->size));
        driver_note("cuMemRelease", driver.MemRelease(view->handle));
        break;
    case VIEW_BLOCK:
    case VIEW_KEPT:
        break; /* not mapped here */
    }
    *view = (struct view){0};
}

void device_unmap(struct view *view)
{
    if (view->origin == VIEW_BLOCK)
        block_unmap(view->handle);
    else if (view->origin == VIEW_KEPT)
        keep_unmap(view);
    else
        unmap_extent(view);
    *view = (struct view){0};
}
