/* Bytes between buffers and a file that the client has opened. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/wire/handlers.h"
#include "daemon/wire/pending.h"
#include "proto/memfd.h"

#define RANGES_MAX 1000000u

/* The kernel checks rights when a file is opened: what its opener may do with it is in the fd. What kind of file it is
 * the worker finds out: its file system may take long to say so. */
static const char *unsuitable(int file, bool write)
{
    int flags = fcntl(file, F_GETFL);

    if (flags < 0 || (flags & O_PATH))
        return "the file is not open";
    if (write ? (flags & O_ACCMODE) == O_RDONLY : (flags & O_ACCMODE) == O_WRONLY)
        return write ? "the file is not open for writing" : "the file is not open for reading";
    return NULL;
}

void handle_transfer(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(transfer);
    size_t size;

    if (request->write > 1)
        REFUSE(HBM_E_INVALID, "write is 0 or 1");
    if (request->n_ranges == 0 || request->n_ranges > RANGES_MAX)
        REFUSE(HBM_E_INVALID, "%u ranges; a transfer takes 1 to %u", request->n_ranges, RANGES_MAX);
    const char *why = unsuitable(packet->fds[0], request->write);
    if (why)
        REFUSE(HBM_E_INVALID, "%s", why);
    void *ranges = memfd_map_sealed(packet->fds[1], RANGES_MAX * sizeof(struct wire_range), &size);
    if (!ranges)
        REFUSE(HBM_E_INVALID, "the ranges are no sealed memfd of a fit size: %s", strerror(errno));
    if (size != request->n_ranges * sizeof(struct wire_range)) {
        munmap(ranges, size);
        REFUSE(HBM_E_INVALID, "%u ranges in %zu bytes", request->n_ranges, size);
    }
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending)
        verb_transfer(link->core, &pending->call, packet->fds[0], ranges, request->n_ranges, request->write);
    else
        munmap(ranges, size);
}
