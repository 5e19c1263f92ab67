/* Looking at all that a core has: every object whole, and the books in order. */
#include "tests/fuzz/world.h"

static void mix(uint64_t *digest, uint64_t value)
{
    *digest = (*digest ^ value) * 0x9e3779b97f4a7c15u;
    *digest ^= *digest >> 29;
}

static bool is_part_of(const struct buffer *candidate, const struct buffer *buffer)
{
    FOR_EACH_PART(part, buffer)
        if (part == candidate)
            return true;
    return false;
}

static uint64_t look_at_buffer(const struct buffer *buffer)
{
    uint64_t digest = buffer->id;
    char text[64], name[HBM_NAME_MAX + 16];

    CHECK(buffer_get(buffer->core, buffer->id) == buffer && !list_empty(&buffer->arena_node));
    CHECK(buffer->rank <= HBM_RANK_MAX);
    hbm_encoding_text(&buffer->encoding, text, sizeof(text));
    buffer_name_for(buffer, &root, name, sizeof(name));
    for (const char *at = name; *at; at++)
        mix(&digest, (unsigned char)*at);
    mix(&digest, buffer->arena->id);
    mix(&digest, buffer->model ? buffer->model->id : 0);
    mix(&digest, buffer->parent ? buffer->parent->id : 0);
    mix(&digest, buffer_raw_size(buffer));
    mix(&digest, buffer->offset + buffer->size);
    mix(&digest, buffer->listed);
    CHECK(!buffer->parent || is_part_of(buffer, buffer->parent));
    FOR_EACH_PART(part, buffer)
        CHECK(part->parent == buffer);
    return digest;
}

/* Sums, because lists have no order that must survive. */
uint64_t world_digest(struct world *world)
{
    const struct core *core = world->core;
    uint64_t digest = 0;

    list_for_each (node, &core->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        uint64_t one = arena->id;
        CHECK(!list_empty(&arena->buffers) && arena->extent->refs);
        mix(&one, arena->extent->id);
        mix(&one, arena->extent->lost);
        mix(&one, arena->extent->size);
        digest += one;
    }
    list_for_each (node, &core->buffers)
        digest += look_at_buffer(list_entry(node, struct buffer, node));
    list_for_each (node, &core->models) {
        const struct model *model = list_entry(node, struct model, node);
        uint64_t one = model->id, bytes[HBM_PLACES];
        struct arena **arenas = model_arenas(model);
        CHECK(arenas);
        free(arenas);
        model_bytes(model, bytes);
        list_for_each (inner, &model->buffers)
            mix(&one, list_entry(inner, struct buffer, model_node)->id);
        mix(&one, model->n_arenas);
        mix(&one, model->listed);
        digest += one;
    }
    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        uint64_t one = session->id;
        list_for_each (inner, &session->leases) {
            const struct lease *lease = list_entry(inner, struct lease, node);
            CHECK(!lease->buffer != !lease->model);
            for (uint32_t i = 0; i < lease->n_mappings; i++)
                CHECK(lease->mappings[i]->n_leases && lease->mappings[i]->extent->refs);
            one += lease->id * 0x9e3779b97f4a7c15u;
        }
        digest += one;
    }
    return digest;
}

void world_check_books(struct world *world)
{
    const struct core *core = world->core;
    uint64_t used[HBM_TIERS] = {0}, kept[HBM_TIERS] = {0}, charged[HBM_TIERS] = {0};

    list_for_each (node, &core->arenas) {
        const struct extent *extent = list_entry(node, struct arena, node)->extent;
        kept[extent->tier] += extent->uncounted ? 0 : extent->size;
    }
    list_for_each (node, &core->devices) {
        const struct device *device = list_entry(node, struct device, node);
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            used[tier] += device->used[tier];
        used[HBM_TIER_HOST] -= device->pooled;
    }
    list_for_each (node, &core->accounts) {
        const struct account *account = list_entry(node, struct account, node);
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            charged[tier] += account->use[tier];
        CHECK(!account->use[ACCOUNT_SESSIONS]);
    }
    for (unsigned tier = 0; tier < HBM_TIERS; tier++)
        CHECK(used[tier] == kept[tier] && charged[tier] == kept[tier]);
}
