/* The part of the CUDA driver that libhbm calls, declared here so that it builds without CUDA and loads at run
 * time. Symbols are looked up by their versioned names, whose signatures never change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct {
    unsigned char bytes[16];
} CUuuid;
typedef struct {
    char reserved[64];
} CUipcMemHandle;
typedef struct {
    int type; /* CU_MEM_LOCATION_TYPE_... */
    int id;
} CUmemLocation;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

enum {
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_DEVICEMAP = 2,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
};

/* FUNCTION(field, symbol, arguments) */
#define CUDA_FUNCTIONS(FUNCTION)                                                                                   \
    FUNCTION(init, "cuInit", (unsigned))                                                                           \
    FUNCTION(error_name, "cuGetErrorName", (CUresult, const char **))                                              \
    FUNCTION(error_string, "cuGetErrorString", (CUresult, const char **))                                          \
    FUNCTION(device_count, "cuDeviceGetCount", (int *))                                                            \
    FUNCTION(device_get, "cuDeviceGet", (CUdevice *, int))                                                         \
    FUNCTION(device_uuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice))                                              \
    FUNCTION(can_access_peer, "cuDeviceCanAccessPeer", (int *, CUdevice, CUdevice))                                \
    FUNCTION(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                  \
    FUNCTION(context_current, "cuCtxGetCurrent", (CUcontext *))                                                    \
    FUNCTION(context_set, "cuCtxSetCurrent", (CUcontext))                                                          \
    FUNCTION(context_device, "cuCtxGetDevice", (CUdevice *))                                                       \
    FUNCTION(import, "cuMemImportFromShareableHandle", (CUmemGenericAllocationHandle *, void *, int))              \
    FUNCTION(reserve, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))     \
    FUNCTION(address_free, "cuMemAddressFree", (CUdeviceptr, size_t))                                              \
    FUNCTION(map, "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))     \
    FUNCTION(unmap, "cuMemUnmap", (CUdeviceptr, size_t))                                                           \
    FUNCTION(set_access, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                 \
    FUNCTION(release, "cuMemRelease", (CUmemGenericAllocationHandle))                                              \
    FUNCTION(ipc_open, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcMemHandle, unsigned))                         \
    FUNCTION(ipc_close, "cuIpcCloseMemHandle", (CUdeviceptr))                                                      \
    FUNCTION(event_create, "cuEventCreate", (CUevent *, unsigned))                                                 \
    FUNCTION(event_record, "cuEventRecord", (CUevent, CUstream))                                                   \
    FUNCTION(event_query, "cuEventQuery", (CUevent))                                                               \
    FUNCTION(event_synchronize, "cuEventSynchronize", (CUevent))                                                   \
    FUNCTION(event_destroy, "cuEventDestroy_v2", (CUevent))                                                        \
    FUNCTION(stream_synchronize, "cuStreamSynchronize", (CUstream))                                                \
    FUNCTION(stream_is_capturing, "cuStreamIsCapturing", (CUstream, int *))                                        \
    FUNCTION(stream_wait_value, "cuStreamWaitValue32_v2", (CUstream, CUdeviceptr, uint32_t, unsigned))             \
    FUNCTION(host_register, "cuMemHostRegister_v2", (void *, size_t, unsigned))                                    \
    FUNCTION(host_address, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *, void *, unsigned))                      \
    FUNCTION(memset_d8, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t))                                     \
    FUNCTION(copy_from_device, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                   \
    FUNCTION(copy_to_device, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))

struct cuda_driver {
#define FUNCTION(field, symbol, arguments) CUresult(*field) arguments;
    CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

/* Loaded and initialised at the first call; NULL with the error set (HBM_E_NO_CUDA) where that fails. */
const struct cuda_driver *cuda_driver(void);
/* The device's primary context, for a process that has none of its own current. Held until the process ends: making
 * one takes a fifth of a second, too long for each attach. */
CUresult cuda_primary(const struct cuda_driver *cuda, CUdevice device, CUcontext *ret);
/* HBM_E_CUDA: "CALL: CUDA_ERROR_NAME (its sentence)". */
int set_cuda_error(const char *call, CUresult result);
