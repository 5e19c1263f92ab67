/* The swap at the end of a transition, or of one of its plans where they are swapped one by one: all the arenas take their
 * new form in one go, in memory and in the ledger. */
#pragma once

#include "daemon/core/transition.h"

/* May the arena take the plan's form as things stand? Asked at the start and again just before the swap.
 * 0, or BUSY with a sentence in transition->detail. */
int commit_check(struct transition *transition, const struct plan *plan, struct arena *arena);
/* 0, or an error with transition->detail: then nothing has changed. */
int commit_swap(struct transition *transition, struct plan *plans, size_t n);
