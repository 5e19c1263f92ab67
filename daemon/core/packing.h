/* The packed form that an arena has in host memory or on disk where buffers of it are parked: these encoded, the others as
 * they are, cut into the pieces in which a worker packs and unpacks it. It belongs to the extent, and its row says all that
 * is needed to make the raw form again, whatever cuts a later build would make. */
#pragma once

#include "daemon/base/cleanup.h"
#include "proto/jobs.h"

struct arena;
struct buffer;

/* How a buffer is to lie when it is off the device. RAW: as it is. */
struct parking {
    struct hbm_encoding encoding;
    double min_sqnr_db, max_error; /* 0: no bound */
};

/* A buffer that lies encoded. */
struct packed {
    uint64_t buffer; /* first: sorted by it */
    uint64_t bytes;  /* data, scales and zero points */
    struct hbm_encoding encoding;
    double min_sqnr_db, max_error; /* while it is being packed */
};

struct packing {
    unsigned refs;
    uint64_t raw_size; /* of the extent that it comes from, and is unpacked into */
    uint64_t bytes;    /* from the start of the packed one; what is behind them is 0 */
    struct packed *packed;
    struct job_piece *pieces; /* by data_offset; receipt: index into packed */
    uint32_t n_packed, n_pieces;
    /* A codec's size varies: the pieces are those to be measured, whole buffers, and bytes a guess, until packing_lay_out. */
    bool unmeasured;
    uint8_t (*codes)[JOB_CODE_BYTES]; /* then, one a packed buffer, for the worker that packs; NULL: none needs one */
};

/* Of the arena as it lies on the device; park NULL: each raw buffer as its own policy says, else all that can as this says,
 * with defaults filled in. n_packed 0: nothing is to be encoded. NULL: memory is out. */
struct packing *packing_new(const struct arena *arena, const struct parking *park);
/* By what MEASURE told of its pieces. 0, NO_MEMORY, or INTERNAL: that is not what a worker tells. */
int packing_lay_out(struct packing *packing, const struct arena *arena, const void *measured, size_t size);
struct packing *packing_ref(struct packing *packing);
struct packing *packing_unref(struct packing *packing); /* NULL is fine; returns NULL */
DEFINE_FREEP(struct packing, packing_unref)
/* A sealed memfd of the pieces, and with `codes` of the codes behind them, if there are any. -errno. */
int packing_table(const struct packing *packing, bool codes);
/* NULL: it is not encoded there. */
const struct packed *packing_find(const struct packing *packing, uint64_t buffer);
/* Of one that was read from the ledger: its pieces lie within both extents. */
bool packing_is_sound(const struct packing *packing, uint64_t size);
