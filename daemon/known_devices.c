#include "daemon/known_devices.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/cleanup.h"

#define NAME "devices"
#define NAME_NEW "devices.new"
#define VERSION 1u
#define GRANULARITY_MIN 4096u
#define LINE_MAX_BYTES 512

static void file_closep(FILE **file)
{
    if (*file)
        fclose(*file);
}

/* Whatever was put there: nothing is followed, and nothing waited for. */
static FILE *open_file(int dir_fd)
{
    _cleanup_fd_ int fd = openat(dir_fd, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return NULL;
    FILE *file = fdopen(fd, "r");
    if (file)
        fd = -1; /* consume fd */
    return file;
}

bool known_devices_have(const struct known_devices *known, const char *uuid)
{
    for (unsigned i = 0; i < known->n; i++)
        if (!strcmp(known->at[i].found.uuid, uuid))
            return true;
    return false;
}

static bool read_head(FILE *file, struct known_devices *known, unsigned *n)
{
    char line[LINE_MAX_BYTES], kind[8];
    unsigned version;
    int end = 0;

    if (!fgets(line, sizeof(line), file) ||
        sscanf(line, "hbmd devices, version %u: %u %7s%n", &version, n, kind, &end) != 3 ||
        strcmp(line + end, "\n"))
        return false;
    known->is_cuda = !strcmp(kind, "cuda");
    return version == VERSION && (known->is_cuda || !strcmp(kind, "host")) && *n > 0 && *n <= PROBE_DEVICES_MAX;
}

static bool read_device(FILE *file, struct known_device *device)
{
    char line[LINE_MAX_BYTES];
    unsigned can_fd, can_cuda_ipc;
    int end = 0;

    if (!fgets(line, sizeof(line), file) ||
        sscanf(line, "%63[^\t]\t%63[^\t]\t%" SCNu64 "\t%" SCNu64 "\t%u\t%u%n", device->found.uuid,
               device->found.name, &device->found.total_bytes, &device->granularity, &can_fd, &can_cuda_ipc,
               &end) != 6 ||
        strcmp(line + end, "\n"))
        return false;
    device->can_fd = can_fd;
    device->can_cuda_ipc = can_cuda_ipc;
    return device->granularity >= GRANULARITY_MIN && !(device->granularity & (device->granularity - 1)) &&
           can_fd <= 1 && can_cuda_ipc <= 1;
}

static bool read_all(FILE *file, struct known_devices *known)
{
    unsigned n;

    if (!read_head(file, known, &n))
        return false;
    for (; known->n < n; known->n++)
        if (!read_device(file, &known->at[known->n]) || known_devices_have(known, known->at[known->n].found.uuid))
            return false;
    return fgetc(file) == EOF;
}

bool known_devices_read(int dir_fd, struct known_devices *known)
{
    _cleanup_(file_closep) FILE *file = open_file(dir_fd);

    *known = (struct known_devices){0};
    return file && read_all(file, known);
}

static int write_all(int fd, const struct known_devices *known)
{
    int n = dprintf(fd, "hbmd devices, version %u: %u %s\n", VERSION, known->n, known->is_cuda ? "cuda" : "host");

    for (unsigned i = 0; i < known->n && n >= 0; i++) {
        const struct known_device *device = &known->at[i];
        n = dprintf(fd, "%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%u\t%u\n", device->found.uuid, device->found.name,
                    device->found.total_bytes, device->granularity, device->can_fd, device->can_cuda_ipc);
    }
    return n < 0 ? -errno : 0;
}

int known_devices_write(int dir_fd, const struct known_devices *known)
{
    for (unsigned i = 0; i < known->n; i++)
        if (!known->at[i].granularity)
            return 0;
    _cleanup_fd_ int fd =
        openat(dir_fd, NAME_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    int error = fd < 0 ? -errno : write_all(fd, known);

    if (!error && renameat(dir_fd, NAME_NEW, dir_fd, NAME) < 0)
        error = -errno;
    if (error)
        unlinkat(dir_fd, NAME_NEW, 0);
    return error;
}

void known_devices_remove(int dir_fd)
{
    unlinkat(dir_fd, NAME, 0);
}
