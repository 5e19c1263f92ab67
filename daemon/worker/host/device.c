/* The host as a device: what it is and how full. It has no context, no streams, and no processes to wait for. */
#include "daemon/worker/device.h"

#include <string.h>
#include <unistd.h>

#include "daemon/worker/meminfo.h"

void device_probe(FILE *out)
{
    fprintf(out, "host\thost memory\t%llu\n", (unsigned long long)meminfo_bytes("MemTotal"));
}

/* "host", "host-1", ...: parts of one memory. */
static bool is_host(const char *uuid)
{
    return !strncmp(uuid, "host", 4) &&
           (!uuid[4] || (uuid[4] == '-' && uuid[5] && strspn(uuid + 5, "0123456789") == strlen(uuid + 5)));
}

int device_start(const struct job_start_request *request, struct job_start_reply *reply, struct failure *failure)
{
    if (!is_host(request->uuid))
        return fail(failure, HBM_E_NO_DEVICE, "%s is not served by hbm-worker, only \"host\" and \"host-N\" are",
                    request->uuid);
    snprintf(reply->name, sizeof(reply->name), "host memory");
    reply->total_bytes = meminfo_bytes("MemTotal");
    reply->free_bytes = meminfo_bytes("MemAvailable");
    reply->can_fd = 1;
    reply->granularity = (uint64_t)sysconf(_SC_PAGESIZE);
    reply->reaches = UINT64_MAX; /* it is all one memory */
    return 0;
}

int device_query(struct job_query_reply *reply, struct failure *failure)
{
    (void)failure;
    reply->total_bytes = meminfo_bytes("MemTotal");
    reply->free_bytes = meminfo_bytes("MemAvailable");
    reply->used_bytes = reply->total_bytes - reply->free_bytes;
    return 0; /* whose that is, nobody tells */
}

int device_clients(const struct job_clients_request *request, struct job_clients_reply *reply,
                   struct failure *failure)
{
    (void)request, (void)failure;
    reply->n = 0;
    return 0;
}

int device_enter(struct failure *failure)
{
    (void)failure;
    return 0;
}

void device_leave(void)
{
}

bool device_spoilt(void)
{
    return false;
}

void device_pin(void *bytes, size_t size)
{
    (void)bytes, (void)size;
}

void device_unpin(void *bytes)
{
    (void)bytes;
}
