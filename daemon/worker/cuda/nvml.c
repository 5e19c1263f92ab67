#include "daemon/worker/cuda/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"

#define SUCCESS 0
#define INSUFFICIENT_SIZE 7
#define PROCESSES_SPARE 16

typedef void *device;
/* nvmlProcessInfo_t of the _v2 and _v3 calls. */
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/* nvmlMemory_t and nvmlMemory_v2_t: the first counts what the driver reserves for itself as used. */
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    struct nvml_memory memory;
};
#define MEMORY_V2 (sizeof(struct memory_v2) | 2u << 24)

static struct {
    bool ready;
    int (*init)(void);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, device *);
    int (*by_uuid)(const char *, device *);
    int (*memory)(device, struct memory *);
    int (*memory_v2)(device, struct memory_v2 *); /* NULL before driver 510 */
    int (*minor)(device, unsigned *);
    int (*mig_mode)(device, unsigned *, unsigned *);
    int (*mig_count)(device, unsigned *);
    int (*mig_by_index)(device, unsigned, device *);
    int (*mig_parent)(device, device *);
    int (*uuid)(device, char *, unsigned);
    int (*name)(device, char *, unsigned);
    int (*processes)(device, unsigned *, struct process *);
} nvml;

static bool find(void *library, const char *symbol, void *call)
{
    *(void **)call = dlsym(library, symbol);
    return *(void **)call;
}

static void load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    if (!library || !find(library, "nvmlInit_v2", &nvml.init) ||
        !find(library, "nvmlDeviceGetCount_v2", &nvml.count) ||
        !find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.by_index) ||
        !find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) ||
        !find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory) ||
        !find(library, "nvmlDeviceGetMinorNumber", &nvml.minor) ||
        !find(library, "nvmlDeviceGetMigMode", &nvml.mig_mode) ||
        !find(library, "nvmlDeviceGetMaxMigDeviceCount", &nvml.mig_count) ||
        !find(library, "nvmlDeviceGetMigDeviceHandleByIndex", &nvml.mig_by_index) ||
        !find(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &nvml.mig_parent) ||
        !find(library, "nvmlDeviceGetUUID", &nvml.uuid) || !find(library, "nvmlDeviceGetName", &nvml.name))
        return;
    /* Both fill the same struct; without either the drivers are older than the worker's CUDA. */
    if (!find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes) &&
        !find(library, "nvmlDeviceGetComputeRunningProcesses_v2", &nvml.processes))
        return;
    find(library, "nvmlDeviceGetMemoryInfo_v2", &nvml.memory_v2);
    nvml.ready = nvml.init() == SUCCESS;
}

static bool ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    return nvml.ready;
}

static bool find_device(const char *uuid, device *gpu)
{
    return ready() && nvml.by_uuid(uuid, gpu) == SUCCESS;
}

static bool memory_of(device gpu, struct nvml_memory *memory)
{
    struct memory_v2 v2 = {.version = MEMORY_V2};
    struct memory v1;

    if (nvml.memory_v2 && nvml.memory_v2(gpu, &v2) == SUCCESS) {
        *memory = v2.memory;
        return true;
    }
    if (nvml.memory(gpu, &v1) != SUCCESS)
        return false;
    *memory = (struct nvml_memory){.total = v1.total, .free = v1.free, .used = v1.used};
    return true;
}

bool nvml_memory(const char *uuid, struct nvml_memory *memory)
{
    device gpu;

    return find_device(uuid, &gpu) && memory_of(gpu, memory);
}

bool nvml_minor(const char *uuid, unsigned *minor)
{
    device gpu, parent;

    if (!find_device(uuid, &gpu))
        return false;
    if (nvml.mig_parent(gpu, &parent) == SUCCESS)
        gpu = parent;
    return nvml.minor(gpu, minor) == SUCCESS;
}

/* Instances that MIG mode cuts `gpu` into; 0 if it is off. */
static unsigned mig_slots(device gpu)
{
    unsigned current = 0, pending = 0, slots = 0;

    if (nvml.mig_mode(gpu, &current, &pending) != SUCCESS || current != 1)
        return 0;
    return nvml.mig_count(gpu, &slots) == SUCCESS ? slots : 0;
}

void nvml_each_mig(void (*found)(const char *uuid, const char *name, uint64_t bytes, void *context), void *context)
{
    unsigned count = 0;
    device gpu, instance;

    if (!ready() || nvml.count(&count) != SUCCESS)
        return;
    for (unsigned i = 0; i < count; i++) {
        unsigned slots = nvml.by_index(i, &gpu) == SUCCESS ? mig_slots(gpu) : 0;

        for (unsigned m = 0; m < slots; m++) {
            char uuid[96], name[96];
            struct nvml_memory memory;

            if (nvml.mig_by_index(gpu, m, &instance) == SUCCESS &&
                nvml.uuid(instance, uuid, sizeof(uuid)) == SUCCESS &&
                nvml.name(instance, name, sizeof(name)) == SUCCESS && memory_of(instance, &memory))
                found(uuid, name, memory.total, context);
        }
    }
}

static bool each_of(device gpu, void (*found)(unsigned pid, uint64_t bytes, void *context), void *context)
{
    _cleanup_free_ struct process *list = NULL;
    unsigned n = 0;
    int result;

    while ((result = nvml.processes(gpu, &n, list)) == INSUFFICIENT_SIZE) {
        n += PROCESSES_SPARE; /* some may start between the two calls */
        free(list);
        list = calloc(n, sizeof(*list));
        if (!list)
            return false;
    }
    for (unsigned i = 0; result == SUCCESS && list && i < n; i++)
        found(list[i].pid, list[i].used, context); /* NVML_VALUE_NOT_AVAILABLE is UINT64_MAX */
    return result == SUCCESS;
}

bool nvml_each_holder(const char *uuid, void (*found)(unsigned pid, uint64_t bytes, void *context), void *context)
{
    device gpu;

    return find_device(uuid, &gpu) && each_of(gpu, found, context);
}

bool nvml_each_process(void (*found)(unsigned pid, uint64_t bytes, void *context), void *context)
{
    unsigned count = 0;
    device gpu, instance;
    bool told = true;

    if (!ready() || nvml.count(&count) != SUCCESS)
        return false;
    for (unsigned i = 0; i < count; i++) {
        if (nvml.by_index(i, &gpu) != SUCCESS)
            continue; /* one that the container does not show */
        /* A GPU in MIG mode may keep its list from us, or its instances' processes: either will do. */
        bool heard = each_of(gpu, found, context);
        for (unsigned m = 0, slots = mig_slots(gpu); m < slots; m++)
            if (nvml.mig_by_index(gpu, m, &instance) == SUCCESS)
                heard |= each_of(instance, found, context);
        told &= heard;
    }
    return told;
}
