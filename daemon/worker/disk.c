#include "daemon/worker/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/io.h"

static int open_unlinked(const char *state_dir)
{
    char path[300];
    int fd = open(state_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    /* Older network and overlay file systems know no O_TMPFILE. */
    snprintf(path, sizeof(path), "%s/extent-XXXXXX", state_dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static bool is_direct(int fd)
{
    struct io_file file;

    io_file_open(&file, fd, true);
    bool direct = io_file_is_direct(&file);
    io_file_close(&file);
    return direct;
}

int disk_create(const char *state_dir, uint64_t size, int *fd, bool *direct, struct failure *failure)
{
    _cleanup_fd_ int file = -1;
    struct statvfs room;

    if (!state_dir[0])
        return fail(failure, HBM_E_UNSUPPORTED, "no state directory is configured, so there is no disk tier");
    file = open_unlinked(state_dir);
    if (file < 0)
        return fail_errno(failure, HBM_E_IO, state_dir, errno);
    /* Asked first, since allocating until it fails would starve everyone else on that disk meanwhile. */
    if (!fstatvfs(file, &room) && size / room.f_frsize >= room.f_bavail)
        return fail(failure, HBM_E_NO_SPACE, "%llu bytes wanted in %s, %llu free", (unsigned long long)size,
                    state_dir, (unsigned long long)room.f_bavail * room.f_frsize);
    int error;
    do
        error = posix_fallocate(file, 0, (off_t)size);
    while (error == EINTR);
    if (error)
        return fail_errno(failure, HBM_E_IO, "fallocate", error);
    *direct = is_direct(file);
    *fd = TAKE_FD(file);
    return 0;
}
