/* Preloaded: a wall clock that is a day ahead at first and steps back by a minute with every look at it, so that no
 * deadline made of it is ever met. The kernel's own goes on as it does; so do the other clocks. */
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t wrong(time_t seconds)
{
    static atomic_uint looks;

    return seconds + 86400 - 60 * (time_t)atomic_fetch_add(&looks, 1);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int error = (int)syscall(SYS_clock_gettime, clock, at);

    if (!error && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec = wrong(at->tv_sec);
    return error;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
