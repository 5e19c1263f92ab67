/* A copy with the device on at least one side: pieces queued ahead on one stream, so that the link never waits. */
#pragma once

#include "daemon/worker/head.h"

struct stream_copy {
    struct job *job;
    enum device_stream stream;
    const unsigned char *source;
    unsigned char *target;
    uint64_t bytes;
    uint64_t *hashes; /* one a grain, or NULL; not with DEVICE_COMPUTE */
    bool between;     /* two devices: the CPU reaches neither side, the stream is that of the side here */
    /* NULL, or called once, when the link has something to do. */
    int (*meanwhile)(void *context, struct failure *failure);
    void *context;
    struct head head; /* of the source: it was sent already, and is not half of it */
};

/* *hashed: false if hashes were wanted and nobody here could make them. */
int stream_copy(const struct stream_copy *copy, bool *hashed, struct failure *failure);
