/* int8-split: which channels lie apart, and where. */
#pragma once

#include "kernels/view.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPLIT_BITS 31u /* of a finite magnitude */

/* The tensor with its channels as units. */
struct codec_view split_view_of(const struct codec_job *job);

/* Among what lies apart: of an element of the k-th of `kept` channels. */
ELEMENT_FN uint64_t split_at(const struct codec_view *view, uint64_t kept, uint64_t k, uint64_t index, uint64_t in_row)
{
    uint64_t row = codec_divide(index, view->row, view->per_row);

    return (codec_divide(row, view->period, view->per_period) * kept + k) * view->row + in_row;
}

#ifdef __cplusplus
}
#endif
