#include "daemon/worker/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"

#define PIECE ((size_t)4 << 20)
#define PIECES_MAX 8 /* of a staging slot, with its surplus */

struct request {
    const struct io_file *file;
    unsigned char *buffer;
    size_t bytes;
    uint64_t offset;
    bool write, direct;
};

void io_file_open(struct io_file *file, int fd, bool write)
{
    char path[40];

    /* A second open file description: setting O_DIRECT on the one we were given would change it for its owner. */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    *file = (struct io_file){.fd = fd, .direct = open(path, (write ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC)};
}

void io_file_close(struct io_file *file)
{
    file->direct = fd_close(file->direct);
}

bool io_file_is_direct(const struct io_file *file)
{
    void *block = file->direct >= 0 ? aligned_alloc(IO_ALIGN, IO_ALIGN) : NULL;
    bool direct = block && pread(file->direct, block, IO_ALIGN, 0) >= 0;

    free(block);
    return direct;
}

static int ring_new(struct io_uring *ring)
{
    return getenv("HBM_WORKER_NO_URING") ? 1 : io_uring_queue_init(PIECES_MAX, ring, 0);
}

int io_ring_refused(void)
{
    struct io_uring ring;
    int error = -ring_new(&ring);

    if (!error)
        io_uring_queue_exit(&ring);
    return error;
}

static bool ring_ready(struct io *io)
{
    if (io->state == IO_UNTRIED) {
        bool refused = ring_new(&io->ring) != 0;
        io->state = refused ? IO_PLAIN : IO_RING;
    }
    return io->state == IO_RING;
}

void io_close(struct io *io)
{
    if (io->state == IO_RING)
        io_uring_queue_exit(&io->ring);
    io->state = IO_UNTRIED;
}

/* Returns bytes done (short at the end of a file) or -errno. */
static ssize_t plain(int fd, const struct request *r, size_t from, size_t to)
{
    size_t done = from;

    while (done < to) {
        ssize_t n = r->write ? pwrite(fd, r->buffer + done, to - done, (off_t)(r->offset + done))
                             : pread(fd, r->buffer + done, to - done, (off_t)(r->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) {
            if (r->write)
                return -EIO;
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)(done - from);
}

/* What a first try left over is finished through the page cache: short reads end at unaligned offsets, and some
 * file systems accept O_DIRECT when opening and refuse it when reading. */
static int finish(const struct request *r, size_t from, size_t to, ssize_t first, size_t *done)
{
    if (first < 0 && first != -EINVAL && first != -EINTR && first != -EAGAIN)
        return (int)first;
    *done = first > 0 ? (size_t)first : 0;
    if (*done == to - from)
        return 0;
    ssize_t rest = plain(r->file->fd, r, from + *done, to);
    if (rest < 0)
        return (int)rest;
    *done += (size_t)rest;
    return 0;
}

static size_t piece_end(const struct request *r, size_t start)
{
    return start + PIECE < r->bytes ? start + PIECE : r->bytes;
}

static int by_ring(struct io *io, const struct request *r, size_t *got)
{
    unsigned n = (unsigned)((r->bytes + PIECE - 1) / PIECE), prepared = 0;
    ssize_t results[PIECES_MAX];
    int fd = r->direct ? r->file->direct : r->file->fd;

    for (unsigned i = 0; i < n; i++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
        size_t start = i * PIECE;

        results[i] = -EAGAIN;
        if (!sqe)
            continue; /* finish() takes it */
        if (r->write)
            io_uring_prep_write(sqe, fd, r->buffer + start, (unsigned)(piece_end(r, start) - start),
                                r->offset + start);
        else
            io_uring_prep_read(sqe, fd, r->buffer + start, (unsigned)(piece_end(r, start) - start),
                               r->offset + start);
        io_uring_sqe_set_data64(sqe, i);
        prepared++;
    }
    int submitted = io_uring_submit(&io->ring);
    unsigned pending = submitted < 0 ? 0 : (unsigned)submitted;
    bool broken = pending < prepared;
    while (pending) {
        struct io_uring_cqe *cqe;

        /* Never leaves before every piece is back: the kernel writes into a buffer that the next one gets. */
        int error = io_uring_wait_cqe(&io->ring, &cqe);
        if (error == -EINTR)
            continue;
        if (error < 0)
            abort();
        results[io_uring_cqe_get_data64(cqe)] = cqe->res;
        io_uring_cqe_seen(&io->ring, cqe);
        pending--;
    }
    if (broken) {
        /* Entries left in the queue would go out with the next request and write into its buffer. */
        io_close(io);
        io->state = IO_PLAIN;
    }
    for (unsigned i = 0; i < n; i++) {
        size_t start = i * PIECE, end = piece_end(r, start), done = 0;
        int error = finish(r, start, end, results[i], &done);

        if (error)
            return error;
        *got += done;
        if (done < end - start)
            return 0;
    }
    return 0;
}

static int transfer(struct io *io, struct request *r, size_t *got)
{
    *got = 0;
    r->direct = r->file->direct >= 0 && r->offset % IO_ALIGN == 0 && r->bytes % IO_ALIGN == 0;
    if (r->bytes > PIECES_MAX * PIECE)
        return -EINVAL;
    if (ring_ready(io))
        return by_ring(io, r, got);
    int fd = r->direct ? r->file->direct : r->file->fd;
    return finish(r, 0, r->bytes, plain(fd, r, 0, r->bytes), got);
}

int io_read(struct io *io, const struct io_file *file, void *buffer, size_t bytes, uint64_t offset, size_t *got,
            struct failure *failure)
{
    struct request r = {.file = file, .buffer = buffer, .bytes = bytes, .offset = offset};
    int error = transfer(io, &r, got);

    return error ? fail_errno(failure, HBM_E_IO, "read", -error) : 0;
}

int io_write(struct io *io, const struct io_file *file, const void *buffer, size_t bytes, uint64_t offset,
             struct failure *failure)
{
    struct request r = {.file = file, .buffer = (void *)buffer, .bytes = bytes, .offset = offset, .write = true};
    size_t got;
    int error = transfer(io, &r, &got);

    return error ? fail_errno(failure, HBM_E_IO, "write", -error) : 0;
}
