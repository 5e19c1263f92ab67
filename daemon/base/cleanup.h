/* Ownership that shows: _cleanup_ destroys what a scope still owns, TAKE_* hands it on. */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

#define TAKE_PTR(pointer)                                                                                    \
    ({                                                                                                       \
        __typeof__(pointer) taken_ = (pointer);                                                              \
        (pointer) = NULL;                                                                                    \
        taken_;                                                                                              \
    })

#define TAKE_FD(fd)                                                                                          \
    ({                                                                                                       \
        int taken_ = (fd);                                                                                   \
        (fd) = -1;                                                                                           \
        taken_;                                                                                              \
    })

/* Defines NAME_freep for use with _cleanup_ from a destructor `type *free(type *)`. */
#define DEFINE_FREEP(type, destructor)                                                                       \
    static inline void destructor##p(type **object)                                                          \
    {                                                                                                        \
        if (*object)                                                                                         \
            destructor(*object);                                                                             \
    }

static inline void freep(void *pointer)
{
    free(*(void **)pointer);
}

/* Closes and returns -1; takes -1; keeps errno. */
static inline int fd_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;
        close(fd);
        errno = saved;
    }
    return -1;
}

static inline void fd_closep(int *fd)
{
    *fd = fd_close(*fd);
}

#define _cleanup_free_ _cleanup_(freep)
#define _cleanup_fd_ _cleanup_(fd_closep)
