/* A buffer: the logical unit. Kept by leases, its model, or `keep`; freed with the last of them. */
#pragma once

#include "daemon/core/arena.h"
#include "daemon/core/packing.h"
#include "daemon/core/part.h"

struct model;
struct observation;

struct buffer {
    uint64_t id;
    struct core *core;
    struct list node;       /* core->buffers */
    struct list arena_node; /* arena->buffers */
    struct list model_node; /* model->buffers; unlinked if none */
    struct arena *arena;
    struct model *model;    /* weak; NULL if none */
    struct buffer *parent;  /* of a part (daemon/core/part.h): the encoded buffer; else NULL */
    struct buffer *parts[PARTS]; /* weak; NULL: it has none such */
    char *name;             /* full: "MODEL/TENSOR"; NULL if none */
    char *second_name;      /* only while it is being renamed */
    bool listed;            /* the name finds it; false while its model is being replaced or is a replacement */
    uint32_t dtype, rank;   /* logical */
    uint64_t dims[HBM_RANK_MAX];
    uint64_t offset, size;  /* stored bytes in the arena */
    struct hbm_encoding encoding;
    struct parking park; /* off the device it lies so; RAW codec: as it is */
    uint32_t version;
    uint32_t n_leases; /* buffer leases; model leases count on the model */
    bool keep;
    bool weighed; /* weight.c's */
    bool has_receipt;
    struct hbm_receipt receipt;
    struct hbm_quality quality; /* the rest of it */
    struct observation *observation; /* owned (daemon/core/observation.h); NULL: nothing was observed of it */
};

struct buffer_spec {
    const char *name; /* NULL: none */
    bool unlisted;    /* has the name, but does not take it yet */
    uint32_t dtype, rank;
    const uint64_t *dims;
    uint64_t offset, size;
    bool keep;
};

/* Charges the account, takes the name. NULL with error (EXISTS, LIMIT, INVALID, NO_MEMORY) and detail. */
struct buffer *buffer_new(struct arena *arena, const struct buffer_spec *spec, int *error, char *detail);
/* Unlinks it everywhere, its parts with it, its arena with the last buffer; ledger tombstones. Returns NULL. */
struct buffer *buffer_free(struct buffer *buffer);
/* Takes its name (0, EXISTS or NO_MEMORY with detail), and lets it go. */
int buffer_list(struct buffer *buffer, char *detail);
void buffer_unlist(struct buffer *buffer);
/* Another name; it must be valid. 0, EXISTS or NO_MEMORY with detail. */
int buffer_rename(struct buffer *buffer, const char *name, char *detail);
/* The same in two steps, for many of which all are renamed or none: a second name, which finds it as well; then either
 * that is its name, or it goes. Settling does nothing to one that has no second name, and cannot fail. */
int buffer_add_name(struct buffer *buffer, const char *name, char *detail);
void buffer_settle_name(struct buffer *buffer, bool second);
struct buffer *buffer_get(struct core *core, uint64_t id);
/* A private copy is of the elements alone: what has scales can't be decoded from it. */
bool buffer_lacks_scales(const struct buffer *buffer);
/* Bytes of the logical form. */
uint64_t buffer_raw_size(const struct buffer *buffer);
/* How it lies in its arena's packed extent; NULL: as it is. */
const struct packed *buffer_packed(const struct buffer *buffer);
uint64_t buffer_parts_size(const struct buffer *buffer);
/* Somebody has one of its parts attached by itself. */
bool buffer_parts_are_leased(const struct buffer *buffer);
/* Bytes that it takes where it lies, its parts included. */
uint64_t buffer_stored_size(const struct buffer *buffer);
/* One more (or less) lease on it by itself. */
void buffer_count_lease(struct buffer *buffer, int n);
/* A lease ended: frees the buffer if nothing keeps it. */
void buffer_release(struct buffer *buffer);
/* Leased by itself or through its model. */
bool buffer_is_leased(const struct buffer *buffer);
