/* A bar on stderr where someone watches; nothing elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown;
    double started;
    uint64_t total;
};

double progress_now(void); /* seconds, monotonic */
void progress_begin(struct progress *progress, uint64_t total, bool wanted);
void progress_update(const struct progress *progress, uint64_t done);
void progress_end(struct progress *progress);
