/* The CUDA driver, found at run time: the worker links and starts on machines without one. Only what the runtime
 * library cannot do goes through here: shareable memory, and questions that must not create a context. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

#include "daemon/worker/failure.h"

#define DRIVER_CALLS(F)                                                                                            \
    F(Init)                                                                                                        \
    F(GetErrorName) F(DeviceGetCount) F(DeviceGet) F(DeviceGetName) F(DeviceGetUuid) F(DeviceTotalMem)             \
        F(DeviceGetAttribute) F(DeviceCanAccessPeer) F(DevicePrimaryCtxGetState) F(MemGetAllocationGranularity) F(MemCreate)              \
            F(MemRelease) F(MemExportToShareableHandle) F(MemImportFromShareableHandle) F(MemAddressReserve)       \
                F(MemAddressFree) F(MemMap) F(MemUnmap) F(MemSetAccess)

struct driver {
#define DRIVER_FIELD(name) __typeof__(cu##name) *name;
    DRIVER_CALLS(DRIVER_FIELD)
#undef DRIVER_FIELD
};

extern struct driver driver;

/* Loads the library and calls cuInit; HBM_E_NO_CUDA where there is no driver. Before any other use. */
int driver_load(struct failure *failure);
/* An attribute of device 0; 0 if the driver does not know it. */
int driver_attribute(CUdevice_attribute attribute);
/* "GPU-8-4-4-4-12" of a device. */
void driver_uuid_text(const CUuuid *uuid, char text[HBM_UUID_MAX]);
