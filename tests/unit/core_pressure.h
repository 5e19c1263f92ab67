/* For the cases about want of room: a device of 4 MiB, and what fills it. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core_world.h"

static inline void want_room(unsigned high, unsigned low)
{
    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){high, low};
    w.core->limits.watermarks[HBM_TIER_HOST] = (struct watermarks){100, 90};
    w.device->capacity[HBM_TIER_DEVICE] = 4 * MIB;
}

static inline int begin(void **state)
{
    (void)state;
    world_begin(&w);
    want_room(100, 90);
    return 0;
}

/* 1 MiB each, kept and leased by nobody. */
static inline void make_idle(const char *names)
{
    for (const char *name = names; *name; name++)
        make_kept(&w, (char[]){*name, 0}, 256, 1024);
}

/* "dh.": of one-letter names, in which tier each lies. */
static inline const char *tiers(const char *names)
{
    static char text[16];
    unsigned n = 0;

    for (const char *name = names; *name; name++)
        text[n++] = hbm_tier_name(arena_tier(named(&w, (char[]){*name, 0})->arena))[0] == 'd'
                        ? (arena_tier(named(&w, (char[]){*name, 0})->arena) == HBM_TIER_DISK ? 'k' : 'd')
                        : 'h';
    text[n] = 0;
    return text;
}

static inline struct ask *ask_alloc(struct session *session, uint64_t bytes)
{
    struct alloc_args args = {.dims = {bytes}, .rank = 1, .dtype = HBM_U8, .mode = 0600};
    struct ask *question = ask(&w, session->who, session);

    verb_alloc(w.core, &question->call, &args);
    world_run(&w);
    return question;
}

static inline int alloc(uint64_t mib)
{
    struct ask *question = ask_alloc(client(&w, alice), mib * MIB);

    for (unsigned i = 0; i < 100 && !question->answers; i++)
        world_pass(&w, 20);
    return error_of(&w, question);
}

/* Attached as a client does it: mapped, and locked or not. */
static inline struct lease *hold(struct session *session, const char *name, bool locked)
{
    struct lease *lease = attach(&w, session, name, HBM_RO);

    lockword_arrive(&session->words[lease->mappings[0]->slot], locked);
    return lease;
}

static inline _Atomic uint64_t *word_of(const struct lease *lease)
{
    return &lease->session->words[lease->mappings[0]->slot];
}

static inline void all_are_whole(const char *names)
{
    for (const char *name = names; *name; name++)
        assert_true(is_filled(named(&w, (char[]){*name, 0}), 1));
    world_check_books(&w);
}
