/* The steps of a plan, as jobs, one after another. */
#pragma once

#include "daemon/core/transition.h"

/* Submits the track's next step. False if its plan has none left. */
bool track_next(struct track *track, void (*done)(struct job *job));
/* Books what the job that just ended did. 0, or its error with a sentence in transition->detail. */
int track_book(struct track *track);
