/* The kernel, and what is between it and the daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/doctor.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/units.h"

static void judge_wsl(struct doctor *doctor)
{
    char release[256];

    if (doctor_read(doctor, "/proc/sys/kernel/osrelease", release, sizeof(release)) &&
        (strstr(release, "microsoft") || strstr(release, "Microsoft")))
        doctor_find(doctor, VERDICT_FAILED, "WSL",
                    "run hbmd on Linux itself; on WSL `hbmd --device host` serves host memory",
                    "this is WSL, whose driver shares no GPU memory by file descriptor");
    else
        doctor_find(doctor, VERDICT_OK, "WSL", "", "this is no WSL");
}

static void judge_mps(struct doctor *doctor)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    _cleanup_free_ char *control = text_new("%s/control", directory && *directory ? directory : "/tmp/nvidia-mps");

    if (control && doctor_there(doctor, control))
        doctor_find(doctor, VERDICT_NOTE, "MPS",
                    "where GPUs are in exclusive mode, BindPaths=/tmp/nvidia-mps in hbmd's unit; else nothing",
                    "an MPS server is here: a fault in one of its clients ends the GPU work of all, buffers stay");
    else
        doctor_find(doctor, VERDICT_OK, "MPS", "", "no MPS server is seen");
}

/* Of "always [madvise] never" what is in brackets. */
static bool chosen(const char *text, const char *word)
{
    const char *open = strchr(text, '[');

    return open && !strncmp(open + 1, word, strlen(word)) && open[1 + strlen(word)] == ']';
}

static void judge_huge_pages(struct doctor *doctor)
{
    char enabled[128];

    if (!doctor_read(doctor, "/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof(enabled)))
        doctor_find(doctor, VERDICT_NOTE, "huge pages",
                    "a kernel with transparent huge pages pins and copies faster",
                    "the kernel has no transparent huge pages");
    else if (chosen(enabled, "never"))
        doctor_find(doctor, VERDICT_WARNING, "huge pages",
                    "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
                    "transparent huge pages are off: copies between device and host are staged through small ones");
    else
        doctor_find(doctor, VERDICT_OK, "huge pages", "", "transparent huge pages are there for who asks");
}

static void judge_numa(struct doctor *doctor)
{
    char online[128], balancing[16] = "";

    if (!doctor_read(doctor, "/sys/devices/system/node/online", online, sizeof(online)) || !strpbrk(online, "-,")) {
        doctor_find(doctor, VERDICT_OK, "NUMA", "", "one node");
        return;
    }
    online[strcspn(online, "\n")] = 0;
    doctor_read(doctor, "/proc/sys/kernel/numa_balancing", balancing, sizeof(balancing));
    if (*balancing && *balancing != '0')
        doctor_find(doctor, VERDICT_NOTE, "NUMA", "sysctl kernel.numa_balancing=0, where engines stutter",
                    "nodes %s; pinned memory is taken next to each GPU, and NUMA balancing may move the engines' "
                    "own away from it",
                    online);
    else
        doctor_find(doctor, VERDICT_OK, "NUMA", "", "nodes %s; pinned memory is taken next to each GPU", online);
}

static const char *container_of_kind(const struct doctor *doctor)
{
    char text[4096];

    if (doctor_there(doctor, "/.dockerenv"))
        return "Docker";
    if (doctor_there(doctor, "/run/.containerenv"))
        return "Podman";
    if (doctor_there(doctor, "/var/run/secrets/kubernetes.io"))
        return "Kubernetes";
    if (doctor_read(doctor, "/proc/1/cgroup", text, sizeof(text)) &&
        (strstr(text, "docker") || strstr(text, "kubepods") || strstr(text, "containerd")))
        return "some";
    return NULL;
}

static double host_tiers(const struct doctor *doctor)
{
    const cJSON *device, *tier, *tiers, *devices = cJSON_GetObjectItemCaseSensitive(doctor->status, "devices");
    double bytes = 0;

    cJSON_ArrayForEach(device, devices)
    {
        tiers = cJSON_GetObjectItemCaseSensitive(device, "tiers");
        cJSON_ArrayForEach(tier, tiers)
        {
            const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tier, "tier"));
            const cJSON *capacity = cJSON_GetObjectItemCaseSensitive(tier, "capacity");
            if (name && !strcmp(name, "host") && cJSON_IsNumber(capacity))
                bytes += capacity->valuedouble;
        }
    }
    return bytes;
}

/* The cgroup that is the root of what can be seen from here: a container's limit. */
static void judge_cgroup(struct doctor *doctor)
{
    char text[64], has[UNITS_TEXT], wants[UNITS_TEXT], *end;
    double limit;

    if (!doctor_read(doctor, "/sys/fs/cgroup/memory.max", text, sizeof(text)))
        return;
    limit = strtod(text, &end);
    if (end != text && limit < host_tiers(doctor))
        doctor_find(doctor, VERDICT_WARNING, "container",
                    "raise the container's memory limit, or lower host_bytes in hbmd.conf",
                    "its memory limit is %s, and the host tier may take %s", units_bytes(limit, has),
                    units_bytes(host_tiers(doctor), wants));
}

static void judge_container(struct doctor *doctor)
{
    const char *kind = container_of_kind(doctor);
    char map[256] = "";
    unsigned long inside, outside, n = 0;

    if (!kind) {
        doctor_find(doctor, VERDICT_OK, "container", "", "this is none");
        return;
    }
    doctor_find(doctor, VERDICT_NOTE, "container",
                "hbmd wants --gpus, --pid=host (to see clients end), --ulimit memlock=-1 and its runtime directory "
                "mounted; clients want that directory alone",
                "this is a container%s%s", strcmp(kind, "some") ? " of " : "", strcmp(kind, "some") ? kind : "");
    doctor_read(doctor, "/proc/self/uid_map", map, sizeof(map));
    if (sscanf(map, "%lu %lu %lu", &inside, &outside, &n) == 3 && (inside != outside || n < 0xffffffff))
        doctor_find(doctor, VERDICT_NOTE, "container", "give the container a [listener] of its own in hbmd.conf",
                    "users here are other users on the host: user %lu is %lu there", inside, outside);
    judge_cgroup(doctor);
}

void doctor_machine(struct doctor *doctor)
{
    judge_wsl(doctor);
    judge_mps(doctor);
    judge_huge_pages(doctor);
    judge_numa(doctor);
    judge_container(doctor);
}
