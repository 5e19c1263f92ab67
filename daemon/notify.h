/* What the service manager is told, and the journal. All of it is silent where there is neither. */
#pragma once

#include <stdbool.h>
#include <uv.h>

struct watchdog {
    uv_timer_t timer;
    bool open;
};

void notify_ready(const char *status);
void notify_reloading(void);
void notify_stopping(void);
/* Feeds the manager's watchdog from the loop, if it watches: a loop that hangs is restarted. */
void watchdog_start(uv_loop_t *loop, struct watchdog *watchdog);
void watchdog_stop(struct watchdog *watchdog);
/* Log lines go to the journal as entries with fields, if that is where our stderr goes. */
void journal_attach(void);
