/* Reads packets, refuses them or has their jobs done. */
#pragma once

struct job;

/* Serves until the owner closes its end; the exit code. */
int control_serve(int fd);
/* Answers a job that has gone well before its thread has put away what it used: that takes the driver as long as the
 * way to the owner and its client. Any thread, once a job. */
void control_answer(struct job *job);
/* Who makes something, or counts what is free, must not meet what an answered job still holds. Not for one that is
 * answered itself. */
void control_wait_for_releases(void);
