#include "daemon/notify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-journal.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"

void notify_ready(const char *status)
{
    sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void notify_reloading(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
               (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void notify_stopping(void)
{
    sd_notify(0, "STOPPING=1\nSTATUS=waiting for operations to end");
}

/* From the loop, so that one that is stuck starves it. Not withheld from a daemon that is degraded (core/health.h): a
 * restart would find the same fds, the same memory and the same full disk. */
static void feed(uv_timer_t *timer)
{
    (void)timer;
    sd_notify(0, "WATCHDOG=1");
}

void watchdog_start(uv_loop_t *loop, struct watchdog *watchdog)
{
    uint64_t limit_us;

    if (sd_watchdog_enabled(0, &limit_us) <= 0)
        return;
    uv_timer_init(loop, &watchdog->timer);
    watchdog->open = true;
    uv_timer_start(&watchdog->timer, feed, 0, limit_us / 2000);
}

void watchdog_stop(struct watchdog *watchdog)
{
    if (watchdog->open)
        uv_close((uv_handle_t *)&watchdog->timer, NULL);
    watchdog->open = false;
}

static void to_journal(enum log_level level, const char *field, const char *line)
{
    sd_journal_send("MESSAGE=%s", line, "PRIORITY=%d", (int)level, "SYSLOG_IDENTIFIER=hbmd", "%s",
                    field ? field : "HBM=1", NULL);
}

void journal_attach(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uint64_t device, inode;
    struct stat status;

    if (stream && sscanf(stream, "%" SCNu64 ":%" SCNu64, &device, &inode) == 2 &&
        fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode)
        log_set_sink(to_journal);
}
