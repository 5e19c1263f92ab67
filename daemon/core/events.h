/* The event ring: what happened, for `hbmctl events`. Fixed size, nothing allocates. */
#pragma once

#include <stdint.h>

#include "daemon/base/list.h"
#include "proto/vocab.h"

#define EVENTS_KEPT 4096u

struct event {
    uint64_t seq;     /* from 1 */
    uint64_t time_us; /* since 1970, for people only */
    uint64_t id;      /* of what it is about; 0 = nothing */
    uint32_t uid;     /* owner of what it is about; UINT32_MAX = everyone's */
    uint32_t listener;
    int32_t pid;      /* 0 = none */
    char what[32];    /* "buffer.allocated": noun.verb */
    char name[HBM_NAME_MAX];
    char detail[160];
};

struct events {
    struct event *ring;
    uint64_t next; /* sequence number of the next one */
    struct list subscribers;
};

struct event_subscriber {
    struct list node;
    void (*notify)(struct event_subscriber *subscriber, const struct event *event);
};

int events_init(struct events *events);
void events_clear(struct events *events);
__attribute__((format(printf, 8, 9))) void event_emit(struct events *events, const char *what, uint64_t id,
                                                      const char *name, uint32_t listener, uint32_t uid, int32_t pid,
                                                      const char *format, ...);
/* NULL if it is not in the ring any more, or not yet. */
const struct event *event_get(const struct events *events, uint64_t seq);
