/* The worker's end of the socketpair. Any thread may send. */
#pragma once

#include <pthread.h>
#include <stdint.h>

struct job;

struct channel {
    int fd; /* borrowed */
    pthread_mutex_t mutex;
};

void channel_init(struct channel *channel, int fd);
/* Answers a job with its outcome. */
void channel_reply(struct channel *channel, const struct job *job);
/* Answers a packet that never became a job. */
void channel_refuse(struct channel *channel, uint32_t opcode, uint32_t serial, int error, const char *detail);
void channel_progress(struct channel *channel, uint32_t serial, uint64_t bytes);
