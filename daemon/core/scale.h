/* The scale of an encoded buffer: a buffer of its own in the same arena, NAME.scale, F32, one dimension. */
#pragma once

#include "daemon/core/transition.h"

/* Linked to its parent. NULL with error and detail. */
struct buffer *scale_new(struct buffer *parent, const struct placement *placement, int *error, char *detail);
/* Where it lies now; writes its row. */
void scale_place(struct buffer *scale, const struct buffer *parent, const struct placement *placement);
