/* The CUDA driver for the measurements beside ours: libhbm's table, and what only a maker of memory needs. */
#pragma once

#include <dlfcn.h>

#include "client/lib/cuda_driver.h"
#include "tests/bench/bench.h"

typedef struct {
    int type; /* CU_MEM_ALLOCATION_TYPE_PINNED */
    int handle_types;
    CUmemLocation location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} CUmemAllocationProp;

static struct {
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*attribute)(int *, int, CUdevice);
    CUresult (*export)(void *, CUmemGenericAllocationHandle, int, unsigned long long);
    CUresult (*host_alloc)(void **, size_t, unsigned);
    CUresult (*host_free)(void *);
    CUresult (*mem_alloc)(CUdeviceptr *, size_t);
    CUresult (*mem_free)(CUdeviceptr);
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*down)(void *, CUdeviceptr, size_t, CUstream);
    CUresult (*up)(CUdeviceptr, const void *, size_t, CUstream);
    CUresult (*within)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
} driver_more;

static inline void driver_must(CUresult result, const char *what)
{
    if (!result)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    exit(1);
}

static inline void *driver_symbol(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol = library ? dlsym(library, name) : NULL;

    if (!symbol)
        fprintf(stderr, "libcuda has no %s\n", name), exit(1);
    return symbol;
}

/* With the first device's primary context current: what it costs to make one is no part of what is measured. */
static inline const struct cuda_driver *driver_open(void)
{
    const struct cuda_driver *driver = cuda_driver();
    CUcontext context;
    CUdevice device;

    if (!driver)
        bench_must(HBM_E_NO_CUDA, "cuda_driver");
    driver_must(driver->device_get(&device, 0), "cuDeviceGet");
    driver_must(driver->primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    driver_must(driver->context_set(context), "cuCtxSetCurrent");
    *(void **)&driver_more.create = driver_symbol("cuMemCreate");
    *(void **)&driver_more.attribute = driver_symbol("cuDeviceGetAttribute");
    *(void **)&driver_more.export = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&driver_more.host_alloc = driver_symbol("cuMemHostAlloc");
    *(void **)&driver_more.host_free = driver_symbol("cuMemFreeHost");
    *(void **)&driver_more.mem_alloc = driver_symbol("cuMemAlloc_v2");
    *(void **)&driver_more.mem_free = driver_symbol("cuMemFree_v2");
    *(void **)&driver_more.stream_create = driver_symbol("cuStreamCreate");
    *(void **)&driver_more.down = driver_symbol("cuMemcpyDtoHAsync_v2");
    *(void **)&driver_more.up = driver_symbol("cuMemcpyHtoDAsync_v2");
    *(void **)&driver_more.within = driver_symbol("cuMemcpyDtoDAsync_v2");
    return driver;
}

static inline int driver_export_of(const struct cuda_driver *driver, size_t size, const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;
    int fd = -1;

    if (driver_more.create(&handle, size, prop, 0))
        return -1;
    driver_must(driver_more.export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
    driver_must(driver->release(handle), "cuMemRelease");
    return fd;
}

/* An allocation of device 0 that nobody maps, as a POSIX fd. */
static inline int driver_export(const struct cuda_driver *driver, size_t size)
{
    CUmemAllocationProp prop = {1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};

    prop.flags.rdma = 1; /* as the daemon's, where the device has it */
    int fd = driver_export_of(driver, size, &prop);
    prop.flags.rdma = 0;
    if (fd < 0 && (fd = driver_export_of(driver, size, &prop)) < 0)
        fprintf(stderr, "cuMemCreate of %zu bytes fails\n", size), exit(1);
    return fd;
}

/* The same of pinned host memory on device 0's node. */
static inline int driver_export_host(const struct cuda_driver *driver, size_t size)
{
    CUmemAllocationProp prop = {1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, NULL, {0}};
    CUdevice device;

    driver_must(driver->device_get(&device, 0), "cuDeviceGet");
    if (driver_more.attribute(&prop.location.id, 134 /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */, device) || prop.location.id < 0)
        prop.location.id = 0; /* a machine without NUMA has one node */
    int fd = driver_export_of(driver, size, &prop);
    if (fd < 0)
        fprintf(stderr, "cuMemCreate of %zu bytes of host memory fails\n", size), exit(1);
    return fd;
}

/* Import, reserve, map, set access: what every attach has to do. */
static inline CUdeviceptr driver_map(const struct cuda_driver *driver, int fd, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;

    driver_must(driver->import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle");
    driver_must(driver->reserve(&address, size, 0, 0, 0), "cuMemAddressReserve");
    driver_must(driver->map(address, size, 0, handle, 0), "cuMemMap");
    driver_must(driver->set_access(address, size, &access, 1), "cuMemSetAccess");
    driver_must(driver->release(handle), "cuMemRelease");
    return address;
}

static inline void driver_unmap(const struct cuda_driver *driver, CUdeviceptr address, size_t size)
{
    driver_must(driver->unmap(address, size), "cuMemUnmap");
    driver_must(driver->address_free(address, size), "cuMemAddressFree");
}
