/* Self-protection: what the daemon lacks for taking on more. Then it refuses new memory, leases and sessions with the
 * reason; what is there goes on, frees above all, and it looks again by itself. */
#pragma once

#include "daemon/core/core.h"

/* 0, or DEGRADED with a sentence in detail. For whoever is about to begin something that lasts. */
int health_check(struct core *core, char *detail);
/* Looks without refusing anybody: for status. */
void health_look(struct core *core);
/* Something is lacking: looks again by itself, and mends. */
void health_watch(struct core *core);
const char *ailment_name(enum ailment ailment);
const char *ailment_remedy(enum ailment ailment);
void health_tick(struct timer *timer);
