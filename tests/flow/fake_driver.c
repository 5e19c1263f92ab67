/* Stands in for libcuda.so.1 and libnvidia-ml.so.1 in front of hbmctl doctor: two GPUs, or what HBM_FAKE_DRIVER
 * says is wrong: uninit (cuInit fails), old, vmm (none), exclusive, apart (no P2P), persistence (off), mig (on). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is(const char *what)
{
    const char *wrong = getenv("HBM_FAKE_DRIVER");

    return wrong && !strcmp(wrong, what);
}

int cuInit(unsigned flags)
{
    return flags || is("uninit") ? 803 : 0;
}
int cuDriverGetVersion(int *version)
{
    return *version = is("old") ? 11080 : 13000, 0;
}
int cuDeviceGetCount(int *count)
{
    return *count = 2, 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    return *device = ordinal, 0;
}
int cuDeviceGetName(char *name, int size, int device)
{
    return snprintf(name, (size_t)size, "Fake %d", device), 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    return *can = !is("apart") && device != peer, 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 20 ? 3 * is("exclusive") : !is("vmm");
    return 0;
}

int nvmlInit_v2(void)
{
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count)
{
    return *count = 2, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu)
{
    return *gpu = (char *)8 + index, 0;
}
int nvmlDeviceGetPersistenceMode(void *gpu, int *mode)
{
    return *mode = gpu && !is("persistence"), 0;
}
int nvmlDeviceGetMigMode(void *gpu, unsigned *now, unsigned *pending)
{
    return *now = *pending = gpu && is("mig"), 0;
}
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *active)
{
    return *active = gpu && link < 4, 0;
}
