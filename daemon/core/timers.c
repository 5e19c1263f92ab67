/* The timers: a pairing heap made of lists. core->timers are its roots; each timer has the later ones below it.
 * Arming takes one step, stopping and firing as many as the logarithm of how many there are, on the average;
 * nothing is allocated. */
#include "daemon/core/core.h"

static struct timer *timer_of(struct list *node)
{
    return list_entry(node, struct timer, node);
}

/* Roots are paired, the later one below the earlier, until one is left: the earliest. NULL if there is none. */
static struct timer *earliest(struct core *core)
{
    struct list *first = list_first(&core->timers);

    while (first && first->next != &core->timers) {
        struct timer *a = timer_of(first), *b = timer_of(first->next);
        struct timer *early = b->at_ms < a->at_ms ? b : a, *late = early == a ? b : a;
        list_unlink(&late->node);
        list_append(&early->later, &late->node);
        list_unlink(&early->node);
        list_append(&core->timers, &early->node);
        first = list_first(&core->timers);
    }
    return first ? timer_of(first) : NULL;
}

static void ask_for_wake_up(struct core *core)
{
    const struct timer *timer = earliest(core);

    core->env.wake_at(core->env.context, timer ? timer->at_ms : 0);
}

static void take_out(struct core *core, struct timer *timer)
{
    timer->at_ms = 0;
    list_unlink(&timer->node);
    list_for_each_safe (node, &timer->later) {
        list_unlink(node);
        list_append(&core->timers, node);
    }
}

void timer_arm(struct core *core, struct timer *timer, uint64_t delay_ms)
{
    if (timer->at_ms)
        take_out(core, timer);
    timer->at_ms = core_now(core) + delay_ms;
    if (!timer->at_ms)
        timer->at_ms = 1;
    list_init(&timer->later);
    list_append(&core->timers, &timer->node);
    ask_for_wake_up(core);
}

void timer_stop(struct core *core, struct timer *timer)
{
    if (!timer->at_ms)
        return;
    take_out(core, timer);
    ask_for_wake_up(core);
}

void core_tick(struct core *core)
{
    uint64_t now = core_now(core);
    struct timer *timer;

    /* A timer that is re-armed while firing gets a later time or fires at the next tick: no endless loop. */
    for (unsigned fired = 0; fired < 1000 && (timer = earliest(core)) && timer->at_ms <= now; fired++) {
        take_out(core, timer);
        timer->fire(timer);
    }
    ask_for_wake_up(core);
}
