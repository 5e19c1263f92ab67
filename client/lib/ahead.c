#include "client/lib/ahead.h"

#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/fetch.h"
#include "client/lib/lease.h"

#define NO_TURN UINT32_MAX

void ahead_init(struct ahead *ahead)
{
    pthread_mutex_init(&ahead->mutex, NULL);
    ahead->at = NO_TURN;
}

void ahead_clear(struct ahead *ahead)
{
    free(ahead->order);
    free(ahead->turn);
    pthread_mutex_destroy(&ahead->mutex);
}

/* Once for each time that it goes away, or is about to leave the window, and again where whoever was asked is gone.
 */
static bool is_to_be_asked_for(const struct hbm_model *model, struct mapping *mapping)
{
    uint64_t life = model->session->conn.life, goes = LOCKWORD_AWAY | (model->ahead.window ? LOCKWORD_RECLAIM : 0);

    return (atomic_load_explicit(mapping->word, memory_order_relaxed) & goes) &&
           atomic_exchange_explicit(&mapping->asked, life, memory_order_relaxed) != life;
}

static struct mapping *mapping_at(const struct hbm_model *model, uint32_t turn)
{
    return model->holds[model->ahead.order[turn]].mapping;
}

/* Locked: the daemon wakes the model in this order. Whoever is not there to hear it does without, until the next
 * lock. */
static void tell_order(struct hbm_model *model)
{
    struct ahead *ahead = &model->ahead;
    struct wire_order_request request = {.lease = model->lease};

    if (model->session->conn.state != CONN_UP)
        return;
    ahead->told = model->session->conn.life;
    for (uint32_t i = 0; i < ahead->n; i++) {
        request.slots[request.n++] = mapping_at(model, i)->slot;
        if (request.n < WIRE_SLOTS_MAX && i + 1 < ahead->n)
            continue;
        conn_send(&model->session->conn, WIRE_ORDER, &request);
        request.at = i + 1;
        request.n = 0;
    }
}

void ahead_of(struct hbm_model *model, struct hold *const *holds, unsigned n)
{
    struct wire_ahead_request request = {0};
    struct ahead *ahead = &model->ahead;
    uint64_t told = atomic_load_explicit(&ahead->told, memory_order_relaxed);
    bool tell = told && told != model->session->conn.life;

    if (n == 0 || (!tell && !atomic_load_explicit(&ahead->depth, memory_order_relaxed)))
        return;
    /* Nobody hears it now: the next lock says it. */
    if (model->session->conn.state != CONN_UP)
        return;
    pthread_mutex_lock(&ahead->mutex);
    if (tell)
        tell_order(model);
    uint32_t turn = ahead->n ? ahead->turn[holds[n - 1] - model->holds] : NO_TURN;
    for (uint32_t i = 1; turn != NO_TURN && i <= ahead->depth; i++) {
        struct mapping *mapping = model->holds[ahead->order[(turn + i) % ahead->n]].mapping;
        if (is_to_be_asked_for(model, mapping))
            request.slots[request.n++] = mapping->slot;
    }
    pthread_mutex_unlock(&ahead->mutex);
    if (request.n)
        conn_send(&model->session->conn, WIRE_AHEAD, &request);
}

/* ---- The window ---- */

static bool is_inside(const struct ahead *ahead, uint32_t turn)
{
    uint32_t first = (ahead->at + ahead->n - ahead->behind % ahead->n) % ahead->n;

    return ahead->at != NO_TURN &&
           (uint64_t)(turn + ahead->n - first) % ahead->n <= (uint64_t)ahead->behind + ahead->depth;
}

static void say_behind(struct hbm_model *model, struct wire_behind_request *request)
{
    if (request->n)
        conn_send(&model->session->conn, WIRE_BEHIND, request);
    request->n = 0;
}

/* One that is locked says it when it is unlocked; one that is away here may be back all the same, if it was asked
 * for. */
static void let_leave(struct hbm_model *model, struct mapping *mapping, struct wire_behind_request *request)
{
    uint64_t word = atomic_fetch_and_explicit(mapping->word, ~LOCKWORD_WANTED, memory_order_relaxed);

    bool asked = atomic_exchange_explicit(&mapping->asked, 0, memory_order_relaxed);

    if ((word & LOCKWORD_COUNT) || ((word & LOCKWORD_AWAY) && !asked))
        return;
    request->slots[request->n++] = mapping->slot;
    if (request->n == WIRE_SLOTS_MAX)
        say_behind(model, request);
}

void ahead_moves_to(struct hbm_model *model, const struct hold *hold)
{
    struct wire_behind_request request = {0};
    struct ahead *ahead = &model->ahead;

    if (!atomic_load_explicit(&ahead->window, memory_order_relaxed))
        return;
    pthread_mutex_lock(&ahead->mutex);
    uint32_t turn = ahead->turn[hold - model->holds];
    if (ahead->window && turn != NO_TURN && turn != ahead->at) {
        bool first = ahead->at == NO_TURN;
        ahead->at = turn;
        for (uint32_t i = 0; i < ahead->n; i++) {
            struct mapping *mapping = mapping_at(model, i);
            bool wanted = atomic_load_explicit(mapping->word, memory_order_relaxed) & LOCKWORD_WANTED;
            if (is_inside(ahead, i) && !wanted)
                atomic_fetch_or_explicit(mapping->word, LOCKWORD_WANTED, memory_order_relaxed);
            else if (!is_inside(ahead, i) && (first || wanted))
                let_leave(model, mapping, &request);
        }
    }
    say_behind(model, &request);
    pthread_mutex_unlock(&ahead->mutex);
}

void ahead_leaves(struct hbm_model *model, const struct hold *hold)
{
    struct wire_behind_request request = {0};
    struct ahead *ahead = &model->ahead;

    if (!atomic_load_explicit(&ahead->window, memory_order_relaxed))
        return;
    pthread_mutex_lock(&ahead->mutex);
    uint32_t turn = ahead->turn[hold - model->holds];
    if (ahead->window && turn != NO_TURN && ahead->at != NO_TURN && !is_inside(ahead, turn))
        let_leave(model, hold->mapping, &request);
    say_behind(model, &request);
    pthread_mutex_unlock(&ahead->mutex);
}

/* Locked. */
static void want_nothing(struct hbm_model *model)
{
    struct ahead *ahead = &model->ahead;

    for (uint32_t i = 0; ahead->window && i < ahead->n; i++)
        atomic_fetch_and_explicit(mapping_at(model, i)->word, ~LOCKWORD_WANTED, memory_order_relaxed);
    ahead->at = NO_TURN;
}

void ahead_end(struct hbm_model *model)
{
    want_nothing(model);
}

/* ---- Declarations ---- */

static int arena_by_group(const hbm_model *model, const char *group, uint32_t *ret)
{
    const struct table *table = &model->table;

    if (!group)
        return set_error(HBM_E_INVALID, "a group is NULL");
    for (*ret = 0; *ret < table->header->n_arenas; ++*ret)
        if (!strcmp(group, table->strings + table->arenas[*ret].group))
            return 0;
    return set_error(HBM_E_NOT_FOUND, "group %s", group);
}

static int give_turns(const hbm_model *model, const char *const *groups, uint32_t n, uint32_t *order,
                      uint32_t *turn)
{
    for (uint32_t i = 0; i < model->table.header->n_arenas; i++)
        turn[i] = NO_TURN;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t arena = i;
        int error = groups ? arena_by_group(model, groups[i], &arena) : 0;
        if (error)
            return error;
        if (turn[arena] != NO_TURN)
            return set_error(HBM_E_INVALID, "group %s stands twice in the order", groups[i]);
        order[i] = arena;
        turn[arena] = i;
    }
    return 0;
}

static void swap(uint32_t **a, uint32_t **b)
{
    uint32_t *kept = *a;

    *a = *b;
    *b = kept;
}

static int model_check(const hbm_model *model)
{
    return model ? session_check(model->session) : set_error(HBM_E_INVALID, "the model is NULL");
}

int hbm_model_order(hbm_model *model, const char *const *groups, unsigned n, unsigned depth)
{
    int error = model_check(model);

    if (error)
        return error;
    uint32_t n_arenas = model->table.header->n_arenas, turns = groups ? n : n_arenas;
    if ((groups && n == 0) || (!groups && n) || turns > n_arenas)
        return set_error(HBM_E_INVALID, "%u groups in the order, of the %u that the model has", n, n_arenas);
    FREE uint32_t *order = calloc(turns + 1, sizeof(*order));
    FREE uint32_t *turn = calloc(n_arenas + 1, sizeof(*turn));
    if (!order || !turn)
        return set_system_error("malloc", ENOMEM);
    error = give_turns(model, groups, turns, order, turn);
    if (error)
        return error;
    if (depth >= turns)
        depth = turns ? turns - 1 : 0;
    pthread_mutex_lock(&model->ahead.mutex);
    want_nothing(model);
    swap(&model->ahead.order, &order);
    swap(&model->ahead.turn, &turn);
    model->ahead.n = turns;
    model->ahead.depth = depth < WIRE_SLOTS_MAX ? depth : WIRE_SLOTS_MAX;
    tell_order(model);
    pthread_mutex_unlock(&model->ahead.mutex);
    return 0;
}

int hbm_model_window(hbm_model *model, unsigned behind, unsigned flags)
{
    struct wire_window_reply reply;
    int error = model_check(model);

    if (error)
        return error;
    struct ahead *ahead = &model->ahead;
    if (flags & ~(unsigned)HBM_FORCE || (behind != HBM_FOREVER && !ahead->n))
        return set_error(HBM_E_INVALID, flags & ~(unsigned)HBM_FORCE ? "flags" : "no order is declared");
    if (behind != HBM_FOREVER) {
        uint64_t groups = (uint64_t)behind + ahead->depth + 1;
        struct wire_window_request request = {
            .lease = model->lease, .groups = groups < ahead->n ? (uint32_t)groups : ahead->n, .flags = flags};
        error = conn_call_again(&model->session->conn, WIRE_WINDOW, &request, NULL, &reply, NULL);
    }
    if (error)
        return error;
    pthread_mutex_lock(&ahead->mutex);
    want_nothing(model);
    ahead->behind = behind;
    ahead->window = behind != HBM_FOREVER;
    pthread_mutex_unlock(&ahead->mutex);
    return 0;
}
