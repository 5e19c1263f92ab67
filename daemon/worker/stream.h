/* A copy with the device on at least one side: pieces queued ahead on one stream, so that the link never waits. */
#pragma once

#include "daemon/worker/device.h"
#include "daemon/worker/job.h"

struct stream_copy {
    struct job *job;
    enum device_stream stream;
    const unsigned char *source;
    unsigned char *target;
    uint64_t bytes;
    uint64_t *hashes; /* one a grain, or NULL; only where the CPU reaches one side: not DEVICE_COMPUTE */
};

int stream_copy(const struct stream_copy *copy, struct failure *failure);
