#include "daemon/worker/side.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/worker/control.h"
#include "daemon/worker/staging.h"

int side_open(struct side *side, const struct job_extent *extent, int fd, bool write, struct failure *failure)
{
    struct stat status;

    *side = (struct side){.is_disk = extent->kind == JOB_EXTENT_DISK,
                          .encrypted = extent->encrypted,
                          .token = extent->token,
                          .file = {.fd = -1, .direct = -1}};
    if (!side->is_disk)
        return device_map(extent, fd, &side->view, failure);
    if (side->encrypted && !cipher_has_key())
        return fail(failure, HBM_E_LOST, "the key of the spill file is not here");
    if (fstat(fd, &status) < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "fstat", errno);
    if (!S_ISREG(status.st_mode))
        return fail(failure, HBM_E_BAD_REQUEST, "the fd of a disk extent is no file");
    if ((uint64_t)status.st_size < extent->size)
        return fail(failure, HBM_E_IO, "the spill file is shorter than its extent: %lld of %llu bytes",
                    (long long)status.st_size, (unsigned long long)extent->size);
    io_file_open(&side->file, fd, write);
    return 0;
}

int side_make(struct side *side, const struct job_extent *extent, struct failure *failure)
{
    *side = (struct side){.token = extent->token, .file = {.fd = -1, .direct = -1}};
    if (device_make(extent, &side->view, failure) != HBM_E_NO_MEMORY)
        return failure->error;
    /* What an answered job still has mapped is about to be free. */
    control_wait_for_releases();
    *failure = (struct failure){0};
    return device_make(extent, &side->view, failure);
}

int side_share(struct side *side, int *fd, struct failure *failure)
{
    return *fd >= 0 ? 0 : device_share(&side->view, fd, failure);
}

void side_close(struct side *side)
{
    if (side->is_disk)
        io_file_close(&side->file);
    else
        device_unmap(&side->view);
}

int kit_slot(struct kit *kit, struct failure *failure)
{
    if (!kit->slot)
        kit->slot = staging_take(failure);
    return kit->slot ? 0 : failure->error;
}

int kit_mark(struct kit *kit, struct failure *failure)
{
    return kit->mark.event ? 0 : device_mark_new(&kit->mark, failure);
}

void kits_close(struct kit kits[LANES_MAX])
{
    for (unsigned i = 0; i < LANES_MAX; i++) {
        staging_give(kits[i].slot);
        device_mark_free(&kits[i].mark);
        io_close(&kits[i].io);
        cipher_close(&kits[i].cipher);
    }
}

static int copy_and_wait(struct kit *kit, enum device_stream stream, void *target, const void *source, size_t bytes,
                         struct failure *failure)
{
    if (kit_mark(kit, failure) || device_copy(stream, target, source, bytes, failure) ||
        device_mark(stream, &kit->mark, failure))
        return failure->error;
    return device_wait(&kit->mark, failure);
}

/* Reads the aligned window around the bytes: O_DIRECT takes no other. */
static int get_from_disk(struct side *side, struct kit *kit, uint64_t offset, size_t bytes,
                         const unsigned char **where, struct failure *failure)
{
    uint64_t start = offset / IO_ALIGN * IO_ALIGN, end = (offset + bytes + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
    size_t got = 0;

    if (io_read(&kit->io, &side->file, kit->slot, end - start, start, &got, failure))
        return failure->error;
    if (got < (side->encrypted ? end : offset + bytes) - start)
        return fail(failure, HBM_E_IO, "the spill file ends at byte %llu", (unsigned long long)(start + got));
    if (side->encrypted && cipher_decrypt(&kit->cipher, side->token, start, kit->slot, end - start, failure))
        return failure->error;
    *where = kit->slot + (offset - start);
    return 0;
}

int side_get(struct side *side, struct kit *kit, uint64_t offset, size_t bytes, bool stage,
             const unsigned char **where, struct failure *failure)
{
    const unsigned char *there = side->is_disk ? NULL : side->view.bytes + offset;

    if (!side->is_disk && !side->view.on_device && !stage) {
        *where = there;
        return 0;
    }
    if (kit_slot(kit, failure))
        return failure->error;
    if (side->is_disk)
        return get_from_disk(side, kit, offset, bytes, where, failure);
    *where = kit->slot;
    if (side->view.on_device)
        return copy_and_wait(kit, DEVICE_DOWN, kit->slot, there, bytes, failure);
    memcpy(kit->slot, there, bytes);
    return 0;
}

static int put_to_disk(struct side *side, struct kit *kit, uint64_t offset, size_t bytes, const void *from,
                       struct failure *failure)
{
    unsigned char *staged = kit->slot + ((const unsigned char *)from - kit->slot);

    if (side->encrypted && cipher_encrypt(&kit->cipher, side->token, offset, staged, bytes, failure))
        return failure->error;
    return io_write(&kit->io, &side->file, staged, bytes, offset, failure);
}

int side_put(struct side *side, struct kit *kit, uint64_t offset, size_t bytes, const void *from,
             struct failure *failure)
{
    if (side->is_disk)
        return put_to_disk(side, kit, offset, bytes, from, failure);
    if (side->view.on_device)
        return copy_and_wait(kit, DEVICE_UP, side->view.bytes + offset, from, bytes, failure);
    memcpy(side->view.bytes + offset, from, bytes);
    return 0;
}
