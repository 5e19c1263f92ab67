/* A tensor as the codecs see it: rows of equal length, cut into units.
 *
 *   granularity    row                rows              period    group    groups
 *   per tensor     all elements       1                 1         row      1
 *   per channel    those after axis   outer * channels  channels  row      1
 *   per group      the last axis      those before it   rows      group    ceil(row/group)
 *
 * Element i lies in row i/row at i%row; its unit is (i/row % period) * groups + (i%row)/group. */
#pragma once

#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/element.h"

#ifdef __cplusplus
extern "C" {
#endif

struct codec_view {
    uint64_t count; /* elements; where it is 0 only units means anything */
    uint64_t units; /* scales */
    uint64_t row;   /* elements a row */
    uint64_t rows;
    uint64_t period; /* rows after which the units start again */
    uint64_t group;  /* elements a unit has in a row; the last unit of a row may be shorter */
    uint64_t groups; /* units a row */
    /* floor(2^64 / n) of each, for codec_divide; of 1 it is 2^64 - 1. */
    uint64_t per_row, per_period, per_group, per_groups;
};

/* n / by without the device's long division: the high half of n * floor(2^64 / by) is the quotient or one less. */
ELEMENT_FN uint64_t codec_divide(uint64_t n, uint64_t by, uint64_t per)
{
#ifdef __CUDA_ARCH__
    uint64_t quotient = __umul64hi(n, per);
#else
    uint64_t quotient = (uint64_t)((unsigned __int128)n * per >> 64);
#endif
    return quotient + (n - quotient * by >= by);
}

/* The job must be codec_supported. */
struct codec_view codec_view_of(const struct codec_job *job);

/* A position that moves element by element and knows its unit without dividing again. */
struct codec_walk {
    uint64_t in_row;
    uint64_t in_group;
    uint64_t row; /* modulo period */
    uint64_t unit;
};

ELEMENT_FN struct codec_walk codec_walk_at(const struct codec_view *view, uint64_t index)
{
    struct codec_walk walk;
    uint64_t row, group;

    row = codec_divide(index, view->row, view->per_row);
    walk.in_row = index - row * view->row;
    if (view->units == 1) {
        walk.in_group = walk.in_row;
        walk.row = walk.unit = 0;
        return walk;
    }
    walk.row = view->period == view->rows ? row : row - codec_divide(row, view->period, view->per_period) * view->period;
    group = view->groups == 1 ? 0 : codec_divide(walk.in_row, view->group, view->per_group);
    walk.in_group = walk.in_row - group * view->group;
    walk.unit = walk.row * view->groups + group;
    return walk;
}

ELEMENT_FN void codec_walk_step(const struct codec_view *view, struct codec_walk *walk)
{
    walk->in_row++;
    walk->in_group++;
    if (walk->in_row == view->row) {
        walk->in_row = walk->in_group = 0;
        walk->unit++;
        if (++walk->row == view->period)
            walk->row = walk->unit = 0;
    } else if (walk->in_group == view->group) {
        walk->in_group = 0;
        walk->unit++;
    }
}

/* True if the next n elements share the unit of this one. */
ELEMENT_FN bool codec_walk_uniform(const struct codec_view *view, const struct codec_walk *walk, unsigned n)
{
    return view->units == 1 || (view->row - walk->in_row >= n && view->group - walk->in_group >= n);
}

#ifdef __cplusplus
}
#endif
