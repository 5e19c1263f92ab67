#include "daemon/core/events.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int events_init(struct events *events)
{
    events->ring = calloc(EVENTS_KEPT, sizeof(*events->ring));
    events->next = 1;
    list_init(&events->subscribers);
    return events->ring ? 0 : -ENOMEM;
}

void events_clear(struct events *events)
{
    free(events->ring);
    events->ring = NULL;
}

static void copy(char *to, const char *from, size_t size)
{
    size_t length = strnlen(from, size - 1);

    memcpy(to, from, length);
    to[length] = 0;
}

void event_emit(struct events *events, const char *what, uint64_t id, const char *name, uint32_t listener, uint32_t uid,
                int32_t pid, const char *format, ...)
{
    struct event *event = &events->ring[events->next % EVENTS_KEPT];
    struct timespec now;
    va_list arguments;

    clock_gettime(CLOCK_REALTIME, &now);
    event->seq = events->next++;
    event->time_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    event->id = id;
    event->listener = listener;
    event->uid = uid;
    event->pid = pid;
    copy(event->what, what, sizeof(event->what));
    copy(event->name, name ? name : "", sizeof(event->name));
    va_start(arguments, format);
    vsnprintf(event->detail, sizeof(event->detail), format, arguments);
    va_end(arguments);
    list_for_each_safe(node, &events->subscribers) {
        struct event_subscriber *subscriber = list_entry(node, struct event_subscriber, node);
        subscriber->notify(subscriber, event);
    }
}

const struct event *event_get(const struct events *events, uint64_t seq)
{
    if (seq == 0 || seq >= events->next || seq + EVENTS_KEPT < events->next + 1)
        return NULL;
    return &events->ring[seq % EVENTS_KEPT];
}
