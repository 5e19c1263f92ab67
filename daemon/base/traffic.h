/* What a device's links carry and have been seen to carry, counted from the jobs themselves: nothing is measured
 * for its own sake. */
#pragma once

#include <stdint.h>

struct traffic {
    unsigned jobs;                 /* that the worker has been given and has not answered */
    uint64_t queued_bytes;         /* of them, still to go */
    uint64_t moved_bytes, busy_ns; /* since the daemon started; busy: while it had jobs */
    uint64_t limit;                /* bytes a second that the operator allows; 0: no limit */
    double measured;               /* bytes a second: the best of late; 0: too little has gone over it */
    /* own */
    uint64_t counted_ns; /* busy_ns is up to here, while it has jobs */
    uint64_t sample_bytes, sample_ns;
    uint64_t second, second_bytes, last_bytes; /* what went in the running second, and in the one before */
};

/* A job of so many bytes begins; `moved` of them are done since the last word; it ends, and what of it was never
 * told as moved never will be. now: monotonic. */
void traffic_begin(struct traffic *traffic, uint64_t bytes, uint64_t now_ns);
void traffic_move(struct traffic *traffic, uint64_t moved, uint64_t now_ns);
void traffic_end(struct traffic *traffic, uint64_t unmoved, uint64_t now_ns);
/* Bytes a second over the last one to two seconds. */
double traffic_rate(const struct traffic *traffic, uint64_t now_ns);
