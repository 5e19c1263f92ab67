#include "client/ctl/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/ctl/terminal.h"
#include "client/ctl/units.h"

#define BAR 24
#define QUIET_SECONDS 1 /* what takes no longer needs no bar */

double progress_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void progress_begin(struct progress *progress, uint64_t total, bool wanted)
{
    *progress = (struct progress){wanted && terminal_watched(), progress_now(), total};
}

void progress_update(const struct progress *progress, uint64_t done)
{
    char bar[BAR + 1], has[UNITS_TEXT], all[UNITS_TEXT], rate[UNITS_TEXT], left[UNITS_TEXT];
    double seconds = progress_now() - progress->started;
    double fraction = progress->total ? (double)done / (double)progress->total : 0;
    double speed = seconds > 0 ? (double)done / seconds : 0;

    if (!progress->shown || seconds < QUIET_SECONDS)
        return;
    if (fraction > 1)
        fraction = 1;
    memset(bar, ' ', BAR);
    memset(bar, '#', (size_t)(fraction * BAR));
    bar[BAR] = 0;
    fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %s", bar, fraction * 100, units_bytes((double)done, has),
            units_bytes((double)progress->total, all), units_rate(speed / 1e9, rate));
    if (speed > 0 && progress->total > done)
        fprintf(stderr, "  %s left", units_seconds((double)(progress->total - done) / speed, left));
    fputs("\033[K", stderr);
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}
