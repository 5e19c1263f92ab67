/* For the cases about a model that is away, "m", and what brings its layers back. */
#pragma once

#include <stdlib.h>

#include "core_layers.h"

/* "m" of so many groups, all of them in the host tier. */
static inline struct model *away_model(unsigned groups)
{
    struct model *model = make_model(&w, "m", groups);

    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    return model;
}

static inline struct ask *begin(struct session *session, const char *sel)
{
    struct ask *question = ask(&w, alice, session);

    verb_prefetch(w.core, &question->call, sel);
    return question;
}

static inline struct op *prefetch(const char *sel)
{
    return op_of(&w, begin(NULL, sel));
}

static inline unsigned moving(unsigned groups)
{
    unsigned n = 0;

    for (unsigned i = 0; i < groups; i++)
        n += layer(i)->arena->transition != NULL;
    return n;
}

static inline struct lease *attach_away(struct session *session, unsigned i)
{
    struct attach_args args = {.access = HBM_RO, .flags = WIRE_UNLOCKED};
    struct ask *question = ask(&w, alice, session);

    snprintf(args.name, sizeof(args.name), "m/layer.%u.w", i);
    verb_attach(w.core, &question->call, &args);
    assert_int_equal(question->answers, 1);
    uint64_t id = question->id;
    free(question);
    return lease_get(w.core, id);
}

/* One that maps groups 0 to n - 1 of the away model, and nothing of them. */
static inline struct session *reader(unsigned n, uint32_t *slots)
{
    struct session *session = client(&w, alice);

    for (unsigned i = 0; i < n; i++)
        slots[i] = attach_away(session, i)->mappings[0]->slot;
    return session;
}
