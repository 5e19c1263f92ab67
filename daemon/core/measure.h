/* Before memory leaves by a codec whose size varies: its worker says how long it comes out. */
#pragma once

#include "daemon/core/transition.h"

/* Of some plan's buffers nobody knows yet how long they come out. */
bool measure_is_due(const struct transition *transition);
/* Asks of the next plan; done follows. False: all are measured, or it can't be asked for: *error, with a sentence in
 * transition->detail. */
bool measure_next(struct transition *transition, void (*done)(struct job *job), int *error);
/* Takes the answer: where everything lies, and how large the memory is to be. 0, or an error likewise. */
int measure_book(struct transition *transition);
