#include "daemon/core/weight.h"

void weight_moved(struct arena *arena)
{
    struct model *model = arena->weighs_for;
    bool away = arena_tier(arena) != HBM_TIER_DEVICE || arena->transition;

    if (!model || away == arena->weighed_away)
        return;
    model->weight_away += away ? arena->weight : -arena->weight;
    arena->weighed_away = away;
}

void weight_add(struct buffer *buffer)
{
    struct arena *arena = buffer->arena;

    /* An arena is one model's, whatever a damaged ledger says. */
    if (buffer->weighed || !buffer->model || (arena->weighs_for && arena->weighs_for != buffer->model))
        return;
    arena->weighs_for = buffer->model;
    weight_moved(arena);
    buffer->weighed = true;
    arena->n_weighed++;
    arena->weight += buffer->size;
    buffer->model->weight += buffer->size;
    buffer->model->weight_away += arena->weighed_away ? buffer->size : 0;
}

void weight_remove(struct buffer *buffer)
{
    struct arena *arena = buffer->arena;

    if (!buffer->weighed)
        return;
    buffer->weighed = false;
    arena->weight -= buffer->size;
    arena->weighs_for->weight -= buffer->size;
    arena->weighs_for->weight_away -= arena->weighed_away ? buffer->size : 0;
    if (!--arena->n_weighed)
        arena->weighs_for = NULL;
}
