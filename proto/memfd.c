#include "proto/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static int give_up(int fd)
{
    int error = errno ? errno : EIO;

    if (fd >= 0)
        close(fd);
    return -error;
}

int memfd_fixed(const char *name, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, SIZE_SEALS | F_SEAL_SEAL) < 0)
        return give_up(fd);
    return fd;
}

int memfd_sealed(const char *name, const void *bytes, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return give_up(fd);
        done += (size_t)n;
    }
    if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return give_up(fd);
    return fd;
}

void *memfd_map_sealed(int fd, size_t limit, size_t *size)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & (SIZE_SEALS | F_SEAL_WRITE)) != (SIZE_SEALS | F_SEAL_WRITE)) {
        errno = EINVAL;
        return NULL;
    }
    if (fstat(fd, &status) < 0)
        return NULL;
    if (status.st_size <= 0 || (unsigned long long)status.st_size > limit) {
        errno = EFBIG;
        return NULL;
    }
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return NULL;
    *size = (size_t)status.st_size;
    return bytes;
}

void *memfd_map_exact(int fd, size_t size)
{
    size_t found;
    void *bytes = memfd_map_sealed(fd, size, &found);

    if (!bytes || found == size)
        return bytes;
    munmap(bytes, found);
    errno = EINVAL;
    return NULL;
}

int memfd_reopen_read_only(int fd)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    return again < 0 ? -errno : again;
}
