/* Leases and mappings. A lease: this session holds this buffer (or this model), ro or rw. A mapping: this session has
 * this arena in its address space, with this access, known by a slot of its residency page; leases of one arena share it.
 * A mapping holds the extent it maps: after a replace, readers keep the old one until they let go. */
#pragma once

#include "daemon/core/model.h"

struct mapping {
    struct list session_node; /* session->mappings */
    struct list arena_node;   /* arena->mappings; unlinked once the arena has other contents or is gone */
    struct session *session;
    struct arena *arena;      /* NULL once the arena is gone */
    struct extent *extent;    /* what is mapped (or was, while away) */
    enum hbm_access access;
    uint32_t slot;
    uint32_t n_leases;
    bool in_place;  /* host memory will do; never shared with leases for which it will not */
    bool present;   /* the client has it mapped, or is about to */
    bool reclaimed; /* RECLAIM is set and no RELEASED has come yet */
    struct extent *early; /* coming.c's: mapped, or about to be, and not here yet; NULL: nothing */
    int early_error;      /* it will never be, */
    char *early_why;      /* because */
    bool retired;         /* commit.c's: it keeps an extent that no arena has, which the lease rows do not say yet */
};

struct lease {
    uint64_t id;
    struct list node; /* session->leases */
    struct session *session;
    struct buffer *buffer; /* one of these two */
    struct model *model;
    enum hbm_access access;
    bool builder, in_place;
    uint64_t since_ms; /* of this daemon's clock: after a restart, of the restart */
    uint32_t n_mappings;
    struct mapping *mappings[]; /* one an arena, in table order */
};

/* One lease on a buffer or on a whole model; flags: WIRE_IN_PLACE, and WIRE_UNLOCKED, without which every arena must be
 * resident. NULL with error and detail (NO_MEMORY, LIMIT: no slot left). */
struct lease *lease_new_buffer(struct session *session, struct buffer *buffer, enum hbm_access access, uint32_t flags,
                               int *error, char *detail);
struct lease *lease_new_model(struct session *session, struct model *model, enum hbm_access access, uint32_t flags,
                              int *error, char *detail);
/* Ends it: mappings that nothing else needs go, then what nothing else keeps. Returns NULL. */
struct lease *lease_free(struct lease *lease);
struct lease *lease_get(struct core *core, uint64_t id);

struct mapping *mapping_by_slot(struct session *session, uint32_t slot);
/* The client is being given the arena's present extent to map. */
void mapping_arrives(struct mapping *mapping);
/* The arena got another extent: the mapping keeps the old one and belongs to no arena from now on. */
void mapping_retire(struct mapping *mapping);
