/* One side of a transfer: an extent of any kind, read and written in pieces through one staging slot. */
#pragma once

#include "daemon/worker/cipher.h"
#include "daemon/worker/device.h"
#include "daemon/worker/io.h"
#include "daemon/worker/lanes.h"

struct side {
    bool is_disk, encrypted;
    uint64_t token;
    struct view view;    /* not disk */
    struct io_file file; /* disk */
};

/* The fd is borrowed until side_close. */
int side_open(struct side *side, const struct job_extent *extent, int fd, bool write, struct failure *failure);
/* A new extent of device memory, which side_share gives the fd of. */
int side_make(struct side *side, const struct job_extent *extent, struct failure *failure);
/* *fd is the caller's, like the one of device_create. Does nothing if it is there already. */
int side_share(struct side *side, int *fd, struct failure *failure);
void side_close(struct side *side);

/* What one lane works with; made when first needed. */
struct kit {
    unsigned char *slot;
    struct device_mark mark;
    struct io io;
    struct cipher cipher;
};
int kit_slot(struct kit *kit, struct failure *failure);
int kit_mark(struct kit *kit, struct failure *failure);
void kits_close(struct kit kits[LANES_MAX]);

/* Up to CHECKSUM_CHUNK bytes of the side, at *where: in the slot, or in place if the CPU can read them there and
 * `stage` does not insist. */
int side_get(struct side *side, struct kit *kit, uint64_t offset, size_t bytes, bool stage,
             const unsigned char **where, struct failure *failure);
/* The other way. `from` is the slot or memory that the CPU can read; returns when the bytes are there. To a disk,
 * it is in the slot, and is encrypted there. */
int side_put(struct side *side, struct kit *kit, uint64_t offset, size_t bytes, const void *from,
             struct failure *failure);
