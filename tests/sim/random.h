/* Random numbers that one number makes: SplitMix64. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Below n; n > 0. */
static inline unsigned random_below(struct random *random, unsigned n)
{
    return (unsigned)(random_next(random) % n);
}

static inline bool random_one_in(struct random *random, unsigned n)
{
    return random_below(random, n) == 0;
}
