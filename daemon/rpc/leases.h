/* Who holds what: an index over all leases, made for one answer, so that a list of many buffers stays linear. */
#pragma once

#include "daemon/core/session.h"
#include "daemon/rpc/writer.h"

struct lease_entry {
    uint64_t held, id; /* id of a buffer or a model, and of the lease */
    const struct lease *lease; /* of what was found */
    uint32_t hint; /* index of the mapping found last: rows come in the order of arenas */
};

struct lease_index {
    struct core *core;
    struct lease_entry *entries;
    size_t n;
};

/* False if memory is out. Leases that end later are passed over. */
bool lease_index_make(struct lease_index *index, struct core *core);
void lease_index_clear(struct lease_index *index);
/* The first entry of what is held, by its id, and the next of the same; NULL if there is none. Valid until the core is
 * next touched. */
struct lease_entry *lease_index_find(struct lease_index *index, uint64_t held);
struct lease_entry *lease_index_next(struct lease_index *index, struct lease_entry *entry);
bool mapping_is_locked(const struct mapping *mapping);
/* Its client has it in the window of its order. NULL is fine: no. */
bool mapping_is_wanted(const struct mapping *mapping);
/* arena NULL: any of the lease's. */
bool lease_entry_locked(struct lease_entry *entry, const struct arena *arena);
/* Writes the "leases" of a buffer, those of its model included, or of a model. */
void write_buffer_leases(struct writer *writer, struct lease_index *index, const struct buffer *buffer);
void write_model_leases(struct writer *writer, struct lease_index *index, const struct model *model);
