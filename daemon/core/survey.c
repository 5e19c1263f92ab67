#include "daemon/core/survey.h"

#include "daemon/core/moving.h"
#include "daemon/core/recency.h"
#include "daemon/core/session.h"
#include "daemon/core/model.h"
#include "daemon/core/park.h"
#include "daemon/core/tier.h"

static uint64_t word_of(const struct mapping *mapping)
{
    return atomic_load(&mapping->session->words[mapping->slot]);
}

bool arena_is_locked(const struct arena *arena)
{
    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping->present && (word_of(mapping) & LOCKWORD_COUNT))
            return true;
    }
    return false;
}

/* Where the word says nothing yet, or AWAY, it is on its way to the client, and will be locked. Who is gone, or has
 * not come back, cannot let go. */
static bool is_given_out(const struct mapping *mapping)
{
    uint64_t word = word_of(mapping);

    return mapping->present &&
           ((word & (LOCKWORD_AWAY | LOCKWORD_LANDING)) || !(word & ~(LOCKWORD_RECLAIM | LOCKWORD_WANTED)) ||
            mapping->session->state != SESSION_OPEN);
}

static bool has_to_stay(const struct arena *arena)
{
    if (arena->wanted || arena_is_locked(arena))
        return true;
    list_for_each (node, &arena->mappings)
        if (is_given_out(list_entry(node, struct mapping, arena_node)))
            return true;
    return false;
}

/* Since the last look. */
static bool was_used(const struct arena *arena)
{
    bool used = false;

    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        /* What is in the window of a client's order is about to be. */
        used |= lockword_was_used(&mapping->session->words[mapping->slot]) || (word_of(mapping) & LOCKWORD_WANTED);
    }
    return used;
}

static bool has_room(const struct device *device, enum hbm_tier to, uint64_t size, bool to_the_mark)
{
    const struct tier tier = device_tier(device, to);
    uint64_t most = to_the_mark ? tier.high : tier.capacity, occupied = tier_occupied(&tier);

    return device->pressure.full_until_ms[to] <= core_now(device->core) && size <= most && occupied <= most - size;
}

bool survey_target(struct arena *arena, enum hbm_tier *to)
{
    static const struct {
        enum hbm_tier tier;
        bool to_the_mark;
    } targets[] = {{HBM_TIER_HOST, true}, {HBM_TIER_DISK, false}, {HBM_TIER_HOST, false}};

    uint64_t size = park_size(arena);

    for (unsigned i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        *to = targets[i].tier;
        if (*to != arena_tier(arena) && has_room(arena->device, *to, size, targets[i].to_the_mark) &&
            account_has_room(arena->extent->account, (enum account_thing)(*to), size))
            return true;
    }
    return false;
}

static bool can_move(const struct arena *arena)
{
    char ignored[HBM_DETAIL_MAX];

    /* A cuda-ipc handle may be open anywhere: moving what it names need not free anything. */
    return !arena->extent->lost && arena->handle == HBM_HANDLE_FD && !arena_is_built(arena, ignored) &&
           (!arena_peer(arena) || arena->device->state == DEVICE_READY) && arena->eviction.shunned_until_ms <= core_now(arena->core);
}

/* What nobody leases may go whole: bringing it back costs nobody who is at work. Else it is counted as gone. */
static bool is_within_limit(struct arena *arena, uint64_t visit)
{
    struct model *model = arena->weighs_for;

    if (arena_tier(arena) != HBM_TIER_DEVICE || !model || (!model->n_leases && !arena_is_leased(arena)))
        return true;
    if (model->visit != visit)
        model->weight_goes = 0;
    model->visit = visit;
    unsigned percent = arena->core->limits.offload_percent;
    uint64_t away = model->weight_away + model->weight_goes + arena->weight;
    if ((unsigned __int128)away * 100 > (unsigned __int128)model->weight * percent)
        return false;
    model->weight_goes += arena->weight;
    return true;
}

static enum fate fate_of(struct arena *arena, uint64_t visit)
{
    if (arena->transition)
        return FATE_MOVING;
    bool used = was_used(arena), locked = has_to_stay(arena);
    enum hbm_tier to;

    if (used || locked)
        recency_note(arena);
    if (arena->priority == PRIORITY_NEVER)
        return FATE_NEVER;
    if (locked)
        return FATE_LOCKED;
    if (!can_move(arena))
        return FATE_STUCK;
    if (arena->eviction.spared_until_ms > core_now(arena->core))
        return FATE_SPARED;
    if (!survey_target(arena, &to))
        return FATE_HOMELESS;
    if (!is_within_limit(arena, visit))
        return FATE_LIMIT;
    return used ? FATE_RECENT : FATE_IDLE;
}

static void choose(struct survey *survey, struct arena *arena)
{
    if (survey->n < SURVEY_VICTIMS)
        survey->victims[survey->n++] = arena;
}

void survey_take(struct survey *survey, struct device *device, enum hbm_tier tier, bool recent)
{
    uint64_t visit = ++device->core->visits;

    *survey = (struct survey){0};
    for (unsigned priority = 0; priority < PRIORITIES; priority++) {
        struct arena *second[SURVEY_VICTIMS];
        unsigned n = 0;
        list_for_each_safe (node, &device->recent[tier][priority]) {
            struct arena *arena = list_entry(node, struct arena, recent_node);
            if (arena->visit == visit) /* from here on those that have been put last */
                break;
            arena->visit = visit;
            enum fate fate = fate_of(arena, visit);
            survey->bytes[fate] += arena->extent->size;
            if (fate == FATE_IDLE)
                choose(survey, arena);
            else if (fate == FATE_RECENT && n < SURVEY_VICTIMS)
                second[n++] = arena;
        }
        for (unsigned i = 0; recent && i < n; i++)
            choose(survey, second[i]);
    }
}
