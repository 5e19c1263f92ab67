#include "daemon/core/hold.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/tracks.h"
#include "daemon/core/weight.h"

int transition_refuse(struct transition *transition, int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(transition->detail, sizeof(transition->detail), format, arguments);
    va_end(arguments);
    return error;
}

const char *transition_words(const struct transition *transition, char *text, size_t size)
{
    if (transition->op)
        snprintf(text, size, "operation 0x%016" PRIx64 " (%s) has the arena", transition->op, transition->verb);
    else
        snprintf(text, size, "another operation has the arena");
    return text;
}

int transition_busy_with(struct transition *transition, const struct transition *other)
{
    char words[96];

    return transition_refuse(transition, HBM_E_BUSY, "%s", transition_words(other, words, sizeof(words)));
}

void transition_settle(struct transition *transition)
{
    for (size_t i = 0; !transition->copy && i < transition->n; i++) {
        /* By id: who is woken may free arenas that come later. */
        struct arena *arena = arena_get(transition->core, transition->plans[i].arena);
        if (arena && arena->transition == transition)
            arena_settled(arena);
    }
}

void transition_withdraw(struct transition *transition)
{
    for (size_t i = 0; i < transition->n; i++) {
        struct plan *plan = &transition->plans[i];
        if (plan->waiting)
            reclaim_cancel(&plan->wait);
        plan->waiting = false;
    }
}

void transition_clear(struct transition *transition)
{
    if (transition->phase == TRANSITION_RECLAIMING)
        transition_withdraw(transition);
    if (transition->phase == TRANSITION_MEASURING)
        transition->measures = fd_close(transition->measures);
    tracks_drop(transition);
    for (size_t i = 0; i < transition->n; i++) {
        struct arena *arena = arena_get(transition->core, transition->plans[i].arena);
        if (arena && arena->transition == transition) {
            arena->transition = NULL;
            weight_moved(arena);
        }
        plan_clear(&transition->plans[i]);
    }
    transition->phase = TRANSITION_IDLE;
    free(transition->plans);
    transition->plans = NULL;
    transition->n = 0;
}

int transition_hold(struct transition *transition)
{
    for (size_t i = 0; i < transition->n; i++) {
        struct arena *arena = arena_get(transition->core, transition->plans[i].arena);

        if (arena && arena->transition && arena->transition->gives_way)
            transition_cancel(arena->transition, "its contents are written");
        if (!arena || arena->transition) {
            int error = arena ? transition_busy_with(transition, arena->transition)
                              : transition_refuse(transition, HBM_E_STALE,
                                                  "an arena of the operation was freed meanwhile");
            transition_settle(transition);
            return error;
        }
        arena->transition = transition;
        weight_moved(arena);
    }
    return 0;
}

void transition_let_go(struct transition *transition)
{
    transition_settle(transition);
}
