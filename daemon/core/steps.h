/* The steps of a plan, as jobs, one after another. */
#pragma once

#include "daemon/core/transition.h"

/* Submits the track's next step. False if its plan has none left, or the step can't be asked for: that is the
 * transition's step_error then. */
bool track_next(struct track *track, void (*done)(struct job *job));
/* Books what the job that just ended did; reply: the fd that came with its answer, or -1. 0, or its error with a sentence in
 * transition->detail. */
int track_book(struct track *track, int reply);
