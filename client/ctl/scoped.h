/* Ownership that shows: _cleanup_ destroys what a scope still owns, TAKE_PTR hands it on. */
#pragma once

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

#define TAKE_PTR(pointer)                                                                                          \
    ({                                                                                                             \
        __typeof__(pointer) taken_ = (pointer);                                                                    \
        (pointer) = NULL;                                                                                          \
        taken_;                                                                                                    \
    })

static inline void scoped_free(void *pointer)
{
    free(*(void **)pointer);
}

static inline void scoped_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void scoped_json(cJSON **json)
{
    cJSON_Delete(*json);
}

#define _cleanup_free_ _cleanup_(scoped_free)
#define _cleanup_fd_ _cleanup_(scoped_close)
#define _cleanup_json_ _cleanup_(scoped_json)
