/* Memory that a client has been given before its bytes are there: it lets its device wait for them, and asks ARRIVED how
 * that ends. The arena is not resident before it is swapped in, and what a move that fails has been given out of stays with
 * those who have it (mapping->early) until they let go: nobody else ever sees it. */
#pragma once

#include "daemon/core/session.h"
#include "daemon/core/transition.h"

/* What the arena's move is filling at this moment, for those who map it; NULL: nothing that could be given out. */
struct extent *coming_to(const struct arena *arena);
void coming_give(struct mapping *mapping, struct extent *extent);
/* The client has not got it mapped any more, or never will. */
void coming_forget(struct mapping *mapping);
/* The move is about to fill what it made: whoever waits for that is told. */
void coming_begins(struct transition *transition);
/* It has been swapped in, with all its bytes. */
void coming_is_here(struct arena *arena);
/* It won't be: those who have been given something of it learn why when they ask. */
void coming_has_failed(const struct transition *transition);
