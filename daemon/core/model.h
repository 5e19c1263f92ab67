/* A model: a published set of buffers in groups. BUILDING until its builder commits, then SEALED for good. One name has
 * one builder at a time; other askers wait for it. */
#pragma once

#include "daemon/core/buffer.h"
#include "proto/table.h"

enum model_state { MODEL_BUILDING, MODEL_SEALED };

struct model {
    uint64_t id;
    struct core *core;
    struct list node; /* core->models */
    struct owner owner;
    bool shared;
    uint32_t mode;
    char name[HBM_NAME_MAX];
    char key[128];
    enum model_state state;
    bool listed;          /* holds its name; false: a replacement being built, or replaced and still leased */
    struct list buffers;  /* struct buffer, by model_node, in table order */
    uint32_t n_buffers, n_arenas;
    uint64_t layout_hash; /* XXH3 of names, dtypes, shapes, groups in table order */
    int metadata_fd;      /* sealed memfd, -1 if none */
    uint32_t metadata_bytes;
    bool is_object;         /* the owner pays for the metadata's place in the store */
    uint64_t builder_lease; /* id, while BUILDING */
    uint32_t n_leases;
    uint32_t n_buffer_leases; /* on its buffers and their scales by themselves */
    uint64_t visit; /* the last of core->visits that came by */
    uint64_t *order; /* ids of arenas, as a client declared their use last; room for n_arenas. NULL: nobody has */
    uint32_t n_order;
    struct lock_gaps {
        uint64_t n, ms;
    } lock_gaps; /* what its clients did between their locks that the daemon saw, one after the other */
    uint64_t weight, weight_away; /* weight.c's: bytes of its buffers, and of those that are away or leave */
    uint64_t weight_goes;         /* what would go besides: of whoever visits */
    struct lock_waits lock_waits;
    struct list waiters;
};

const char *model_state_name(enum model_state state);
struct model *model_get(struct core *core, uint64_t id);
struct model *model_new(struct core *core, struct owner owner, bool shared, uint32_t mode, const char *name, const char *key);
/* Takes its buffers along; wakes the waiters, who find it gone. Returns NULL. */
struct model *model_free(struct model *model);
/* A lease on it ended. Frees it if it was unlisted. */
void model_release(struct model *model);
void model_wake_waiters(struct model *model);
/* Lets go of its names, and of its buffers' names: another model may take them. Wakes the waiters. */
void model_unlist(struct model *model);
/* Takes them: all or none. 0, EXISTS or NO_MEMORY with detail. */
int model_list(struct model *model, char *detail);
/* Its arenas in order of first buffer; n = model->n_arenas. The caller frees the array. NULL: memory is out. */
struct arena **model_arenas(const struct model *model);
/* The same in order of use: those in the declared order, by turn, then the others. */
struct arena **model_arenas_by_use(const struct model *model);
/* Bytes it has in each tier now. */
void model_bytes(const struct model *model, uint64_t bytes[HBM_PLACES]);
/* Of what is parked, as it is encoded. */
void model_stored_bytes(const struct model *model, uint64_t bytes[HBM_PLACES]);
