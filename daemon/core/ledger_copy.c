/* The ledger's copy: a memfd that is kept where the memory's own fds are, so that whoever finds those finds what
 * they are as well, whatever has become of the file. What the file does not say any more is taken from there. */
#include "daemon/core/ledger_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"

/* All of it, malloc'd. */
static int read_whole(int fd, unsigned char **bytes, uint64_t *size)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return -errno;
    *size = (uint64_t)status.st_size;
    *bytes = malloc(*size + 1);
    return *bytes ? ledger_read_all(fd, *bytes, *size) : -ENOMEM;
}

static bool is_ledger(const unsigned char *bytes, uint64_t size)
{
    struct ledger_header header;

    if (size <= sizeof(header))
        return false;
    memcpy(&header, bytes, sizeof(header));
    return ledger_header_is_sound(&header);
}

static bool is_file(int fd)
{
    struct stat status;

    return fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

/* The same rows, and more of them. */
static bool goes_on(const unsigned char *copy, uint64_t copy_size, const unsigned char *file, uint64_t size)
{
    return copy_size > size && !memcmp(copy, file, size);
}

/* The file anew, of these bytes. */
static int replace_file(struct ledger *ledger, const unsigned char *bytes, uint64_t size)
{
    int fd =
        openat(ledger->dir_fd, LEDGER_NEW, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    int error = fd < 0 ? -errno : ledger_write_all(fd, bytes, size);

    if (!error && renameat(ledger->dir_fd, LEDGER_NEW, ledger->dir_fd, LEDGER_NAME) < 0)
        error = -errno;
    if (error) {
        fd_close(fd);
        return error;
    }
    fd_close(ledger->fd);
    ledger->fd = fd;
    ledger_index_clear(ledger);
    return ledger_read(ledger);
}

int ledger_recover(struct ledger *ledger, int copy)
{
    _cleanup_free_ unsigned char *kept = NULL, *file = NULL;
    uint64_t kept_size = 0, size = 0;

    if (!is_file(copy))
        return 0;
    int error = read_whole(copy, &kept, &kept_size);
    if (!error)
        error = read_whole(ledger->fd, &file, &size);
    if (error || !is_ledger(kept, kept_size) || !(ledger->doubtful || goes_on(kept, kept_size, file, size)))
        return error;
    log_warning(
        "the ledger's file was lost or damaged: it is made anew from the copy that was kept with the memory");
    return replace_file(ledger, kept, kept_size);
}

int ledger_refresh_copy(struct ledger *ledger)
{
    _cleanup_free_ unsigned char *file = NULL;
    uint64_t size = 0;
    int error = read_whole(ledger->fd, &file, &size);

    if (!error && ftruncate(ledger->copy, 0) < 0)
        error = -errno;
    if (!error)
        error = ledger_write_all(ledger->copy, file, size);
    ledger->copy_behind = error != 0;
    return error;
}

void ledger_append_to_copy(struct ledger *ledger, const unsigned char *bytes, size_t size)
{
    if (ledger->copy < 0)
        return;
    if (ledger->copy_behind)
        ledger_refresh_copy(ledger);
    else
        ledger->copy_behind = ledger_write_all(ledger->copy, bytes, size) < 0;
}

int ledger_keep_copy(struct ledger *ledger, int kept)
{
    ledger->copy = kept >= 0 ? kept : memfd_create("hbm-ledger", MFD_CLOEXEC);
    /* Appending: the position is shared with every other copy of the fd. */
    int error =
        ledger->copy < 0 || fcntl(ledger->copy, F_SETFL, O_APPEND) < 0 ? -errno : ledger_refresh_copy(ledger);
    if (error)
        ledger->copy = fd_close(ledger->copy);
    return error ? error : ledger->copy;
}
