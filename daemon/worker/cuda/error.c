#include "daemon/worker/cuda/error.h"

#include <stdatomic.h>

#include "daemon/base/log.h"
#include "daemon/worker/cuda/driver.h"
#include "daemon/worker/device.h"

/* CUresult and cudaError_t share these numbers. */
static const struct cause {
    int code;
    int error;
    bool spoils; /* sticky: every later call of this process would return it too */
    const char *why;
} causes[] = {
    {2, HBM_E_NO_MEMORY, false, "too little memory is free there"},
    {46, HBM_E_DEVICE_LOST, false, "the device is in exclusive use or in a bad state"},
    {100, HBM_E_NO_DEVICE, false, "no device of that UUID is visible to this process"},
    {101, HBM_E_NO_DEVICE, false, "no device of that UUID is visible to this process"},
    {214, HBM_E_CUDA, true, "an uncorrectable memory error (ECC) was met"},
    {220, HBM_E_CUDA, true, "an uncorrectable NVLink error was met"},
    {226, HBM_E_CUDA, true, "a contained memory error was met"},
    {304, HBM_E_SYSTEM, false, "an operating system call of the driver failed"},
    {700, HBM_E_CUDA, true, "a kernel or copy used an address that is not mapped"},
    {702, HBM_E_CUDA, true, "a kernel ran longer than the device allows"},
    {709, HBM_E_CUDA, true, "the context is gone"},
    {710, HBM_E_CUDA, true, "a kernel stopped at an assertion"},
    {714, HBM_E_CUDA, true, "a kernel met a stack error"},
    {715, HBM_E_CUDA, true, "a kernel met an illegal instruction"},
    {716, HBM_E_CUDA, true, "a kernel used an address that is not aligned"},
    {717, HBM_E_CUDA, true, "a kernel used an address in the wrong space"},
    {718, HBM_E_CUDA, true, "a kernel's program counter left its code"},
    {719, HBM_E_CUDA, true, "a kernel died"},
    {721, HBM_E_CUDA, true, "a kernel left tensor memory behind"},
    {800, HBM_E_CUDA, false, "the driver does not permit that here"},
    {801, HBM_E_UNSUPPORTED, false, "this device or driver cannot do that"},
    {802, HBM_E_DEVICE_LOST, false, "the device is not ready yet: is nvidia-fabricmanager running?"},
    {803, HBM_E_NO_CUDA, false, "the driver's library and kernel module differ in version"},
    {999, HBM_E_DEVICE_LOST, true, "the driver does not know why"},
};

static atomic_bool spoilt;

bool device_spoilt(void)
{
    return atomic_load(&spoilt);
}

static const struct cause *cause_of(int code)
{
    static const struct cause other = {0, HBM_E_CUDA, false, "no further cause is known"};

    for (unsigned i = 0; i < sizeof(causes) / sizeof(causes[0]); i++)
        if (causes[i].code == code) {
            if (causes[i].spoils)
                atomic_store(&spoilt, true);
            return &causes[i];
        }
    return &other;
}

static const char *driver_name(CUresult result)
{
    const char *name = NULL;

    return driver.GetErrorName && !driver.GetErrorName(result, &name) && name ? name : "unknown error";
}

int driver_check(struct failure *failure, const char *call, CUresult result)
{
    if (!result)
        return 0;
    const struct cause *cause = cause_of((int)result);
    return fail(failure, cause->error, "%s: %s (%d): %s", call, driver_name(result), (int)result, cause->why);
}

int driver_check_argument(struct failure *failure, const char *call, CUresult result, const char *why)
{
    if (!result)
        return 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return driver_check(failure, call, result);
    return fail(failure, HBM_E_CUDA, "%s: %s (%d): %s", call, driver_name(result), (int)result, why);
}

int runtime_check(struct failure *failure, const char *call, cudaError_t result)
{
    if (!result)
        return 0;
    /* The runtime remembers it otherwise, and the next kernel launch would be blamed. */
    (void)cudaGetLastError();
    const struct cause *cause = cause_of((int)result);
    return fail(failure, cause->error, "%s: %s (%d): %s", call, cudaGetErrorName(result), (int)result, cause->why);
}

void runtime_note(const char *call, cudaError_t result)
{
    struct failure failure = {0};

    if (runtime_check(&failure, call, result))
        log_warning("%s", failure.detail);
}

void driver_note(const char *call, CUresult result)
{
    struct failure failure = {0};

    if (driver_check(&failure, call, result))
        log_warning("%s", failure.detail);
}
