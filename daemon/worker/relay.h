/* A copy between host memory and another device's memory, over this device's link: each piece stops here. */
#pragma once

#include "daemon/worker/device.h"
#include "daemon/worker/job.h"

struct relay {
    struct job *job;
    bool to_host; /* else from it */
    const unsigned char *source;
    unsigned char *target;
    uint64_t bytes;
    uint64_t *hashes; /* one a grain */
};

int relay_copy(const struct relay *relay, struct failure *failure);
