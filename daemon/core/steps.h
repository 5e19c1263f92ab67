/* The steps of a transition's plans, as jobs, one after another. */
#pragma once

#include "daemon/core/transition.h"

/* Submits the transition's next step; plans whose steps are done are passed over. False if there is none left. */
bool steps_next(struct transition *transition, void (*done)(struct job *job));
/* Books what the job that just ended did. 0, or its error with a sentence in transition->detail. */
int steps_book(struct transition *transition);
