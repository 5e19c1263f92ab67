/* What keeps a buffer, or its memory, and what would end that. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/core/names.h"
#include "daemon/rpc/rows.h"

static double seconds_since(const struct core *core, uint64_t ms)
{
    return (double)(core_now(core) - ms) / 1e3;
}

static void write_keeper(struct writer *writer, const char *what, const char *detail, const char *remedy)
{
    write_open(writer, NULL, '{');
    write_string(writer, "what", what);
    write_string(writer, "detail", detail);
    write_string(writer, "remedy", remedy);
}

/* ---- Sessions ---- */

static void session_remedy(const struct session *session, char *text, size_t size)
{
    struct awaiting awaiting;

    if (session_awaiting(session, &awaiting))
        snprintf(text, size, "%s", awaiting.remedy);
    else
        snprintf(text, size, "detach it there, or end the session: hbmctl kick 0x%016" PRIx64, session->id);
}

static void session_phrase(const struct session *session, char *text, size_t size)
{
    struct awaiting awaiting;

    if (session_awaiting(session, &awaiting))
        snprintf(text, size, "pid %d (%s) is gone and awaited is %s, for %.1f s; it", session->pid, session->client,
                 awaiting.what, seconds_since(session->core, awaiting.since_ms));
    else if (session->state == SESSION_DETACHED)
        snprintf(text, size, "pid %d (%s) has not come back since the daemon restarted; it", session->pid,
                 session->client);
    else if (*session->origin.pod)
        snprintf(text, size, "pid %d (%s) in pod %s", session->pid, session->client, session->origin.pod);
    else if (*session->origin.container)
        snprintf(text, size, "pid %d (%s) in container %.12s", session->pid, session->client, session->origin.container);
    else
        snprintf(text, size, "pid %d (%s)", session->pid, session->client);
}

static void write_session_members(struct writer *writer, const struct session *session)
{
    write_id(writer, "session", session->id);
    write_integer(writer, "pid", session->pid);
    write_number(writer, "uid", session->who.owner.uid);
    write_listener(writer, session->core, session->who.owner.listener);
    write_string(writer, "client", session->client);
    write_origin(writer, session);
}

static void write_lease(struct writer *writer, struct lease_entry *entry, const char *on, const struct arena *arena)
{
    const struct lease *lease = entry->lease;
    const struct session *session = lease->session;
    const char *access = lease->access == HBM_RW ? "rw" : "ro";
    bool locked = lease_entry_locked(entry, arena);
    double seconds = seconds_since(session->core, lease->since_ms);
    char phrase[256], detail[HBM_NAME_MAX + 400], remedy[128];

    session_phrase(session, phrase, sizeof(phrase));
    session_remedy(session, remedy, sizeof(remedy));
    snprintf(detail, sizeof(detail), "%s leases %s %s, %s, for %.1f s", phrase, on, access,
             locked ? "locked" : "unlocked", seconds);
    write_keeper(writer, "lease", detail, remedy);
    write_session_members(writer, session);
    write_string(writer, "access", access);
    write_bool(writer, "locked", locked);
    write_real(writer, "seconds", seconds);
    write_close(writer, '}');
}

/* After a replace its readers keep what was there before, until they let go. */
static void write_old_contents(struct writer *writer, const struct lease *lease)
{
    const struct session *session = lease->session;
    uint64_t bytes = 0;
    char detail[256], remedy[128];

    for (uint32_t i = 0; i < lease->n_mappings; i++)
        if (!lease->mappings[i]->arena)
            bytes += lease->mappings[i]->extent->size;
    if (!bytes)
        return;
    session_remedy(session, remedy, sizeof(remedy));
    snprintf(detail, sizeof(detail), "pid %d (%s) maps %" PRIu64 " bytes of what was there before a replacement",
             session->pid, session->client, bytes);
    write_keeper(writer, "old-contents", detail, remedy);
    write_session_members(writer, session);
    write_number(writer, "bytes", bytes);
    write_close(writer, '}');
}

static void write_leases_on(struct writer *writer, struct lease_index *index, uint64_t held, const char *on,
                            const struct arena *arena)
{
    struct lease_entry *entry = lease_index_find(index, held);

    for (; entry && !writer_has_failed(writer); entry = lease_index_next(index, entry)) {
        write_lease(writer, entry, on, arena);
        write_old_contents(writer, entry->lease);
    }
}

/* ---- The catalog ---- */

static void write_model_keeper(struct writer *writer, const struct model *model, const char *name)
{
    const struct lease *builder = model->builder_lease ? lease_get(model->core, model->builder_lease) : NULL;
    char detail[NAME_FOR_MAX + 80], remedy[NAME_FOR_MAX + 80];

    if (builder) {
        snprintf(detail, sizeof(detail), "model %s, which pid %d is building", name, builder->session->pid);
        session_remedy(builder->session, remedy, sizeof(remedy));
    } else if (!model->listed) {
        snprintf(detail, sizeof(detail), "model %s, which another has replaced: it goes with its last lease", name);
        snprintf(remedy, sizeof(remedy), "end the leases on it");
    } else {
        snprintf(detail, sizeof(detail), "it belongs to model %s", name);
        snprintf(remedy, sizeof(remedy), "hbmctl rm %s", name);
    }
    write_keeper(writer, "model", detail, remedy);
    write_close(writer, '}');
}

static void write_keep(struct writer *writer, const struct buffer *buffer)
{
    char remedy[64];

    snprintf(remedy, sizeof(remedy), "hbmctl free id:0x%016" PRIx64, buffer->id);
    write_keeper(writer, "keep", "it was allocated to be kept without leases", remedy);
    write_close(writer, '}');
}

static void write_transition(struct writer *writer, const struct transition *transition)
{
    char detail[128], remedy[64] = "it ends by itself; see hbmctl ops";

    snprintf(detail, sizeof(detail), "%s is moving it", transition->verb ? transition->verb : "an attach or a lock");
    if (transition->op) {
        snprintf(detail, sizeof(detail), "operation 0x%016" PRIx64 " (%s) has it", transition->op, transition->verb);
        snprintf(remedy, sizeof(remedy), "hbmctl cancel 0x%016" PRIx64, transition->op);
    }
    write_keeper(writer, "operation", detail, remedy);
    write_id(writer, "op", transition->op);
    write_close(writer, '}');
}

/* ---- The memory ---- */

/* Beside its arena and those who map it, only jobs under way hold an extent. */
static bool job_holds(const struct arena *arena)
{
    unsigned known = 1;

    list_for_each (node, &arena->mappings)
        known += list_entry(node, struct mapping, arena_node)->extent == arena->extent;
    return arena->extent->refs > known;
}

static void write_memory_keepers(struct writer *writer, const struct arena *arena)
{
    if (arena->transition)
        write_transition(writer, arena->transition);
    else if (job_holds(arena)) {
        write_keeper(writer, "job", "a job reads or writes its bytes", "it ends by itself; see hbmctl ops");
        write_close(writer, '}');
    }
    if (arena->extent->kind == JOB_EXTENT_CUDA_IPC) {
        write_keeper(writer, "ipc-handle",
                     "its cuda-ipc handle opens in any process that it was passed to, and the driver frees the memory "
                     "only when all have closed it",
                     "see hbmctl who for the processes on the device, and end those that have it open");
        write_number(writer, "bytes", arena->extent->size);
        write_close(writer, '}');
    }
    if (arena->extent->kind == JOB_EXTENT_HOST && arena->device->is_cuda) {
        write_keeper(writer, "pool",
                     "when it is free its host memory stays pinned for up to 60 s, for its owner's next move",
                     "nothing need be done: it gives way to whoever needs the room");
        write_number(writer, "bytes", arena->extent->size);
        write_close(writer, '}');
    }
}

void write_keepers(struct writer *writer, const char *key, struct lease_index *index, const struct principal *who,
                   const struct buffer *buffer)
{
    const struct arena *arena = buffer->arena;
    char name[NAME_FOR_MAX], on[NAME_FOR_MAX + 16];

    write_open(writer, key, '[');
    write_leases_on(writer, index, buffer->id, "it", arena);
    FOR_EACH_PART(part, buffer) {
        snprintf(on, sizeof(on), "its %s", part_what(part_number));
        write_leases_on(writer, index, part->id, on, arena);
    }
    if (buffer->model) {
        model_name_for(buffer->model, who, name, sizeof(name));
        snprintf(on, sizeof(on), "model %s", name);
        write_leases_on(writer, index, buffer->model->id, on, arena);
        write_model_keeper(writer, buffer->model, name);
    }
    if (buffer->keep)
        write_keep(writer, buffer);
    write_memory_keepers(writer, arena);
    write_close(writer, ']');
}
