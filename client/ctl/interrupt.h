/* SIGINT, SIGTERM and SIGHUP as a flag, so that work is undone and not left half-done. */
#pragma once

#include <stdbool.h>

/* From here on the first signal sets the flag; a second one kills as always. */
void interrupt_watch(void);
bool interrupted(void);
/* Sleeps; ends early when the flag is set. */
void interrupt_sleep(double seconds);
