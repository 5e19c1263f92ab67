/* What of a transition's arenas is under way, for transition.c. */
#pragma once

#include "daemon/core/transition.h"

/* 0 or NO_MEMORY with detail. */
int tracks_make(struct transition *transition);
/* Also of one that is dropped where it stands. */
void tracks_drop(struct transition *transition);
/* An idle one. NULL: as many are under way as should be, which are `at_once`, or small ones. */
struct track *tracks_next(struct transition *transition, unsigned at_once);
/* All but that one (NULL: all). The transition may have ended by it, unless one is left. */
void tracks_cancel(struct transition *transition, const struct track *but);
/* No more of it begins. */
bool transition_is_over(const struct transition *transition);
