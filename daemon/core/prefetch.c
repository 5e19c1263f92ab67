#include "daemon/core/prefetch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/moving.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/tier.h"
#include "daemon/core/verbs.h"

/* ---- Rows ---- */

static void show_rows(struct prefetch *prefetch, const struct wanted *wanted, int error, const char *skipped)
{
    struct op *op = op_get(prefetch->core, prefetch->op);

    for (size_t i = 0; i < wanted->n_rows; i++) {
        struct op_row *row = &op->rows[wanted->row + i];
        const struct buffer *buffer = buffer_get(prefetch->core, row->buffer);
        if (!buffer)
            continue;
        row->error = error;
        row->skipped = skipped;
        op_row_show(row, buffer);
    }
}

/* Whoever moved it meanwhile has brought it; what was freed has no tier. */
static void last_look(struct op *op, int error)
{
    for (size_t i = 0; i < op->n_rows; i++) {
        struct op_row *row = &op->rows[i];
        const struct buffer *buffer = buffer_get(op->core, row->buffer);
        if (!buffer) {
            row->error = HBM_E_STALE;
            row->skipped = NULL;
            continue;
        }
        op_row_show(row, buffer);
        if (row->tier == HBM_TIER_DEVICE) {
            row->error = 0;
            row->skipped = NULL;
        } else if (error == HBM_E_CANCELLED && !row->skipped && !row->error) {
            row->error = error;
        }
    }
}

/* What is no failure of a hint. */
static const char *why_not(int error)
{
    switch (error) {
    case HBM_E_NO_MEMORY:
    case HBM_E_TOO_LARGE:
        return "the device has no room for it";
    case HBM_E_LIMIT:
        return "its owner may have no more";
    case HBM_E_DRAINED:
        return "its device is drained";
    case HBM_E_BUSY:
        return "another operation has it";
    default:
        return NULL;
    }
}

static void pass_over(struct prefetch *prefetch, const struct wanted *wanted, int error, const char *detail)
{
    const char *skipped = why_not(error);

    if (error && !skipped && error != HBM_E_CANCELLED && !prefetch->failed++) {
        prefetch->error = error;
        snprintf(prefetch->detail, sizeof(prefetch->detail), "%s", detail);
    }
    show_rows(prefetch, wanted, skipped ? 0 : error, skipped);
}

/* ---- Moves ---- */

static void advance(struct prefetch *prefetch);

static struct session *session_of(const struct prefetch *prefetch)
{
    const struct op *op = op_get(prefetch->core, prefetch->op);

    return op && op->session ? session_get(prefetch->core, op->session) : NULL;
}

static struct prefetch *under_way(struct core *core, uint64_t id)
{
    struct op *op = id ? op_get(core, id) : NULL;

    return op && !op_has_ended(op) ? op->state_of_verb : NULL;
}

/* What leaves the window makes room: who finds none has his turn again then. */
static bool may_wait(const struct prefetch *prefetch)
{
    const struct session *session = session_of(prefetch);

    return session && session->ahead == prefetch->op && prefetch->error != HBM_E_CANCELLED &&
           under_way(prefetch->core, session->behind);
}

static bool waits_for_room(struct prefetch *prefetch, const struct transition *transition,
                           const struct wanted *wanted)
{
    bool lacks_room = transition->error == HBM_E_NO_MEMORY || transition->error == HBM_E_LIMIT;

    if (!lacks_room || !may_wait(prefetch))
        return false;
    if (!prefetch->at) { /* as many may wait for their turn as it has room for */
        if (prefetch->n == AHEAD_MAX)
            return false;
        memmove(prefetch->wanted + 1, prefetch->wanted, prefetch->n++ * sizeof(*prefetch->wanted));
        prefetch->at++;
    }
    prefetch->wanted[--prefetch->at] = *wanted;
    prefetch->waits = true;
    return true;
}

/* One has left, or none will. */
static void wake_what_waits(struct core *core, const struct session *session)
{
    struct prefetch *ahead = session ? under_way(core, session->ahead) : NULL;

    if (!ahead || !ahead->waits)
        return;
    ahead->waits = false;
    advance(ahead);
}

static void book(struct prefetch *prefetch)
{
    struct op *op = op_get(prefetch->core, prefetch->op);

    op->bytes_done = prefetch->bytes_done;
    for (unsigned i = 0; i < PREFETCH_LANES; i++) {
        const struct lane *lane = &prefetch->lanes[i];
        uint64_t worked_ns = lane->worked_ns + lane->transition.worked_ns;
        op->bytes_done += transition_bytes(&lane->transition);
        /* Side by side they take as long as the longer one. */
        op->worked_ns = op->worked_ns > worked_ns ? op->worked_ns : worked_ns;
    }
}

static void progressed(struct transition *transition)
{
    book(container_of(transition, struct lane, transition)->prefetch);
}

static void came(struct transition *transition)
{
    struct lane *lane = container_of(transition, struct lane, transition);
    struct prefetch *prefetch = lane->prefetch;
    struct arena *arena = arena_get(prefetch->core, lane->wanted.arena);
    bool again = arena && waits_for_room(prefetch, transition, &lane->wanted);

    if (arena)
        arena->prefetched = !transition->error && prefetch->tier == HBM_TIER_DEVICE;
    if (arena && !again) {
        pass_over(prefetch, &lane->wanted, transition->error, transition->detail);
    }
    prefetch->bytes_done += transition->bytes_done;
    lane->worked_ns += transition->worked_ns;
    transition_clear(transition);
    *transition = (struct transition){.core = prefetch->core};
    lane->wanted.arena = 0;
    book(prefetch);
    if (prefetch->tier != HBM_TIER_DEVICE)
        wake_what_waits(prefetch->core, session_of(prefetch));
    advance(prefetch);
}

static void bring(struct lane *lane, const struct wanted *wanted)
{
    struct prefetch *prefetch = lane->prefetch;
    struct arena *arena = arena_get(prefetch->core, wanted->arena);

    lane->wanted = *wanted;
    lane->transition = (struct transition){
        .core = prefetch->core,
        .plans = calloc(1, sizeof(struct plan)),
        .verb = op_get(prefetch->core, prefetch->op)->verb,
        .yields = prefetch->tier != HBM_TIER_DEVICE,
        .cancellable_by_lock = prefetch->tier != HBM_TIER_DEVICE,
        .op = prefetch->op,
        .progress = progressed,
        .done = came,
    };
    if (!lane->transition.plans || plan_move(lane->transition.plans, arena, prefetch->tier)) {
        transition_clear(&lane->transition);
        show_rows(prefetch, wanted, 0, OWNER_OUT_OF_MEMORY);
        lane->wanted.arena = 0;
        return;
    }
    lane->transition.n = 1;
    arena->prefetched = prefetch->tier == HBM_TIER_DEVICE;
    transition_start(&lane->transition);
}

/* Its own wait for what is being given back. */
static bool is_own(const struct prefetch *prefetch, const struct extent_create *create)
{
    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        if (transition_creates(&prefetch->lanes[i].transition, create))
            return true;
    return false;
}

/* Whoever waits for memory comes first: a lock that waits is someone standing still. */
static bool is_wanted_by_others(const struct prefetch *prefetch, const struct device *device)
{
    list_for_each (node, &prefetch->core->memory_waiters) {
        const struct extent_create *create = list_entry(node, struct extent_create, node);
        if (create->device == device && create->tier == prefetch->tier && !is_own(prefetch, create))
            return true;
    }
    return false;
}

/* What a hint brings over the high mark would have to go again. Where that is the capacity there is just no room.
 */
static bool is_over_the_mark(const struct arena *arena)
{
    const struct tier tier = device_tier(arena->device, HBM_TIER_DEVICE);

    return tier.high < tier.capacity && tier_occupied(&tier) + arena->extent->size > tier.high;
}

/* It is there already, or stays where it is used. */
static bool needs_no_move(const struct prefetch *prefetch, const struct arena *arena)
{
    bool comes = prefetch->tier == HBM_TIER_DEVICE;

    return (arena_tier(arena) == HBM_TIER_DEVICE) == comes || (!comes && arena_is_in_use(arena));
}

static const struct wanted *next_wanted(struct prefetch *prefetch)
{
    struct core *core = prefetch->core;

    while (prefetch->at < prefetch->n && !prefetch->waits) {
        const struct wanted *wanted = &prefetch->wanted[prefetch->at++];
        const struct arena *arena = arena_get(core, wanted->arena);
        if (!arena)
            continue;
        if (core->draining)
            show_rows(prefetch, wanted, 0, "the daemon stops");
        else if (arena->transition)
            pass_over(prefetch, wanted, HBM_E_BUSY, "");
        else if (needs_no_move(prefetch, arena))
            continue;
        else if (arena->live)
            show_rows(prefetch, wanted, 0, "it is used where it lies; restore brings it back");
        else if (prefetch->tier == HBM_TIER_DEVICE && is_over_the_mark(arena) && may_wait(prefetch))
            prefetch->waits = true, prefetch->at--;
        else if (prefetch->tier == HBM_TIER_DEVICE && is_over_the_mark(arena))
            show_rows(prefetch, wanted, 0, "its device is at its high mark");
        else if (is_wanted_by_others(prefetch, arena->device))
            show_rows(prefetch, wanted, 0, "others wait for memory of its device");
        else
            return wanted;
    }
    return NULL;
}

static bool is_under_way(const struct prefetch *prefetch)
{
    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        if (prefetch->lanes[i].wanted.arena)
            return true;
    return false;
}

static void end_prefetch(struct prefetch *prefetch, struct op *op)
{
    struct core *core = prefetch->core;
    bool leaves = prefetch->tier != HBM_TIER_DEVICE;
    uint64_t session = op->session;
    char detail[HBM_DETAIL_MAX] = "";
    int error = prefetch->error;

    if (prefetch->failed)
        snprintf(detail, sizeof(detail), "%zu of %zu arenas did not %s: %.180s", prefetch->failed, prefetch->asked,
                 leaves ? "leave" : "come", prefetch->detail);
    last_look(op, error);
    op_end(op, error, error == HBM_E_CANCELLED ? op->detail : detail);
    if (leaves && session)
        wake_what_waits(core, session_get(core, session));
}

static void advance(struct prefetch *prefetch)
{
    const struct wanted *wanted;

    if (prefetch->advancing)
        return;
    prefetch->advancing = true;
    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        while (!prefetch->lanes[i].wanted.arena && (wanted = next_wanted(prefetch)))
            bring(&prefetch->lanes[i], wanted);
    prefetch->advancing = false;
    if (!is_under_way(prefetch) && !prefetch->waits)
        end_prefetch(prefetch, op_get(prefetch->core, prefetch->op));
}

/* ---- The op ---- */

static void cancel_prefetch(struct op *op)
{
    struct prefetch *prefetch = op->state_of_verb;

    prefetch->error = HBM_E_CANCELLED;
    prefetch->failed = 0;
    prefetch->at = prefetch->n;
    prefetch->waits = false;
    prefetch->advancing = true;
    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        if (prefetch->lanes[i].wanted.arena)
            transition_cancel(&prefetch->lanes[i].transition, op->detail);
    prefetch->advancing = false;
    advance(prefetch);
}

static void clear_prefetch(struct op *op)
{
    struct prefetch *prefetch = op->state_of_verb;

    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        transition_clear(&prefetch->lanes[i].transition);
    free(prefetch->wanted);
    free(prefetch);
}

struct op *prefetch_new(struct core *core, enum hbm_tier tier, struct wanted *wanted, size_t n,
                        const struct principal *who, struct session *session, size_t n_rows, int *error,
                        char *detail)
{
    struct prefetch *prefetch = calloc(1, sizeof(*prefetch));
    struct op *op = NULL;

    if (prefetch) {
        op = op_new(core, tier == HBM_TIER_DEVICE ? "prefetch" : "offload", who, session, n_rows, error, detail);
    } else {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
    }
    if (!op) {
        free(wanted);
        free(prefetch);
        return NULL;
    }
    prefetch->core = core;
    prefetch->tier = tier;
    prefetch->op = op->id;
    prefetch->wanted = wanted;
    prefetch->n = prefetch->asked = n;
    for (unsigned i = 0; i < PREFETCH_LANES; i++)
        prefetch->lanes[i] = (struct lane){.prefetch = prefetch, .transition = {.core = core}};
    op->state_of_verb = prefetch;
    op->cancel = cancel_prefetch;
    op->clear = clear_prefetch;
    for (size_t i = 0; i < n; i++) {
        const struct arena *arena = arena_get(core, wanted[i].arena);
        op->bytes_total += arena && arena_tier(arena) != HBM_TIER_DEVICE ? extent_raw_size(arena->extent) : 0;
    }
    return op;
}

void prefetch_start(struct op *op)
{
    advance(op->state_of_verb);
}

void prefetch_mark(const struct op *op, uint64_t visit)
{
    const struct prefetch *prefetch = op->state_of_verb;

    for (size_t i = prefetch->at; i < prefetch->n; i++) {
        struct arena *arena = arena_get(prefetch->core, prefetch->wanted[i].arena);
        if (arena)
            arena->visit = visit;
    }
}

void prefetch_add(struct op *op, uint64_t arena, size_t room)
{
    struct prefetch *prefetch = op->state_of_verb;

    if (prefetch->n - prefetch->at == room || prefetch->error == HBM_E_CANCELLED)
        return;
    prefetch->n -= prefetch->at;
    memmove(prefetch->wanted, prefetch->wanted + prefetch->at, prefetch->n * sizeof(*prefetch->wanted));
    prefetch->at = 0;
    prefetch->wanted[prefetch->n++] = (struct wanted){.arena = arena};
    prefetch->asked++;
    op->bytes_total += extent_raw_size(arena_get(prefetch->core, arena)->extent);
}
