#include "client/lib/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/lib/error.h"

#define DEVICES_MAX 64

static struct cuda_driver driver;
static bool usable;
static char why_not[256];

static const struct {
    const char *symbol;
    size_t offset;
} functions[] = {
#define FUNCTION(field, symbol, arguments) {symbol, offsetof(struct cuda_driver, field)},
    CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *name = "?";

    if (!library) {
        snprintf(why_not, sizeof(why_not), "libcuda.so.1 cannot be loaded");
        return;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(library, functions[i].symbol);
        if (!function) {
            snprintf(why_not, sizeof(why_not), "libcuda.so.1 is too old: it has no %s", functions[i].symbol);
            return;
        }
        *(void **)((char *)&driver + functions[i].offset) = function;
    }
    CUresult result = driver.init(0);
    if (result) {
        driver.error_name(result, &name);
        snprintf(why_not, sizeof(why_not), "cuInit: %s", name);
        return;
    }
    usable = true;
}

const struct cuda_driver *cuda_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    if (!usable) {
        set_error(HBM_E_NO_CUDA, "%s", why_not);
        return NULL;
    }
    return &driver;
}

CUresult cuda_primary(const struct cuda_driver *cuda, CUdevice device, CUcontext *ret)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static CUcontext held[DEVICES_MAX]; /* by ordinal */
    CUresult result = 0;

    if (device < 0 || device >= DEVICES_MAX)
        return cuda->primary_retain(ret, device);
    pthread_mutex_lock(&mutex);
    if (!held[device])
        result = cuda->primary_retain(&held[device], device);
    *ret = held[device];
    pthread_mutex_unlock(&mutex);
    return result;
}

int set_cuda_error(const char *call, CUresult result)
{
    const char *name = "an unknown error", *sentence = "";

    driver.error_name(result, &name);
    driver.error_string(result, &sentence);
    return set_error(HBM_E_CUDA, "%s: %s (%s)", call, name, sentence);
}
