/* --probe: MIG instances as NVML names them, since CUDA shows only the first; every other GPU as CUDA shows it. */
#include <string.h>

#include "daemon/worker/cuda/driver.h"
#include "daemon/worker/cuda/nvml.h"
#include "daemon/worker/device.h"

#define SEEN_MAX 128

struct probe {
    FILE *out;
    char seen[SEEN_MAX][HBM_UUID_MAX];
    unsigned n_seen;
};

static void print(struct probe *probe, const char *uuid, const char *name, uint64_t bytes)
{
    fprintf(probe->out, "%s\t%s\t%llu\n", uuid, name, (unsigned long long)bytes);
}

static void found_mig(const char *uuid, const char *name, uint64_t bytes, void *context)
{
    struct probe *probe = context;

    if (strlen(uuid) >= HBM_UUID_MAX || probe->n_seen == SEEN_MAX)
        return;
    memcpy(probe->seen[probe->n_seen++], uuid, strlen(uuid) + 1);
    print(probe, uuid, name, bytes);
}

/* CUDA gives a MIG instance's UUID without saying that it is one: compare what follows GPU- or MIG-. */
static bool seen(const struct probe *probe, const char *uuid)
{
    for (unsigned i = 0; i < probe->n_seen; i++)
        if (!strcmp(probe->seen[i] + 4, uuid + 4))
            return true;
    return false;
}

void device_probe(FILE *out)
{
    static struct probe probe;
    struct failure failure = {0};
    int count = 0;

    probe.out = out;
    nvml_each_mig(found_mig, &probe);
    if (driver_load(&failure) || driver.DeviceGetCount(&count))
        return;
    for (int i = 0; i < count; i++) {
        char name[96], uuid_text[HBM_UUID_MAX];
        CUuuid uuid;
        size_t bytes = 0;

        if (driver.DeviceGetUuid(&uuid, i) || driver.DeviceGetName(name, sizeof(name), i) ||
            driver.DeviceTotalMem(&bytes, i))
            continue;
        driver_uuid_text(&uuid, uuid_text);
        if (!seen(&probe, uuid_text))
            print(&probe, uuid_text, name, bytes);
    }
}
