/* Stands in for libcufile.so.0 in front of the host worker, whose device memory the CPU reaches. HBM_FAKE_CUFILE
 * says what is wrong with it: driver, file, memory, read, write (they fail) or byte (one that is read differs). One
 * file and one memory are registered at a time: whoever leaves one behind is refused the next. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct status {
    int error, cuda_error;
};
struct description {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
};

static int registered_fd;
static const void *registered_memory;
static atomic_bool broke;

static int is(const char *what)
{
    const char *wrong = getenv("HBM_FAKE_CUFILE");

    return wrong && !strcmp(wrong, what);
}

#define EXPORT __attribute__((visibility("default")))
EXPORT struct status cuFileDriverOpen(void);
EXPORT struct status cuFileDriverClose(void);
EXPORT struct status cuFileHandleRegister(void **handle, struct description *description);
EXPORT void cuFileHandleDeregister(void *handle);
EXPORT struct status cuFileBufRegister(const void *memory, size_t bytes, int flags);
EXPORT struct status cuFileBufDeregister(const void *memory);
EXPORT ssize_t cuFileRead(void *handle, void *memory, size_t bytes, off_t offset, off_t memory_offset);
EXPORT ssize_t cuFileWrite(void *handle, const void *memory, size_t bytes, off_t offset, off_t memory_offset);

struct status cuFileDriverOpen(void)
{
    const char *compat = getenv("CUFILE_ALLOW_COMPAT_MODE");

    return (struct status){.error = is("driver") || !compat || strcmp(compat, "false") ? 5001 : 0};
}

struct status cuFileDriverClose(void)
{
    return (struct status){0};
}

struct status cuFileHandleRegister(void **handle, struct description *description)
{
    if (is("file") || description->type != 1 || registered_fd)
        return (struct status){.error = 5027};
    registered_fd = description->handle.fd;
    *handle = &registered_fd;
    return (struct status){0};
}

void cuFileHandleDeregister(void *handle)
{
    *(int *)handle = 0;
}

struct status cuFileBufRegister(const void *memory, size_t bytes, int flags)
{
    if (is("memory") || registered_memory || !bytes || flags)
        return (struct status){.error = 5022, .cuda_error = 1};
    registered_memory = memory;
    return (struct status){0};
}

struct status cuFileBufDeregister(const void *memory)
{
    registered_memory = memory == registered_memory ? NULL : registered_memory;
    return (struct status){0};
}

ssize_t cuFileRead(void *handle, void *memory, size_t bytes, off_t offset, off_t memory_offset)
{
    unsigned char *to = (unsigned char *)memory + memory_offset;

    if (is("read") || memory != registered_memory)
        return -5030;
    ssize_t got = pread(*(int *)handle, to, bytes, offset);
    if (is("byte") && got > 0 && !atomic_exchange(&broke, 1))
        to[got - 1] ^= 1;
    return got;
}

ssize_t cuFileWrite(void *handle, const void *memory, size_t bytes, off_t offset, off_t memory_offset)
{
    if (is("write") || memory != registered_memory) {
        errno = EIO;
        return -1;
    }
    return pwrite(*(int *)handle, (const unsigned char *)memory + memory_offset, bytes, offset);
}
