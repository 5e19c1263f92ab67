/* The GPU: which one it is, how full it is, who uses it. No call here creates a context. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/cuda/context.h"
#include "daemon/worker/cuda/driver.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"
#include "daemon/worker/cuda/nvml.h"
#include "daemon/worker/device.h"

static char served[HBM_UUID_MAX];
static uint64_t total_bytes;

static int check_uuid(const char *uuid, struct failure *failure)
{
    /* Indexes and lists would pass for CUDA_VISIBLE_DEVICES, too, and mean another device on another day. */
    if ((strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4)) || strchr(uuid, ','))
        return fail(failure, HBM_E_NO_DEVICE, "\"%s\" is no UUID of a GPU or MIG instance", uuid);
    return 0;
}

/* Itself first: what this process calls device 0. The memory of others can be mapped only if they are seen here; of MIG
 * instances CUDA shows one, and none reaches another's memory. */
static void show_devices(const struct job_start_request *request)
{
    char list[HBM_UUID_MAX + JOB_PEERS_TEXT];
    bool alone = !*request->peers || !strncmp(request->uuid, "MIG-", 4) || strstr(request->peers, "MIG-");

    snprintf(list, sizeof(list), "%s%s%s", request->uuid, alone ? "" : ",", alone ? "" : request->peers);
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

/* Bit n: the memory of the n-th of the list can be mapped for device 0. */
static uint64_t reached(const char *peers)
{
    char list[JOB_PEERS_TEXT], *rest = list, *word;
    uint64_t mask = 0;
    int devices = 0;

    snprintf(list, sizeof(list), "%s", peers);
    if (driver.DeviceGetCount(&devices))
        return 0;
    for (unsigned n = 0; (word = strsep(&rest, ",")); n++)
        for (int i = 1; i < devices; i++) {
            char text[HBM_UUID_MAX];
            int can = 0;
            CUuuid uuid;

            if (driver.DeviceGetUuid(&uuid, i) || driver.DeviceCanAccessPeer(&can, 0, i) || !can)
                continue;
            driver_uuid_text(&uuid, text);
            mask |= strcmp(text, word) ? 0 : UINT64_C(1) << n;
        }
    return mask;
}

int device_start(const struct job_start_request *request, struct job_start_reply *reply, struct failure *failure)
{
    struct nvml_memory memory;
    size_t bytes = 0;

    if (check_uuid(request->uuid, failure))
        return failure->error;
    show_devices(request);
    if (driver_load(failure) ||
        driver_check(failure, "cuDeviceGetName", driver.DeviceGetName(reply->name, sizeof(reply->name), 0)) ||
        driver_check(failure, "cuDeviceTotalMem", driver.DeviceTotalMem(&bytes, 0)))
        return failure->error;
    memcpy(served, request->uuid, sizeof(served));
    total_bytes = bytes;
    context_start(request->idle_ms);
    reply->total_bytes = bytes;
    reply->free_bytes = nvml_memory(served, &memory) && memory.free < bytes ? memory.free : bytes;
    reply->can_fd = driver_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
                    driver_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    reply->can_cuda_ipc = 1;
    reply->rdma = driver_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    reply->reaches = reached(request->peers);
    if (!nvml_minor(served, &reply->ordinal))
        reply->ordinal = 0;
    return extent_granularity(&reply->granularity, failure);
}

static void list_holder(unsigned pid, uint64_t bytes, void *context)
{
    struct job_query_reply *reply = context;

    if (reply->n < sizeof(reply->holders) / sizeof(reply->holders[0]))
        reply->holders[reply->n] = (struct job_holder){.pid = pid, .bytes = bytes};
    reply->n++;
}

int device_query(struct job_query_reply *reply, struct failure *failure)
{
    struct nvml_memory memory;
    uint64_t free_now = 0;
    unsigned flags = 0;
    int active = 0;

    if (driver_check(failure, "cuDevicePrimaryCtxGetState", driver.DevicePrimaryCtxGetState(0, &flags, &active)))
        return failure->error;
    reply->has_context = active != 0;
    reply->total_bytes = reply->free_bytes = total_bytes;
    if (nvml_memory(served, &memory)) {
        reply->free_bytes = memory.free < total_bytes ? memory.free : total_bytes;
        reply->used_bytes = memory.used;
    } else if (context_free_bytes(&free_now)) {
        reply->free_bytes = free_now;
        reply->used_bytes = total_bytes - free_now;
    }
    reply->tells_holders = nvml_each_holder(served, list_holder, reply);
    return 0;
}

struct listing {
    const struct job_clients_request *asked;
    struct job_clients_reply *reply;
};

static void list_if_asked(unsigned pid, uint64_t bytes, void *context)
{
    struct listing *l = context;

    (void)bytes;
    for (uint32_t i = 0; i < l->reply->n; i++)
        if (l->reply->pids[i] == pid)
            return; /* on another GPU as well */
    for (uint32_t i = 0; i < l->asked->n; i++)
        if (l->asked->pids[i] == pid) {
            l->reply->pids[l->reply->n++] = pid;
            return;
        }
}

int device_clients(const struct job_clients_request *request, struct job_clients_reply *reply,
                   struct failure *failure)
{
    struct listing listing = {.asked = request, .reply = reply};

    reply->n = 0;
    if (nvml_each_process(list_if_asked, &listing))
        return 0;
    return fail(failure, HBM_E_UNSUPPORTED, "NVML does not tell which processes are on the GPUs: is libnvidia-ml.so.1 here?");
}
