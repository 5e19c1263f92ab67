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
}

void ahead_clear(struct ahead *ahead)
{
    free(ahead->order);
    free(ahead->turn);
    pthread_mutex_destroy(&ahead->mutex);
}

/* Once for each time that it goes away, and again where whoever was asked is gone. */
static bool is_to_be_asked_for(const hbm_session *session, struct mapping *mapping)
{
    uint64_t life = session->conn.life;

    return (atomic_load_explicit(mapping->word, memory_order_relaxed) & LOCKWORD_AWAY) &&
           atomic_exchange_explicit(&mapping->asked, life, memory_order_relaxed) != life;
}

void ahead_of(struct hbm_model *model, struct hold *const *holds, unsigned n)
{
    struct wire_ahead_request request = {0};
    struct ahead *ahead = &model->ahead;

    if (n == 0 || !atomic_load_explicit(&ahead->depth, memory_order_relaxed))
        return;
    /* Nobody hears it now: the next lock says it. */
    if (model->session->conn.state != CONN_UP)
        return;
    pthread_mutex_lock(&ahead->mutex);
    uint32_t turn = ahead->n ? ahead->turn[holds[n - 1] - model->holds] : NO_TURN;
    for (uint32_t i = 1; turn != NO_TURN && i <= ahead->depth; i++) {
        struct mapping *mapping = model->holds[ahead->order[(turn + i) % ahead->n]].mapping;
        if (is_to_be_asked_for(model->session, mapping))
            request.slots[request.n++] = mapping->slot;
    }
    pthread_mutex_unlock(&ahead->mutex);
    if (request.n)
        conn_send(&model->session->conn, WIRE_AHEAD, &request);
}

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

int hbm_model_order(hbm_model *model, const char *const *groups, unsigned n, unsigned depth)
{
    if (!model)
        return set_error(HBM_E_INVALID, "the model is NULL");
    int error = session_check(model->session);
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
    swap(&model->ahead.order, &order);
    swap(&model->ahead.turn, &turn);
    model->ahead.n = turns;
    model->ahead.depth = depth < FETCH_MAX ? depth : FETCH_MAX;
    pthread_mutex_unlock(&model->ahead.mutex);
    return 0;
}
