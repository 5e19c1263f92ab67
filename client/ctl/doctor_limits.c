/* Limits of the daemon's processes, or of this one where there is no daemon. */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/member.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/units.h"

#define LOCKED_ENOUGH (1ull << 30)
#define FILES_ENOUGH 65536ull
#define UNLIMITED (~0ull)

/* Soft limit of a line "Max open files   1024   4096   files"; false if it is not there. */
static bool limit_of(const char *limits, const char *name, unsigned long long *limit)
{
    const char *line = strstr(limits, name);

    if (!line)
        return false;
    line += strlen(name);
    line += strspn(line, " ");
    *limit = strncmp(line, "unlimited", 9) ? strtoull(line, NULL, 10) : UNLIMITED;
    return true;
}

static bool capable(const struct doctor *doctor, const char *pid, unsigned capability)
{
    _cleanup_free_ char *path = text_new("/proc/%s/status", pid);
    char text[8192];

    if (!path || !doctor_read(doctor, path, text, sizeof(text)))
        return false;
    const char *line = strstr(text, "CapEff:");
    return line && strtoull(line + strlen("CapEff:"), NULL, 16) >> capability & 1;
}

#define CAP_IPC_LOCK_BIT 14

static void judge_locked(struct doctor *doctor, const char *pid, const char *whose, const char *limits)
{
    unsigned long long limit;
    char text[UNITS_TEXT];

    if (!limit_of(limits, "Max locked memory", &limit))
        return;
    if (limit >= LOCKED_ENOUGH || capable(doctor, pid, CAP_IPC_LOCK_BIT))
        doctor_find(doctor, VERDICT_OK, "memlock", "", "%s may pin %s", whose,
                    limit == UNLIMITED || limit < LOCKED_ENOUGH ? "all that it wants"
                                                                : units_bytes((double)limit, text));
    else
        doctor_find(doctor, VERDICT_WARNING, "memlock",
                    "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited before hbmd is started",
                    "%s may pin %s: the host tier and copies want far more", whose,
                    units_bytes((double)limit, text));
}

static void judge_files(struct doctor *doctor, const char *whose, const char *limits)
{
    unsigned long long limit;

    if (!limit_of(limits, "Max open files", &limit))
        return;
    if (limit >= FILES_ENOUGH)
        doctor_find(doctor, VERDICT_OK, "nofile", "", "%s may have %llu files open", whose, limit);
    else
        doctor_find(doctor, VERDICT_WARNING, "nofile",
                    "LimitNOFILE=1048576 in the unit, or ulimit -n before hbmd is started",
                    "%s may have %llu files open, and each buffer or layer is one", whose, limit);
}

/* By asking for a ring: what refuses it here mostly refuses it to the daemon. */
static void try_io_uring(struct doctor *doctor)
{
    struct io_uring_params params = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 1, &params);

    if (fd >= 0) {
        close(fd);
        doctor_find(doctor, VERDICT_OK, "io_uring", "", "the kernel gives it to this process");
    } else {
        doctor_find(doctor, VERDICT_WARNING, "io_uring",
                    errno == ENOSYS
                        ? "a kernel from 5.19 on has it"
                        : "sysctl kernel.io_uring_disabled=0; in a container let seccomp pass io_uring_setup",
                    "it is refused: %s; disks are read and written by threads, which is slower", strerror(errno));
    }
}

static void judge_io_uring(struct doctor *doctor)
{
    const cJSON *row, *devices = cJSON_GetObjectItemCaseSensitive(doctor->status, "devices");
    bool told = false;

    cJSON_ArrayForEach(row, devices)
    {
        const cJSON *disk = cJSON_GetObjectItemCaseSensitive(row, "disk_io");
        const char *by = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(disk, "by"));
        const char *why = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(disk, "why"));
        if (!by || told)
            continue;
        told = true;
        if (why)
            doctor_find(doctor, VERDICT_WARNING, "io_uring",
                        "sysctl kernel.io_uring_disabled=0; in a container let seccomp pass io_uring_setup",
                        "workers do without it: %s; disks are read and written by threads, which is slower", why);
        else
            doctor_find(doctor, VERDICT_OK, "io_uring", "", "workers use it");
    }
    if (!told)
        try_io_uring(doctor);
}

static void judge_process(struct doctor *doctor, const char *pid, const char *whose)
{
    _cleanup_free_ char *path = text_new("/proc/%s/limits", pid);
    char limits[4096];

    if (!path || !doctor_read(doctor, path, limits, sizeof(limits))) {
        doctor_find(doctor, VERDICT_NOTE, "limits", "ask on the host, as root",
                    "the limits of %s are not to be seen from here", whose);
        return;
    }
    judge_locked(doctor, pid, whose, limits);
    judge_files(doctor, whose, limits);
}

void doctor_limits(struct doctor *doctor)
{
    _cleanup_free_ char *pid = text_new("%.0f", number(doctor->status, "pid"));

    if (doctor->status && pid)
        judge_process(doctor, pid, "hbmd");
    else
        judge_process(doctor, "self", "a daemon started here");
    judge_io_uring(doctor);
}
