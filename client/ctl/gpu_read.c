#include "client/ctl/gpu_read.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Driver API, by hand: hbmctl builds and starts without CUDA. */
typedef int cu_result;
typedef int cu_device;
typedef void *cu_context;
struct cu_uuid {
    unsigned char bytes[16];
};

static struct {
    cu_result (*init)(unsigned flags);
    cu_result (*count)(int *count);
    cu_result (*get)(cu_device *device, int ordinal);
    cu_result (*uuid)(struct cu_uuid *uuid, cu_device device);
    cu_result (*retain)(cu_context *context, cu_device device);
    cu_result (*set)(cu_context context);
    cu_result (*copy)(void *to, unsigned long long from, size_t bytes);
    cu_result (*error_string)(cu_result error, const char **text);
} cu;

static const char *load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        void *place;
        const char *name;
    } symbols[] = {
        {&cu.init, "cuInit"},
        {&cu.count, "cuDeviceGetCount"},
        {&cu.get, "cuDeviceGet"},
        {&cu.uuid, "cuDeviceGetUuid_v2"},
        {&cu.retain, "cuDevicePrimaryCtxRetain"},
        {&cu.set, "cuCtxSetCurrent"},
        {&cu.copy, "cuMemcpyDtoH_v2"},
        {&cu.error_string, "cuGetErrorString"},
    };

    if (!library)
        return "libcuda.so.1 is not here";
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return "libcuda.so.1 is too old";
        memcpy(symbols[i].place, &symbol, sizeof(symbol));
    }
    return NULL;
}

static const char *said(cu_result result)
{
    const char *text = NULL;

    if (!result)
        return NULL;
    cu.error_string(result, &text);
    return text ? text : "an unknown CUDA error";
}

/* "GPU-8f0c1a2b-....": the part after the prefix, which is MIG- for a MIG instance. */
static int same_uuid(const struct cu_uuid *uuid, const char *wanted)
{
    const unsigned char *b = uuid->bytes;
    const char *dash = strchr(wanted, '-');
    char text[37];

    snprintf(text, sizeof(text), "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return dash && !strcmp(dash + 1, text);
}

static const char *enter(const char *wanted)
{
    cu_context context;
    struct cu_uuid uuid;
    cu_device device;
    int n = 0;
    const char *error = load_driver();

    if (!error)
        error = said(cu.init(0));
    if (!error)
        error = said(cu.count(&n));
    for (int i = 0; !error && i < n; i++) {
        error = said(cu.get(&device, i));
        if (!error)
            error = said(cu.uuid(&uuid, device));
        if (error || !same_uuid(&uuid, wanted))
            continue;
        error = said(cu.retain(&context, device));
        return error ? error : said(cu.set(context));
    }
    return error ? error : "that GPU is not visible to this process";
}

const char *gpu_read(const char *uuid, void *to, const void *from, size_t bytes)
{
    static char entered[64];

    if (strcmp(entered, uuid)) {
        const char *error = enter(uuid);
        if (error)
            return error;
        snprintf(entered, sizeof(entered), "%s", uuid);
    }
    return said(cu.copy(to, (unsigned long long)(size_t)from, bytes));
}
