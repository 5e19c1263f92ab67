/* Where spill files lie. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/member.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"

static const char *state_dir(const struct doctor *doctor)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, doctor->config)
    {
        const char *key = cJSON_GetStringValue(member(row, "key"));
        if (key && !strcmp(key, "state_dir"))
            return cJSON_GetStringValue(member(row, "value"));
    }
    return "/var/lib/hbmd";
}

/* What the disk tiers may still take. */
static double promised(const struct doctor *doctor)
{
    const cJSON *device, *tier, *devices = member(doctor->status, "devices"), *tiers;
    double bytes = 0;

    cJSON_ArrayForEach(device, devices)
    {
        tiers = member(device, "tiers");
        cJSON_ArrayForEach(tier, tiers)
        {
            const char *name = cJSON_GetStringValue(member(tier, "tier"));
            if (name && !strcmp(name, "disk"))
                bytes += number(tier, "free");
        }
    }
    return bytes;
}

static const char *kind_of(const struct statfs *status)
{
    switch ((unsigned long)status->f_type) {
    case TMPFS_MAGIC:
        return "tmpfs";
    case OVERLAYFS_SUPER_MAGIC:
        return "overlay";
    case NFS_SUPER_MAGIC:
        return "nfs";
    case SMB2_SUPER_MAGIC:
        return "smb";
    case FUSE_SUPER_MAGIC:
        return "fuse";
    default:
        return NULL;
    }
}

static void judge_direct(struct doctor *doctor, const char *directory)
{
    const cJSON *row, *devices = member(doctor->status, "devices");

    cJSON_ArrayForEach(row, devices)
    {
        const cJSON *past = member(member(row, "disk_io"), "past_page_cache");
        if (!cJSON_IsBool(past))
            continue;
        if (cJSON_IsTrue(past))
            doctor_find(doctor, VERDICT_OK, "O_DIRECT", "", "spill files pass the page cache by");
        else
            doctor_find(doctor, VERDICT_WARNING, "O_DIRECT",
                        "put state_dir on a disk's own file system (ext4, xfs)",
                        "the file system of %s refuses it: what is offloaded to disk fills the page cache first",
                        directory);
        return;
    }
    _cleanup_fd_ int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0)
        doctor_find(doctor, VERDICT_OK, "O_DIRECT", "", "the file system of %s takes it", directory);
    else if (errno == EINVAL || errno == EOPNOTSUPP)
        doctor_find(doctor, VERDICT_WARNING, "O_DIRECT", "put state_dir on a disk's own file system (ext4, xfs)",
                    "the file system of %s refuses it, or files without a name: %s", directory, strerror(errno));
    else
        doctor_find(doctor, VERDICT_NOTE, "O_DIRECT", "ask as root, or offload something to disk: then hbmd knows",
                    "nothing was offloaded to disk yet, and %s is not this user's to try it: %s", directory,
                    strerror(errno));
}

void doctor_disk(struct doctor *doctor)
{
    const char *directory = state_dir(doctor);
    double wanted = promised(doctor);
    char room[UNITS_TEXT], want[UNITS_TEXT];
    struct statfs status;

    if (!directory || statfs(directory, &status) < 0) {
        doctor_find(doctor, VERDICT_NOTE, "spill disk", "a daemon makes it; state_dir in hbmd.conf names another",
                    "%s cannot be looked at: %s", directory ? directory : "state_dir", strerror(errno));
        return;
    }
    double there = (double)status.f_bavail * (double)status.f_bsize;
    const char *kind = kind_of(&status);
    if (kind)
        doctor_find(doctor, VERDICT_WARNING, "spill disk",
                    "name a directory of a local disk by state_dir in hbmd.conf", "%s is on %s, %s", directory,
                    kind, strcmp(kind, "tmpfs") ? "and no disk of this machine's own" : "which is memory");
    if (there < wanted)
        doctor_find(doctor, VERDICT_WARNING, "spill disk", "free some, or lower disk_bytes in hbmd.conf",
                    "%s has %s free, and the disk tier may still take %s", directory, units_bytes(there, room),
                    units_bytes(wanted, want));
    else
        doctor_find(doctor, VERDICT_OK, "spill disk", "", "%s has %s free", directory, units_bytes(there, room));
    judge_direct(doctor, directory);
}
