/* GPU memory by the driver. A vmm arena is imported from its fd and mapped into an address range that stays
 * reserved while the arena is away; a cuda-ipc arena is opened once and never moves while leased.
 *
 * The owning device is found by UUID, since CUDA_VISIBLE_DEVICES may have renumbered it. If the calling thread's
 * current device is another one that can reach it, that one gets access as well. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/backend.h"
#include "client/lib/cuda_place.h"
#include "client/lib/error.h"

static bool uuid_matches(const CUuuid *uuid, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    char hex[33];
    unsigned n = 0;

    for (size_t i = 0; i < 16; i++) {
        hex[2 * i] = digits[uuid->bytes[i] >> 4];
        hex[2 * i + 1] = digits[uuid->bytes[i] & 15];
    }
    /* "GPU-" or "MIG-", then 32 digits with dashes between. */
    for (text += strnlen(text, 4); *text; text++)
        if (*text != '-' && (n == 32 || (*text | 0x20) != hex[n++]))
            return false;
    return n == 32;
}

static int find_device(const struct cuda_driver *cuda, const char *uuid, CUdevice *device)
{
    int count = 0;
    CUuuid one;

    CUresult result = cuda->device_count(&count);
    if (result)
        return set_cuda_error("cuDeviceGetCount", result);
    for (int i = 0; i < count; i++)
        if (!cuda->device_get(device, i) && !cuda->device_uuid(&one, *device) && uuid_matches(&one, uuid))
            return 0;
    return set_error(HBM_E_NO_CUDA, "%s is not among the %d GPUs that this process sees", uuid, count);
}

bool cuda_is(int ordinal, const char *uuid)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUdevice device;
    CUuuid one;

    return cuda && !cuda->device_get(&device, ordinal) && !cuda->device_uuid(&one, device) && uuid_matches(&one, uuid);
}

static void choose_access(const struct cuda_driver *cuda, struct cuda_place *place, bool writable)
{
    int flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    CUdevice current = place->device;
    int can = 0;

    place->access[place->n_access++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, place->device}, flags};
    if (!place->primary && cuda->context_device(&current) == 0 && current != place->device &&
        cuda->can_access_peer(&can, current, place->device) == 0 && can)
        place->access[place->n_access++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, current}, flags};
}

static void forget(struct place *place)
{
    free(place->cuda);
    place->cuda = NULL;
}

/* Finds the device, once a place. */
static int prepare(const struct cuda_driver *cuda, struct place *place)
{
    if (place->cuda)
        return 0;
    place->cuda = calloc(1, sizeof(*place->cuda));
    if (!place->cuda)
        return set_system_error("malloc", ENOMEM);
    int error = find_device(cuda, place->uuid, &place->cuda->device);
    if (error)
        forget(place);
    return error;
}

/* A context, at the first mapping: reserving addresses needs none, and making one takes a fifth of a second. */
static int prepare_context(const struct cuda_driver *cuda, struct place *place)
{
    int error = prepare(cuda, place);
    CUresult result;

    if (error || place->cuda->context)
        return error;
    if ((result = cuda->context_current(&place->cuda->context)) != 0)
        return set_cuda_error("cuCtxGetCurrent", result);
    if (!place->cuda->context) {
        result = cuda_primary(cuda, place->cuda->device, &place->cuda->context);
        if (result)
            return set_cuda_error("cuDevicePrimaryCtxRetain", result);
        place->cuda->primary = true;
    }
    choose_access(cuda, place->cuda, place->access == HBM_RW);
    return 0;
}

static CUdeviceptr address_of(const struct place *place)
{
    return (CUdeviceptr)(uintptr_t)place->address;
}

static int vmm_reserve(struct place *place)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUdeviceptr address = 0;

    if (!cuda)
        return HBM_E_NO_CUDA;
    int error = prepare(cuda, place);
    if (error)
        return error;
    CUresult result = cuda->reserve(&address, place->size, 0, 0, 0);
    if (result)
        return set_cuda_error("cuMemAddressReserve", result);
    place->address = (void *)(uintptr_t)address;
    return 0;
}

/* A live move's reader stood still for 36.7 ms a GiB where host memory was mapped for the CPU as well, for 13.1
 * where it is not (H200, driver 580.159.04, 2026-11-30; live_bench). Copies from and to it go over the GPU all the
 * same. */
static CUresult set_access(const struct cuda_driver *cuda, const struct place *place, bool cpu)
{
    CUmemAccessDesc access[3] = {place->cuda->access[0], place->cuda->access[1]};
    unsigned n = place->cuda->n_access;

    if (cpu)
        access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, access[0].flags};
    return cuda->set_access(address_of(place), place->size, access, n);
}

static int vmm_map(struct place *place, int fd)
{
    CUmemGenericAllocationHandle handle;
    const struct cuda_driver *cuda = cuda_driver();

    int error = place->address ? 0 : vmm_reserve(place);
    if (!error)
        error = prepare_context(cuda, place);
    if (error)
        return error;
    CUresult result = cuda->import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result)
        return set_cuda_error("cuMemImportFromShareableHandle", result);
    result = cuda->map(address_of(place), place->size, 0, handle, 0);
    cuda->release(handle); /* the mapping keeps the memory */
    if (result)
        return set_cuda_error("cuMemMap", result);
    result = set_access(cuda, place, place->host && place->in_place);
    if (result && place->host && place->in_place)
        result = set_access(cuda, place, false); /* the GPU's is what matters */
    if (result) {
        cuda->unmap(address_of(place), place->size);
        return set_cuda_error("cuMemSetAccess", result);
    }
    place->mapped = true;
    return 0;
}

static int vmm_unmap(struct place *place)
{
    CUresult result = cuda_driver()->unmap(address_of(place), place->size);

    if (result)
        return set_cuda_error("cuMemUnmap", result);
    place->mapped = false;
    return 0;
}

static void vmm_release(struct place *place)
{
    const struct cuda_driver *cuda = cuda_driver();

    if (!cuda)
        return;
    if (place->mapped)
        vmm_unmap(place);
    if (place->address && !place->mapped)
        cuda->address_free(address_of(place), place->size);
    place->address = NULL;
    cuda_drop_fences(cuda, place);
    forget(place);
}

static int ipc_reserve(struct place *place)
{
    (void)place;
    return set_error(HBM_E_UNSUPPORTED, "a cuda-ipc buffer has no address before it is mapped");
}

static int ipc_map(struct place *place, int fd)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUipcMemHandle handle;
    CUdeviceptr address = 0;

    (void)fd;
    if (!cuda)
        return HBM_E_NO_CUDA;
    int error = prepare_context(cuda, place);
    if (error)
        return error;
    memcpy(handle.reserved, place->ipc_handle, sizeof(handle.reserved));
    CUcontext old = cuda_enter(cuda, place->cuda->context);
    CUresult result = cuda->ipc_open(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    cuda_enter(cuda, old);
    if (result)
        return set_cuda_error("cuIpcOpenMemHandle", result);
    place->address = (void *)(uintptr_t)address;
    place->mapped = true;
    return 0;
}

static int ipc_unmap(struct place *place)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext old = cuda_enter(cuda, place->cuda->context);
    CUresult result = cuda->ipc_close(address_of(place));

    cuda_enter(cuda, old);
    if (result)
        return set_cuda_error("cuIpcCloseMemHandle", result);
    place->address = NULL;
    place->mapped = false;
    return 0;
}

static void ipc_release(struct place *place)
{
    const struct cuda_driver *cuda = cuda_driver();

    if (!cuda)
        return;
    if (place->mapped)
        ipc_unmap(place);
    cuda_drop_fences(cuda, place);
    forget(place);
}

const struct backend backend_cuda = {
    .reserve = vmm_reserve,
    .map = vmm_map,
    .unmap = vmm_unmap,
    .release = vmm_release,
    .fence = cuda_fence,
    .wait = cuda_wait,
    .check_stream = cuda_check_stream,
    .hold_back = cuda_hold_back,
};

const struct backend backend_cuda_ipc = {
    .reserve = ipc_reserve,
    .map = ipc_map,
    .unmap = ipc_unmap,
    .release = ipc_release,
    .fence = cuda_fence,
    .wait = cuda_wait,
};
