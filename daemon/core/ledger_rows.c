/* What each kind of object has in the ledger. readopt.c and readopt_sessions.c read it in the same order. */
#include "daemon/core/ledger_internal.h"
#include "daemon/core/observation.h"
#include "daemon/core/packing.h"

/* ---- After want of memory: all rows anew, from what is alive ---- */

static void put_sessions(struct core *core)
{
    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);

        if (!session->stored)
            continue; /* its row comes with its fds */
        ledger_put_session(core, session);
        list_for_each (inner, &session->mappings)
            ledger_put_extent(core, list_entry(inner, struct mapping, session_node)->extent);
        list_for_each (inner, &session->leases)
            ledger_put_lease(core, list_entry(inner, struct lease, node));
    }
}

static void put_everything(struct core *core)
{
    ledger_put_ids(core);
    list_for_each (node, &core->arenas) {
        ledger_put_extent(core, list_entry(node, struct arena, node)->extent);
        ledger_put_arena(core, list_entry(node, struct arena, node));
    }
    list_for_each (node, &core->models)
        ledger_put_model(core, list_entry(node, struct model, node));
    list_for_each (node, &core->buffers)
        ledger_put_buffer(core, list_entry(node, struct buffer, node));
    list_for_each (node, &core->buffers)
        if (list_entry(node, struct buffer, node)->observation)
            ledger_put_observation(core, list_entry(node, struct buffer, node)->observation);
    put_sessions(core);
}

struct ledger *ledger_ready(struct core *core)
{
    struct ledger *ledger = core->ledger;

    if (!ledger || !ledger->partial || ledger->rebuilding || ledger->depth)
        return ledger;
    ledger_index_clear(ledger);
    ledger->partial = false;
    ledger->rebuilding = true;
    put_everything(core);
    ledger->rebuilding = false;
    ledger->behind = true;
    if (!ledger->partial)
        ledger_catch_up(ledger);
    return ledger;
}

/* ---- Rows ---- */

/* Fields follow these in a row: what they gain goes to the row's end, by itself. */
_Static_assert(sizeof(struct hbm_encoding) == 8 && sizeof(struct hbm_receipt) == 64 && HBM_RANK_MAX == 8,
               "rows of every version have them at these sizes");
_Static_assert(sizeof(struct parking) == 24 && sizeof(struct job_piece) == 64, "likewise, since version 7");
_Static_assert(sizeof(struct hbm_quality) == 72, "likewise, since version 8");
_Static_assert(sizeof(struct hbm_observation) == 56, "likewise, since version 9");

static void pack_owner(struct pack *pack, struct owner owner)
{
    pack_u32(pack, owner.listener);
    pack_u32(pack, owner.uid);
}

static void pack_packing(struct pack *pack, const struct packing *packing)
{
    pack_u32(pack, packing ? packing->n_packed : 0);
    if (!packing)
        return;
    pack_u64(pack, packing->raw_size);
    pack_u64(pack, packing->bytes);
    for (uint32_t i = 0; i < packing->n_packed; i++) {
        pack_u64(pack, packing->packed[i].buffer);
        pack_u64(pack, packing->packed[i].bytes);
        pack_bytes(pack, &packing->packed[i].encoding, sizeof(packing->packed[i].encoding));
    }
    pack_u32(pack, packing->n_pieces);
    pack_bytes(pack, packing->pieces, packing->n_pieces * sizeof(*packing->pieces));
}

void ledger_put_extent(struct core *core, const struct extent *extent)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    if (extent->packing)
        ledger_raise_since(core->ledger, LEDGER_SINCE_PACKED);
    pack_text(&pack, extent->device->uuid);
    pack_owner(&pack, extent->account->owner);
    pack_u32(&pack, extent->tier);
    pack_u32(&pack, extent->kind);
    pack_u64(&pack, extent->size);
    pack_u32(&pack, extent->has_checksum);
    pack_u64(&pack, extent->checksum);
    pack_u64(&pack, extent->spill_key);
    pack_u32(&pack, extent->exported);
    pack_packing(&pack, extent->packing);
    ledger_write(core, LEDGER_EXTENT, extent->id, &pack);
}

void ledger_put_arena(struct core *core, const struct arena *arena)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_owner(&pack, arena->owner);
    pack_u32(&pack, arena->shared);
    pack_u32(&pack, arena->mode);
    pack_u32(&pack, arena->handle);
    pack_text(&pack, arena->group);
    pack_u64(&pack, arena->extent->id);
    pack_u32(&pack, arena->live);
    pack_u32(&pack, arena->priority + 1); /* 0, before version 5: PRIORITY_NORMAL */
    pack_text(&pack, arena->device->uuid); /* since version 6 */
    ledger_write(core, LEDGER_ARENA, arena->id, &pack);
}

/* As its model is sealed: its row is not written again for that, and says nothing without the model's. */
static bool gets_name(const struct buffer *buffer)
{
    return buffer->model && buffer->model->state == MODEL_BUILDING;
}

void ledger_put_buffer(struct core *core, const struct buffer *buffer)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_u64(&pack, buffer->arena->id);
    pack_u64(&pack, buffer->model ? buffer->model->id : 0);
    pack_u64(&pack, buffer->parent ? buffer->parent->id : 0);
    pack_text(&pack, buffer->name);
    pack_u32(&pack, buffer->listed || gets_name(buffer));
    pack_u32(&pack, buffer->dtype);
    pack_u32(&pack, buffer->rank);
    pack_bytes(&pack, buffer->dims, sizeof(buffer->dims));
    pack_u64(&pack, buffer->offset);
    pack_u64(&pack, buffer->size);
    pack_bytes(&pack, &buffer->encoding, sizeof(buffer->encoding));
    pack_u32(&pack, buffer->version);
    pack_u32(&pack, buffer->keep);
    pack_u32(&pack, buffer->has_receipt);
    pack_bytes(&pack, &buffer->receipt, sizeof(buffer->receipt));
    pack_bytes(&pack, &buffer->park, sizeof(buffer->park)); /* since version 7 */
    pack_bytes(&pack, &buffer->quality, sizeof(buffer->quality)); /* since version 8 */
    ledger_write(core, LEDGER_BUFFER, buffer->id, &pack);
}

void ledger_put_model(struct core *core, const struct model *model)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_owner(&pack, model->owner);
    pack_u32(&pack, model->shared);
    pack_u32(&pack, model->mode);
    pack_text(&pack, model->name);
    pack_text(&pack, model->key);
    pack_u32(&pack, model->state);
    pack_u32(&pack, model->listed);
    pack_u64(&pack, model->layout_hash);
    pack_u32(&pack, model->metadata_bytes);
    /* The table's order, which the buffers' own rows can't tell. */
    pack_u32(&pack, model->n_buffers);
    list_for_each (node, &model->buffers)
        pack_u64(&pack, list_entry(node, struct buffer, model_node)->id);
    ledger_write(core, LEDGER_MODEL, model->id, &pack);
}

void ledger_put_session(struct core *core, const struct session *session)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_owner(&pack, session->who.owner);
    pack_u32(&pack, session->who.admin);
    pack_u32(&pack, (uint32_t)session->pid);
    pack_u32(&pack, session->state == SESSION_QUARANTINED);
    pack_u32(&pack, session->process_ended);
    pack_u64(&pack, session->since_ms);
    pack_bytes(&pack, session->secret, sizeof(session->secret));
    pack_text(&pack, session->client);
    ledger_write(core, LEDGER_SESSION, session->id, &pack);
}

void ledger_put_lease(struct core *core, const struct lease *lease)
{
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_u64(&pack, lease->session->id);
    pack_u64(&pack, lease->buffer ? lease->buffer->id : 0);
    pack_u64(&pack, lease->model ? lease->model->id : 0);
    pack_u32(&pack, lease->access);
    pack_u32(&pack, lease->builder);
    pack_u32(&pack, lease->n_mappings);
    for (uint32_t i = 0; i < lease->n_mappings; i++) {
        const struct mapping *mapping = lease->mappings[i];
        pack_u32(&pack, mapping->slot);
        pack_u32(&pack, mapping->access);
        pack_u64(&pack, mapping->arena ? mapping->arena->id : 0);
        pack_u64(&pack, mapping->extent ? mapping->extent->id : 0);
    }
    pack_u32(&pack, lease->in_place);
    ledger_write(core, LEDGER_LEASE, lease->id, &pack);
}

/* Of the bins those that have something in them: few thousands of 32768. */
void ledger_put_observation(struct core *core, const struct observation *observation)
{
    struct pack pack = {0};
    uint32_t filled = 0;

    if (!ledger_ready(core))
        return;
    for (uint32_t bin = 0; observation->bins && bin < JOB_OBSERVE_BINS; bin++)
        filled += observation->bins[bin] != 0;
    pack_u64(&pack, observation->buffer->id);
    pack_bytes(&pack, &observation->seen, sizeof(observation->seen));
    pack_u32(&pack, filled);
    for (uint32_t bin = 0; filled && bin < JOB_OBSERVE_BINS; bin++)
        if (observation->bins[bin]) {
            pack_u32(&pack, bin);
            pack_u64(&pack, observation->bins[bin]);
        }
    ledger_write(core, LEDGER_OBSERVATION, observation->id, &pack);
}

void ledger_drop(struct core *core, uint64_t id)
{
    if (id && ledger_ready(core))
        ledger_bury(core, id);
}

void ledger_put_ids(struct core *core)
{
    const struct idmap_bounds *bounds = &core->ids.bounds;
    struct pack pack = {0};

    if (!ledger_ready(core))
        return;
    pack_u32(&pack, bounds->generation);
    pack_u32(&pack, bounds->slots); /* since version 2 */
    pack_u32(&pack, bounds->first);
    ledger_write(core, LEDGER_IDS, 0, &pack);
}
