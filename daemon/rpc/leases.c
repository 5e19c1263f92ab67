#include "daemon/rpc/leases.h"

#include <stdlib.h>

#include "daemon/core/buffer.h"

static int by_held(const void *a, const void *b)
{
    const struct lease_entry *left = a, *right = b;

    if (left->held != right->held)
        return left->held < right->held ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

bool lease_index_make(struct lease_index *index, struct core *core)
{
    size_t n = 0;

    *index = (struct lease_index){.core = core};
    list_for_each (session, &core->sessions)
        list_for_each (node, &list_entry(session, struct session, node)->leases)
            n++;
    if (!n)
        return true;
    index->entries = calloc(n, sizeof(*index->entries));
    if (!index->entries)
        return false;
    list_for_each (session, &core->sessions) {
        list_for_each (node, &list_entry(session, struct session, node)->leases) {
            const struct lease *lease = list_entry(node, struct lease, node);
            index->entries[index->n++] = (struct lease_entry){
                .held = lease->model ? lease->model->id : lease->buffer->id,
                .id = lease->id,
            };
        }
    }
    qsort(index->entries, n, sizeof(*index->entries), by_held);
    return true;
}

void lease_index_clear(struct lease_index *index)
{
    free(index->entries);
    *index = (struct lease_index){0};
}

/* From this one on: the first that is still there. */
static struct lease_entry *alive(const struct lease_index *index, size_t at, uint64_t held)
{
    for (; at < index->n && index->entries[at].held == held; at++) {
        struct lease_entry *entry = &index->entries[at];
        entry->lease = lease_get(index->core, entry->id);
        if (entry->lease)
            return entry;
    }
    return NULL;
}

struct lease_entry *lease_index_find(struct lease_index *index, uint64_t held)
{
    size_t low = 0, high = index->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index->entries[middle].held < held)
            low = middle + 1;
        else
            high = middle;
    }
    return alive(index, low, held);
}

struct lease_entry *lease_index_next(struct lease_index *index, struct lease_entry *entry)
{
    return alive(index, (size_t)(entry + 1 - index->entries), entry->held);
}

bool mapping_is_locked(const struct mapping *mapping)
{
    const struct session *session = mapping->session;

    return session->words &&
           (atomic_load_explicit(&session->words[mapping->slot], memory_order_relaxed) & LOCKWORD_COUNT);
}

bool mapping_is_wanted(const struct mapping *mapping)
{
    const struct session *session = mapping ? mapping->session : NULL;

    return session && session->words && mapping->arena &&
           (atomic_load_explicit(&session->words[mapping->slot], memory_order_relaxed) & LOCKWORD_WANTED);
}

bool lease_entry_locked(struct lease_entry *entry, const struct arena *arena)
{
    const struct lease *lease = entry->lease;

    for (uint32_t i = 0; i < lease->n_mappings; i++) {
        uint32_t at = (entry->hint + i) % lease->n_mappings;
        const struct mapping *mapping = lease->mappings[at];
        if (!mapping || (arena && mapping->arena != arena))
            continue;
        entry->hint = at;
        if (arena || mapping_is_locked(mapping))
            return mapping_is_locked(mapping);
    }
    /* A reader of a buffer that was replaced has the old memory, which belongs to no arena any more. */
    return arena && lease->buffer && lease->n_mappings && mapping_is_locked(lease->mappings[0]);
}

static void write_leases(struct writer *writer, struct lease_index *index, uint64_t held,
                         const struct arena *arena)
{
    struct lease_entry *entry = lease_index_find(index, held);

    for (; entry && !writer_has_failed(writer); entry = lease_index_next(index, entry)) {
        const struct session *session = entry->lease->session;
        write_open(writer, NULL, '{');
        write_integer(writer, "pid", session->pid);
        write_number(writer, "uid", session->who.owner.uid);
        write_id(writer, "session", session->id);
        write_string(writer, "access", entry->lease->access == HBM_RW ? "rw" : "ro");
        write_bool(writer, "locked", lease_entry_locked(entry, arena));
        write_bool(writer, "in_place", entry->lease->in_place);
        write_close(writer, '}');
    }
}

void write_buffer_leases(struct writer *writer, struct lease_index *index, const struct buffer *buffer)
{
    write_open(writer, "leases", '[');
    write_leases(writer, index, buffer->id, buffer->arena);
    if (buffer->model)
        write_leases(writer, index, buffer->model->id, buffer->arena);
    write_close(writer, ']');
}

void write_model_leases(struct writer *writer, struct lease_index *index, const struct model *model)
{
    write_open(writer, "leases", '[');
    write_leases(writer, index, model->id, NULL);
    write_close(writer, ']');
}
