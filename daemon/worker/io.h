/* File I/O of one lane: large reads and writes cut into pieces that are in flight together, by io_uring, past the
 * page cache where file and alignment allow it. Where io_uring is refused (seccomp, sysctl) the lanes themselves
 * are the thread pool and each does plain reads and writes. */
#pragma once

#include <liburing.h>
#include <stdbool.h>

#include "daemon/worker/failure.h"

#define IO_ALIGN 4096u

struct io_file {
    int fd;     /* borrowed */
    int direct; /* ours, O_DIRECT; -1 where the file system or the permissions refuse */
};
void io_file_open(struct io_file *file, int fd, bool write);
void io_file_close(struct io_file *file);
/* True if it is read past the page cache, not only opened so. */
bool io_file_is_direct(const struct io_file *file);

/* 0: there are rings; -1: they are not to be used (HBM_WORKER_NO_URING); else the errno that refuses them. */
int io_ring_refused(void);

struct io {
    struct io_uring ring;
    enum { IO_UNTRIED, IO_RING, IO_PLAIN } state;
};
void io_close(struct io *io);

/* Reads until `bytes` or the end of the file; *got says how far. The buffer is aligned to IO_ALIGN. */
int io_read(struct io *io, const struct io_file *file, void *buffer, size_t bytes, uint64_t offset, size_t *got,
            struct failure *failure);
int io_write(struct io *io, const struct io_file *file, const void *buffer, size_t bytes, uint64_t offset,
             struct failure *failure);
