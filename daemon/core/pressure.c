#include "daemon/core/pressure.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/core/moving.h"
#include "daemon/core/recency.h"
#include "daemon/core/survey.h"

#define WAITED_FOR_MS 20 /* between two looks while somebody waits */
#define EASING_MS 1000   /* while a tier is over its mark: what was not used in so long goes */
#define MOVES_A_TIER 2

/* It could not go: someone locked it just then; it was not let go of; something failed. */
#define LOCKED_MS 1000
#define HELD_MS 10000
#define FAILED_MS 5000

/* ---- Moves ---- */

static bool is_under_way(const struct pressure_move *move)
{
    return move->op && !move->ended;
}

static uint64_t leaving(const struct device *device, enum hbm_tier tier, unsigned *n)
{
    uint64_t bytes = 0;

    *n = 0;
    for (unsigned i = 0; i < PRESSURE_MOVES; i++) {
        const struct pressure_move *move = &device->pressure.moves[i];
        if (!is_under_way(move) || move->from != tier)
            continue;
        bytes += move->size;
        ++*n;
    }
    return bytes;
}

static struct pressure_move *free_move(struct device *device)
{
    for (unsigned i = 0; i < PRESSURE_MOVES; i++)
        if (!device->pressure.moves[i].op)
            return &device->pressure.moves[i];
    return NULL;
}

/* Nobody asks about them: others' operations stay to be asked about. */
static void reap(struct device *device)
{
    for (unsigned i = 0; i < PRESSURE_MOVES; i++) {
        struct pressure_move *move = &device->pressure.moves[i];
        struct op *op = move->op && move->ended ? op_get(device->core, move->op) : NULL;
        if (op)
            op_free(op);
        if (move->ended)
            *move = (struct pressure_move){.device = device};
    }
}

static const char *first_name(const struct arena *arena)
{
    return list_entry(list_first(&arena->buffers), struct buffer, arena_node)->name;
}

static void tell_moved(struct arena *arena, const struct pressure_move *move)
{
    struct core *core = arena->core;

    core->counters.evictions++;
    core->counters.evicted_bytes += move->size;
    arena->eviction.at_ms = core_now(core);
    arena->eviction.to = move->to;
    arena->eviction.n++;
    event_emit(&core->events, "arena.evicted", arena->id, first_name(arena), arena->owner.listener,
               arena->owner.uid, 0, "%" PRIu64 " bytes, from %s to %s for want of room", move->size,
               hbm_tier_name(move->from), hbm_tier_name(move->to));
}

static uint32_t pause_after(int error)
{
    return error == HBM_E_CANCELLED ? LOCKED_MS : error == HBM_E_BUSY ? HELD_MS : FAILED_MS;
}

static void moved(struct op_wait *wait, struct op *op)
{
    struct pressure_move *move = container_of(wait, struct pressure_move, wait);
    struct device *device = move->device;
    struct core *core = device->core;
    struct arena *arena = arena_get(core, move->arena);
    bool is_full = op->error == HBM_E_NO_SPACE || op->error == HBM_E_NO_MEMORY || op->error == HBM_E_IO;

    move->ended = true;
    if (arena && !op->error)
        tell_moved(arena, move);
    if (arena && op->error)
        arena->eviction.shunned_until_ms = core_now(core) + pause_after(op->error);
    if (is_full)
        (arena ? arena->device : device)->pressure.full_until_ms[move->to] = core_now(core) + FAILED_MS;
    timer_arm(core, &device->pressure.timer, 0);
}

static bool start_move(struct device *device, struct arena *arena)
{
    struct core *core = device->core;
    struct pressure_move *move = free_move(device);
    char ignored[HBM_DETAIL_MAX];
    int error = 0;
    enum hbm_tier from = arena->extent->tier, to; /* of a peer's: device, as for all that is there */

    if (!move || !survey_target(arena, &to))
        return false;
    struct moving *moving = moving_arenas(core, NULL, &arena, 1, to);
    if (moving) {
        moving->transition.cancellable_by_lock = moving->transition.gives_way = moving->quiet = true;
        moving->transition.memory_wait_ms = 0;
    }
    *move = (struct pressure_move){.device = device,
                                   .arena = arena->id,
                                   .from = from,
                                   .to = to,
                                   .size = arena->extent->size,
                                   .wait.ended = moved};
    struct op *op = moving_run(moving, "pressure", NULL, NULL, &error, ignored);
    if (!op) {
        arena->eviction.shunned_until_ms = core_now(core) + FAILED_MS;
        return false;
    }
    move->op = op->id;
    op_wait(op, &move->wait);
    return true;
}

/* Asked to let go, and locked before that was heard: another goes in its place. */
static void call_off_what_is_locked(struct device *device)
{
    for (unsigned i = 0; i < PRESSURE_MOVES; i++) {
        struct pressure_move *move = &device->pressure.moves[i];
        const struct arena *arena = is_under_way(move) ? arena_get(device->core, move->arena) : NULL;
        struct op *op = arena && arena->reclaim && arena_is_locked(arena) ? op_get(device->core, move->op) : NULL;
        if (op)
            op_cancel(op, "it was locked meanwhile");
    }
}

/* ---- How much is to go ---- */

static bool waits_here(const struct extent_create *create, const struct device *device, enum hbm_tier tier)
{
    return create->device == device && create->tier == tier && create->error == HBM_E_NO_MEMORY && create->wait_ms;
}

static bool anyone_waits(const struct device *device, enum hbm_tier tier)
{
    list_for_each (node, &device->core->memory_waiters)
        if (waits_here(list_entry(node, struct extent_create, node), device, tier))
            return true;
    return false;
}

/* For those who wait, oldest first, as far as it can be had: nothing goes in vain. */
static uint64_t needed_by_waiters(const struct device *device, enum hbm_tier tier, uint64_t available,
                                  uint64_t movable)
{
    uint64_t sum = 0, need = 0;

    list_for_each (node, &device->core->memory_waiters) {
        const struct extent_create *create = list_entry(node, struct extent_create, node);
        uint64_t with;
        if (!waits_here(create, device, tier) || __builtin_add_overflow(sum, create->size, &with) ||
            (with > available && with - available > movable))
            continue;
        sum = with;
        need = sum > available ? sum - available : 0;
    }
    return need;
}

static void set_easing(struct device *device, enum hbm_tier at, bool easing, const struct tier *tier)
{
    bool *was = &device->pressure.easing[at];

    if (*was != easing)
        event_emit(&device->core->events, easing ? "tier.over" : "tier.eased", 0, device->uuid, 0, UINT32_MAX, 0,
                   "the %s tier has %" PRIu64 " bytes where its marks are %" PRIu64 " and %" PRIu64,
                   hbm_tier_name(at), tier_occupied(tier), tier->high, tier->low);
    *was = easing;
}

/* Over the high mark, or on the way from there to the low one. */
static uint64_t over_the_mark(struct device *device, enum hbm_tier at, const struct tier *tier, uint64_t leaves)
{
    uint64_t occupied = tier_occupied(tier);

    if (tier->has_marks && occupied > tier->high)
        set_easing(device, at, true, tier);
    else if (!tier->has_marks || occupied <= tier->low)
        set_easing(device, at, false, tier);
    return device->pressure.easing[at] && occupied > tier->low + leaves ? occupied - tier->low - leaves : 0;
}

/* Starts moves until so much leaves, or as many are under way as may be. */
static void move_out(struct device *device, enum hbm_tier tier, const struct survey *survey, uint64_t need)
{
    unsigned n;

    leaving(device, tier, &n);
    for (unsigned i = 0; i < survey->n && need && n < MOVES_A_TIER; i++) {
        struct arena *arena = survey->victims[i];
        uint64_t size = arena->extent->size;
        if (!start_move(device, arena))
            continue;
        need -= size < need ? size : need;
        n++;
    }
}

static void look_at(struct device *device, enum hbm_tier at)
{
    const struct tier tier = device_tier(device, at);
    struct survey survey;
    unsigned n;

    uint64_t leaves = leaving(device, at, &n), over = over_the_mark(device, at, &tier, leaves);
    bool waits = tier.has_marks && anyone_waits(device, at);
    if ((!waits && !over) || device->state != DEVICE_READY || device->core->draining)
        return;
    survey_take(&survey, device, at, waits);
    uint64_t movable = survey.bytes[FATE_IDLE] + (waits ? survey.bytes[FATE_RECENT] : 0);
    uint64_t available = (tier.capacity > tier_occupied(&tier) ? tier.capacity - tier_occupied(&tier) : 0) + leaves;
    uint64_t need = waits ? needed_by_waiters(device, at, available, movable) : 0;
    move_out(device, at, &survey, need > over ? need : over);
}

static void look(struct timer *timer)
{
    struct device *device = container_of(timer, struct device, pressure.timer);
    bool waits = false, eases = false;

    reap(device);
    call_off_what_is_locked(device);
    for (unsigned tier = HBM_TIER_DEVICE; tier <= HBM_TIER_HOST; tier++) {
        look_at(device, tier);
        waits |= anyone_waits(device, tier);
        eases |= device->pressure.easing[tier];
    }
    if (device->core->draining || timer->at_ms)
        return;
    if (waits)
        timer_arm(device->core, timer, WAITED_FOR_MS);
    else if (eases)
        timer_arm(device->core, timer, EASING_MS);
}

/* ---- Who comes by ---- */

void pressure_init(struct device *device)
{
    list_init(&device->pressure.timer.node);
    device->pressure.timer.fire = look;
}

void pressure_wake(struct device *device, enum hbm_tier tier)
{
    const struct tier is = device_tier(device, tier);
    struct timer *timer = &device->pressure.timer;

    if (is.has_marks && (anyone_waits(device, tier) || tier_occupied(&is) > is.high) &&
        timer->at_ms != core_now(device->core))
        timer_arm(device->core, timer, 0);
}

/* At once, not at the next look: it may have filled again by then, and to less than the high mark. */
void pressure_released(struct device *device, enum hbm_tier tier)
{
    const struct tier is = device_tier(device, tier);

    if (device->pressure.easing[tier])
        over_the_mark(device, tier, &is, 0);
}

bool pressure_serves(const struct extent_create *create)
{
    unsigned n;

    leaving(create->device, create->tier, &n);
    return n > 0;
}
