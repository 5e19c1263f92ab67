/* What each model weighs, and how much of it is away from its device or on the move: kept, since whoever looks for room
 * asks every few milliseconds (daemon/core/survey.c). */
#pragma once

#include "daemon/core/model.h"

/* It is its model's now, with its present size; and no more, before it goes or its size changes. */
void weight_add(struct buffer *buffer);
void weight_remove(struct buffer *buffer);
/* After each change of where the arena lies, or of whether it moves. */
void weight_moved(struct arena *arena);
