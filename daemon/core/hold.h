/* Who has an arena: one transition at a time, or who holds it still. Shared by transition.c and hold.c. */
#pragma once

#include "daemon/core/transition.h"

/* Writes the sentence into transition->detail and returns error. */
__attribute__((format(printf, 3, 4))) int transition_refuse(struct transition *transition, int error,
                                                            const char *format, ...);
/* A sentence that names the operation which has the arena; text. */
const char *transition_words(const struct transition *transition, char *text, size_t size);
/* BUSY, in these words. */
int transition_busy_with(struct transition *transition, const struct transition *other);
/* Gives the arenas back and wakes who waited for them. */
void transition_settle(struct transition *transition);
/* Nobody needs to let go any more. */
void transition_withdraw(struct transition *transition);
