#include "client/ctl/interrupt.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t flag;

static void on_signal(int number)
{
    (void)number;
    flag = 1;
}

void interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

bool interrupted(void)
{
    return flag;
}

void interrupt_sleep(double seconds)
{
    struct timespec now, end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)floor(seconds);
    end.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    /* In steps: a signal between the test and the sleep would otherwise be slept through. */
    while (!flag) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double left = (double)(end.tv_sec - now.tv_sec) + (double)(end.tv_nsec - now.tv_nsec) / 1e9;
        if (left <= 0)
            return;
        double step = left < 0.1 ? left : 0.1;
        struct timespec nap = {0, (long)(step * 1e9)};
        nanosleep(&nap, NULL);
    }
}
