#include "daemon/worker/cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define LIBRARY "libcufile.so.0"
#define DRIVER "/proc/driver/nvidia-fs/version"

/* As cufile.h of the CUDA toolkit has them: it is not needed for building. */
struct status {
    int error, cuda_error;
};
struct description {
    enum { OPAQUE_FD = 1 } type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
};

static struct {
    pthread_mutex_t mutex; /* over loading, opening and closing */
    void *library;
    bool open;
    struct status (*DriverOpen)(void), (*DriverClose)(void);
    struct status (*HandleRegister)(void **handle, struct description *description);
    void (*HandleDeregister)(void *handle);
    struct status (*BufRegister)(const void *memory, size_t bytes, int flags);
    struct status (*BufDeregister)(const void *memory);
    ssize_t (*Read)(void *handle, void *memory, size_t bytes, off_t offset, off_t memory_offset);
    ssize_t (*Write)(void *handle, const void *memory, size_t bytes, off_t offset, off_t memory_offset);
} cufile = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *other_library(void)
{
    return getenv("HBM_WORKER_CUFILE");
}

bool cufile_find(bool reachable)
{
    if (!other_library() && (!reachable || access(DRIVER, R_OK) < 0))
        return false;
    /* What the driver cannot do for a file is to fail, not to go through host memory unseen. */
    setenv("CUFILE_ALLOW_COMPAT_MODE", "false", 1);
    setenv("CUFILE_FORCE_COMPAT_MODE", "false", 1);
    return true;
}

static int check(struct failure *failure, const char *call, struct status status)
{
    if (!status.error)
        return 0;
    return fail(failure, HBM_E_UNSUPPORTED, "%s: cuFile error %d, CUDA error %d", call, status.error,
                status.cuda_error);
}

static int load(struct failure *failure)
{
    const char *name = other_library() ? other_library() : LIBRARY;

    if (cufile.library)
        return 0;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(failure, HBM_E_UNSUPPORTED, "dlopen: %s", dlerror());
#define FIND(call)                                                                                                 \
    if (!(cufile.call = (__typeof__(cufile.call))dlsym(library, "cuFile" #call)))                                  \
        return fail(failure, HBM_E_UNSUPPORTED, "%s is too old: it has no cuFile" #call, name);
    FIND(DriverOpen)
    FIND(DriverClose) FIND(HandleRegister) FIND(HandleDeregister) FIND(BufRegister) FIND(BufDeregister) FIND(Read)
        FIND(Write)
#undef FIND
            cufile.library = library;
    return 0;
}

int cufile_begin(struct failure *failure)
{
    pthread_mutex_lock(&cufile.mutex);
    if (!cufile.open && !load(failure))
        cufile.open = !check(failure, "cuFileDriverOpen", cufile.DriverOpen());
    bool open = cufile.open;
    pthread_mutex_unlock(&cufile.mutex);
    return open ? 0 : failure->error;
}

int cufile_open(struct cufile *file, int fd, unsigned char *memory, uint64_t bytes, struct failure *failure)
{
    struct description description = {.type = OPAQUE_FD, .handle.fd = fd};
    void *handle = NULL;

    *file = (struct cufile){0};
    if (check(failure, "cuFileHandleRegister", cufile.HandleRegister(&handle, &description)))
        return failure->error;
    if (check(failure, "cuFileBufRegister", cufile.BufRegister(memory, bytes, 0))) {
        cufile.HandleDeregister(handle);
        return failure->error;
    }
    *file = (struct cufile){.handle = handle, .memory = memory};
    return 0;
}

void cufile_close(struct cufile *file)
{
    if (!file->handle)
        return;
    cufile.BufDeregister(file->memory);
    cufile.HandleDeregister(file->handle);
    *file = (struct cufile){0};
}

static int check_bytes(const char *call, ssize_t done, size_t bytes, struct failure *failure)
{
    if (done == (ssize_t)bytes)
        return 0;
    if (done == -1)
        return fail_errno(failure, HBM_E_IO, call, errno);
    if (done < 0)
        return fail(failure, HBM_E_IO, "%s: cuFile error %zd", call, -done);
    return fail(failure, HBM_E_IO, "%s: %zd of %zu bytes", call, done, bytes);
}

int cufile_read(const struct cufile *file, uint64_t memory_offset, size_t bytes, uint64_t offset,
                struct failure *failure)
{
    ssize_t done = cufile.Read(file->handle, file->memory, bytes, (off_t)offset, (off_t)memory_offset);

    return check_bytes("cuFileRead", done, bytes, failure);
}

int cufile_write(const struct cufile *file, uint64_t memory_offset, size_t bytes, uint64_t offset,
                 struct failure *failure)
{
    ssize_t done = cufile.Write(file->handle, file->memory, bytes, (off_t)offset, (off_t)memory_offset);

    return check_bytes("cuFileWrite", done, bytes, failure);
}

void cufile_drop(void)
{
    pthread_mutex_lock(&cufile.mutex);
    if (cufile.open)
        cufile.DriverClose();
    cufile.open = false;
    pthread_mutex_unlock(&cufile.mutex);
}
