/* For the cases about a model that comes and goes layer by layer: "m", with a group for each. */
#pragma once

#include <stdio.h>

#include "core_world.h"

#define LAYERS 5

static inline struct buffer *layer(unsigned i)
{
    char name[32];

    snprintf(name, sizeof(name), "m/layer.%u.w", i);
    return named(&w, name);
}

/* Groups on the device, of so many, as "01--". */
static inline const char *there_of(unsigned groups)
{
    static char text[16];

    for (unsigned i = 0; i < groups; i++)
        text[i] = arena_tier(layer(i)->arena) == HBM_TIER_DEVICE ? (char)('0' + i) : '-';
    text[groups] = 0;
    return text;
}

static inline const char *there(void)
{
    return there_of(LAYERS);
}
