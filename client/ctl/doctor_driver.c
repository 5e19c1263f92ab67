/* The NVIDIA driver and its GPUs, through libraries that are looked for only here. No context is made. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/doctor.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

#define CUDA_WANTED 12040 /* cuDriverGetVersion's way of writing 12.4 */
#define NVLINKS_MAX 18
#define GPUS_MAX 64

/* Driver API and NVML, by hand: hbmctl builds and starts without CUDA. */
enum { COMPUTE_MODE = 20, MAJOR = 75, MINOR = 76, VMM = 102, POSIX_FD = 103 };

static struct {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int size, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*reaches)(int *can, int device, int peer);
    int (*error_name)(int error, const char **name);
} cu;

static struct {
    int (*init)(void);
    int (*driver_version)(char *text, unsigned size);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, void **gpu);
    int (*persistence)(void *gpu, int *mode);
    int (*mig_mode)(void *gpu, unsigned *now, unsigned *pending);
    int (*nvlink)(void *gpu, unsigned link, int *active);
} nvml;

struct symbol {
    void *place;
    const char *name;
};

/* What is not there stays NULL; false if that is one of the first `needed`. */
static bool load(const char *file, const struct symbol *symbols, unsigned n, unsigned needed)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

    for (unsigned i = 0; library && i < n; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        memcpy(symbols[i].place, &symbol, sizeof(symbol));
        if (!symbol && i < needed)
            return false;
    }
    return library != NULL;
}

static bool load_cuda(void)
{
    const struct symbol symbols[] = {
        {&cu.init, "cuInit"},
        {&cu.version, "cuDriverGetVersion"},
        {&cu.count, "cuDeviceGetCount"},
        {&cu.get, "cuDeviceGet"},
        {&cu.name, "cuDeviceGetName"},
        {&cu.attribute, "cuDeviceGetAttribute"},
        {&cu.reaches, "cuDeviceCanAccessPeer"},
        {&cu.error_name, "cuGetErrorName"},
    };

    return load("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]),
                sizeof(symbols) / sizeof(symbols[0]));
}

static bool load_nvml(void)
{
    const struct symbol symbols[] = {
        {&nvml.init, "nvmlInit_v2"},
        {&nvml.count, "nvmlDeviceGetCount_v2"},
        {&nvml.by_index, "nvmlDeviceGetHandleByIndex_v2"},
        {&nvml.driver_version, "nvmlSystemGetDriverVersion"},
        {&nvml.persistence, "nvmlDeviceGetPersistenceMode"},
        {&nvml.mig_mode, "nvmlDeviceGetMigMode"},
        {&nvml.nvlink, "nvmlDeviceGetNvLinkState"},
    };

    return load("libnvidia-ml.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), 3) && nvml.init() == 0;
}

/* ---- The driver as a whole ---- */

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..." */
static bool kernel_module(const struct doctor *doctor, char version[64])
{
    char text[512];
    const char *at;

    if (!doctor_read(doctor, "/proc/driver/nvidia/version", text, sizeof(text)))
        return false;
    at = strstr(text, "Kernel Module");
    if (!at || !(at = strpbrk(at, "0123456789")) || sscanf(at, "%63[0-9.]", version) != 1)
        snprintf(version, 64, "unknown");
    return true;
}

static void find_no_library(struct doctor *doctor)
{
    char version[64];

    if (kernel_module(doctor, version))
        doctor_find(doctor, VERDICT_FAILED, "driver",
                    "install libcuda1 of that version; in a container pass the GPU with the driver's libraries "
                    "(--gpus, NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
                    "the kernel module is of %s, and libcuda.so.1 is missing or too old", version);
    else if (doctor_there(doctor, "/dev/nvidiactl"))
        doctor_find(doctor, VERDICT_FAILED, "driver", "install the NVIDIA driver's libraries here",
                    "/dev/nvidiactl is here, libcuda.so.1 is not");
    else
        doctor_find(doctor, VERDICT_NOTE, "driver", "with a GPU: install the NVIDIA driver, for CUDA 12.4 or newer",
                    "no NVIDIA driver is here: host memory is the device");
}

/* False where no GPU can be looked at. */
static bool judge_driver(struct doctor *doctor)
{
    char module[64] = "unknown";
    const char *name = "an error without a name";
    int version = 0, error = cu.init(0), n = 0;

    kernel_module(doctor, module);
    if (!error)
        error = cu.count(&n);
    if (error) {
        cu.error_name(error, &name);
        _cleanup_free_ char *fix = text_new("see `hbmctl doctor --explain %d`", error);
        doctor_find(doctor, VERDICT_FAILED, "driver", fix ? fix : "",
                    "libcuda.so.1 is here (kernel module %s) and says %s", module, name);
        return false;
    }
    cu.version(&version);
    if (version < CUDA_WANTED)
        doctor_find(doctor, VERDICT_FAILED, "driver", "install a driver for CUDA 12.4 or newer",
                    "the driver (%s) is for CUDA %d.%d", module, version / 1000, version % 1000 / 10);
    else
        doctor_find(doctor, VERDICT_OK, "driver", "", "%s, for CUDA %d.%d; %d GPU%s", module, version / 1000,
                    version % 1000 / 10, n, n == 1 ? "" : "s");
    if (getenv("CUDA_VISIBLE_DEVICES"))
        doctor_find(doctor, VERDICT_NOTE, "driver", "unset it to look at all",
                    "CUDA_VISIBLE_DEVICES hides GPUs from this command: \"%s\"", getenv("CUDA_VISIBLE_DEVICES"));
    return true;
}

/* ---- Each GPU ---- */

static int attribute(int device, int which)
{
    int value = -1;

    return cu.attribute(&value, which, device) ? -1 : value;
}

static void judge_sharing(struct doctor *doctor, int ordinal, int device)
{
    char name[128] = "a GPU";
    int vmm = attribute(device, VMM), fd = attribute(device, POSIX_FD), mode = attribute(device, COMPUTE_MODE);

    cu.name(name, sizeof(name), device);
    if (vmm == 1 && fd == 1)
        doctor_find(doctor, VERDICT_OK, "VMM", "", "GPU %d (%s, sm_%d%d) shares memory by file descriptor", ordinal,
                    name, attribute(device, MAJOR), attribute(device, MINOR));
    else
        doctor_find(doctor, VERDICT_FAILED, "VMM",
                    "take a driver and platform that have both: bare Linux or a VM with the GPU passed through; no "
                    "WSL, not every vGPU",
                    "GPU %d (%s) has %s%s%s", ordinal, name, vmm == 1 ? "" : "no virtual memory management",
                    vmm != 1 && fd != 1 ? " and " : "", fd == 1 ? "" : "no sharing by POSIX file descriptor");
    if (mode > 0)
        doctor_find(doctor, VERDICT_FAILED, "compute", "nvidia-smi -c DEFAULT",
                    "GPU %d is %s: its worker and its clients cannot all use it", ordinal,
                    mode == 2 ? "closed to compute work" : "for one process at a time");
}

static void judge_peers(struct doctor *doctor, int n)
{
    unsigned reached = 0, pairs = 0;

    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            int a = 0, b = 0, can = 0;
            if (i == j || cu.get(&a, i) || cu.get(&b, j))
                continue;
            pairs++;
            reached += cu.reaches(&can, a, b) == 0 && can;
        }
    }
    if (!pairs)
        return;
    if (reached == pairs)
        doctor_find(doctor, VERDICT_OK, "P2P", "", "each of %d GPUs reaches each other's memory", n);
    else
        doctor_find(doctor, VERDICT_WARNING, "P2P",
                    "nvidia-smi topo -p2p r says which and why; IOMMU and ACS of the host may forbid it",
                    "of %u ways between %d GPUs %u go: `--to peer` and split copies do without the others", pairs,
                    n, reached);
}

static void judge_by_nvml(struct doctor *doctor)
{
    unsigned n = 0;

    nvml.count(&n);
    for (unsigned i = 0; i < n && i < GPUS_MAX; i++) {
        unsigned mig = 0, pending = 0, links = 0;
        int persistent = 1;
        void *gpu;
        if (nvml.by_index(i, &gpu))
            continue;
        if (nvml.persistence && nvml.persistence(gpu, &persistent) == 0)
            doctor_find(doctor, persistent ? VERDICT_OK : VERDICT_WARNING, "persistence",
                        persistent ? "" : "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
                        persistent ? "GPU %u stays initialised"
                                   : "GPU %u is initialised anew whenever nobody uses it, which takes seconds",
                        i);
        if (nvml.mig_mode && nvml.mig_mode(gpu, &mig, &pending) == 0 && (mig || pending))
            doctor_find(doctor, mig == pending ? VERDICT_NOTE : VERDICT_WARNING, "MIG",
                        mig == pending ? "nvidia-smi -L lists the instances" : "reset the GPU, or reboot",
                        mig == pending ? "GPU %u is cut into instances, each of which is a device"
                                       : "GPU %u changes its MIG mode at its next reset",
                        i);
        for (unsigned link = 0; nvml.nvlink && link < NVLINKS_MAX; link++) {
            int active = 0;
            links += nvml.nvlink(gpu, link, &active) == 0 && active;
        }
        if (links || n > 1)
            doctor_find(doctor, VERDICT_OK, "NVLink", "",
                        links ? "GPU %u has %u links up" : "GPU %u has no link up: peers are reached over PCIe", i,
                        links);
    }
}

void doctor_driver(struct doctor *doctor)
{
    int n = 0, device;

    if (!load_cuda()) {
        find_no_library(doctor);
        return;
    }
    if (!judge_driver(doctor))
        return;
    cu.count(&n);
    for (int i = 0; i < n && i < GPUS_MAX; i++)
        if (cu.get(&device, i) == 0)
            judge_sharing(doctor, i, device);
    judge_peers(doctor, n < GPUS_MAX ? n : GPUS_MAX);
    if (load_nvml())
        judge_by_nvml(doctor);
    else
        doctor_find(doctor, VERDICT_WARNING, "NVML",
                    "install libnvidia-ml1 of the driver's version; in a container "
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                    "libnvidia-ml.so.1 is not usable: who has GPU memory, and when a dead client's work has ended, "
                    "is not to be known");
}
