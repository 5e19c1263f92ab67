/* Making extents. What is created here belongs to whoever holds the fd; this process keeps no handle. */
#include "daemon/worker/cuda/extent.h"

#include <fcntl.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/cuda/driver.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/meminfo.h"
#include "daemon/worker/touch.h"
#include "proto/memfd.h"

#define SIZE_UNIT ((size_t)2 << 20)

static CUmemAllocationProp device_memory(void)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };

    prop.allocFlags.gpuDirectRDMACapable =
        driver_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    return prop;
}

/* The NUMA node next to the device; a machine without NUMA has one. */
static int host_node(void)
{
    int node = -1;

    return driver.DeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0) || node < 0 ? 0 : node;
}

static CUmemAllocationProp host_memory(void)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = host_node()},
    };
}

static int granularity_of(const CUmemAllocationProp *prop, size_t *bytes, struct failure *failure)
{
    return driver_check(failure, "cuMemGetAllocationGranularity",
                        driver.MemGetAllocationGranularity(bytes, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

int extent_granularity(uint64_t *bytes, struct failure *failure)
{
    CUmemAllocationProp prop = device_memory();
    size_t granularity = 0;

    if (granularity_of(&prop, &granularity, failure))
        return failure->error;
    *bytes = granularity;
    return 0;
}

/* The handle is the caller's. */
static int create_handle(const CUmemAllocationProp *prop, uint64_t wanted, uint64_t *size,
                         CUmemGenericAllocationHandle *handle, struct failure *failure)
{
    size_t granularity = 0;

    if (granularity_of(prop, &granularity, failure))
        return failure->error;
    /* Host memory comes in smaller pages, but addresses are reserved in whole large ones. */
    if (granularity < SIZE_UNIT)
        granularity = SIZE_UNIT;
    *size = (wanted + granularity - 1) / granularity * granularity;
    return driver_check(failure, "cuMemCreate", driver.MemCreate(handle, *size, prop, 0));
}

static int export_handle(CUmemGenericAllocationHandle handle, int *fd, struct failure *failure)
{
    int exported = -1;
    CUresult result = driver.MemExportToShareableHandle(&exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (driver_check(failure, "cuMemExportToShareableHandle", result))
        return failure->error;
    fcntl(exported, F_SETFD, FD_CLOEXEC);
    *fd = exported;
    return 0;
}

static int create_shared(const CUmemAllocationProp *prop, uint64_t wanted, uint64_t *size, int *fd,
                         struct failure *failure)
{
    CUmemGenericAllocationHandle handle;

    if (create_handle(prop, wanted, size, &handle, failure))
        return failure->error;
    export_handle(handle, fd, failure);
    driver_note("cuMemRelease", driver.MemRelease(handle));
    return failure->error;
}

/* Where its pages are made now, only registering it is left for whoever maps it. */
static int create_memfd(uint64_t wanted, bool touch, uint64_t *size, int *fd, struct failure *failure)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    *size = (wanted + page - 1) / page * page;
    _cleanup_fd_ int memfd = memfd_fixed("hbm-extent", *size);
    if (memfd < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "memfd_create", -memfd);
    if (touch && touch_pages(memfd, *size, host_node(), failure))
        return failure->error;
    *fd = TAKE_FD(memfd);
    return 0;
}

static int create_host(const struct job_create_request *request, uint64_t *size, int *fd, struct failure *failure)
{
    CUmemAllocationProp prop = host_memory();
    uint64_t wanted = request->size, available = meminfo_bytes("MemAvailable");
    struct failure refusal = {0};

    /* The driver takes real pages at once; the kernel would kill somebody to find them. */
    if (available && wanted > available)
        return fail(failure, HBM_E_NO_MEMORY, "%llu bytes of host memory wanted, %llu available",
                    (unsigned long long)wanted, (unsigned long long)available);
    if (!(request->flags & JOB_IN_PIECES) &&
        driver_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        int error = create_shared(&prop, wanted, size, fd, &refusal);
        if (!error || error == HBM_E_NO_MEMORY)
            return error ? fail(failure, error, "%s", refusal.detail) : 0;
    }
    return create_memfd(wanted, request->flags != 0, size, fd, failure);
}

int device_destroy(const struct job_destroy_request *request, struct failure *failure)
{
    if (request->kind == JOB_EXTENT_HOST)
        return keep_forget(request->token, failure);
    return block_destroy(request->token, failure);
}

/* The driver's own refusal would not say how much there is. */
static int check_size(uint64_t wanted, struct failure *failure)
{
    size_t total = 0;

    if (driver_check(failure, "cuDeviceTotalMem", driver.DeviceTotalMem(&total, 0)))
        return failure->error;
    if (wanted > total)
        return fail(failure, HBM_E_NO_MEMORY, "%llu bytes wanted, the device has %llu", (unsigned long long)wanted,
                    (unsigned long long)total);
    return 0;
}

int device_make(const struct job_extent *extent, struct view *view, struct failure *failure)
{
    CUmemAllocationProp prop = device_memory();
    CUmemGenericAllocationHandle handle;
    uint64_t size = 0;

    *view = (struct view){.size = extent->size, .on_device = true};
    if (check_size(extent->size, failure) || create_handle(&prop, extent->size, &size, &handle, failure))
        return failure->error;
    if (size == extent->size)
        return map_handle(extent, handle, view, failure);
    driver_note("cuMemRelease", driver.MemRelease(handle));
    return fail(failure, HBM_E_BAD_REQUEST, "an extent here has %llu bytes, not %llu", (unsigned long long)size,
                (unsigned long long)extent->size);
}

/* On an H200, driver 580.159.04, a restore of 256 MiB runs at 0.90 of one pinned copy with two, at 0.83 with none
 * (OFFLOAD_MIB=256 ONLY=offload make bench-gpu, 2026-11-30). */
unsigned device_make_chunks(void)
{
    return 2;
}

int device_share(struct view *view, int *fd, struct failure *failure)
{
    return export_handle(view->handle, fd, failure);
}

int device_create(const struct job_create_request *request, struct job_create_reply *reply, int *fd,
                  struct failure *failure)
{
    CUmemAllocationProp prop = device_memory();

    if (request->kind == JOB_EXTENT_HOST)
        return create_host(request, &reply->size, fd, failure);
    if (check_size(request->size, failure))
        return failure->error;
    if (request->kind == JOB_EXTENT_CUDA_IPC)
        return block_create(request->size, reply, failure);
    return create_shared(&prop, request->size, &reply->size, fd, failure);
}
