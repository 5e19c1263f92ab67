#include "daemon/worker/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#include "daemon/worker/cuda/error.h"

/* cuda.h renames calls to their current version (cuDeviceTotalMem_v2); the name is expanded before it is quoted. */
#define QUOTE(name) #name
#define SYMBOL(name) QUOTE(name)

struct driver driver;

static int find(void *library, const char *symbol, void **call, struct failure *failure)
{
    *call = dlsym(library, symbol);
    return *call ? 0 : fail(failure, HBM_E_NO_CUDA, "the NVIDIA driver is too old: it has no %s", symbol);
}

int driver_load(struct failure *failure)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

    if (!library)
        return fail(failure, HBM_E_NO_CUDA, "dlopen: %s", dlerror());
#define DRIVER_FIND(name)                                                                                          \
    if (find(library, SYMBOL(cu##name), (void **)&driver.name, failure))                                           \
        return failure->error;
    DRIVER_CALLS(DRIVER_FIND)
#undef DRIVER_FIND
    return driver_check(failure, "cuInit", driver.Init(0));
}

int driver_attribute(CUdevice_attribute attribute)
{
    int value = 0;

    return driver.DeviceGetAttribute(&value, attribute, 0) ? 0 : value;
}

void driver_uuid_text(const CUuuid *uuid, char text[HBM_UUID_MAX])
{
    int at = snprintf(text, HBM_UUID_MAX, "GPU");

    for (unsigned i = 0; i < sizeof(uuid->bytes); i++)
        at += snprintf(text + at, (size_t)(HBM_UUID_MAX - at), "%s%02x",
                       i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", (unsigned char)uuid->bytes[i]);
}
