/* hbm.events and hbm.subscribe. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

static bool event_visible(const struct event *event, const struct principal *who)
{
    if (who->admin || event->uid == UINT32_MAX)
        return true;
    return event->uid == who->owner.uid && event->listener == who->owner.listener;
}

static void write_event(struct writer *writer, const char *key, struct core *core, const struct event *event)
{
    char time[48];

    snprintf(time, sizeof(time), "%" PRIu64 ".%06" PRIu64, event->time_us / 1000000, event->time_us % 1000000);
    write_open(writer, key, '{');
    write_number(writer, "seq", event->seq);
    write_json(writer, "time", time, strlen(time));
    write_string(writer, "event", event->what);
    write_string(writer, "detail", *event->detail ? event->detail : NULL);
    write_id(writer, "id", event->id);
    write_string(writer, "name", *event->name ? event->name : NULL);
    if (event->pid)
        write_integer(writer, "pid", event->pid);
    else
        write_null(writer, "pid");
    if (event->uid >= UINT32_MAX - 1) /* everyone's, or a listener's */
        write_null(writer, "uid");
    else
        write_number(writer, "uid", event->uid);
    write_listener(writer, core, event->listener);
    write_close(writer, '}');
}

/* Where the newest `limit` of those after `since` that `who` may see begin. */
static uint64_t first_shown(const struct events *events, const struct principal *who, uint64_t since,
                            uint64_t limit)
{
    uint64_t seq = events->next;

    while (limit && seq - 1 > since) {
        const struct event *event = event_get(events, seq - 1);
        if (!event)
            break;
        limit -= event_visible(event, who);
        seq--;
    }
    return seq;
}

static bool is_count(double value)
{
    return isnan(value) || (value >= 0 && value <= 9e15 && value == floor(value));
}

void handle_EVENTS(struct request *request, const struct EVENTS_args *args)
{
    const struct events *events = &request->core->events;
    const struct principal *who = &request->connection->who;

    if (!is_count(args->since) || !is_count(args->limit))
        return answer_refuse(request, HBM_E_INVALID, "`since` and `limit` are to be whole numbers from 0");
    uint64_t since = isnan(args->since) ? 0 : (uint64_t)args->since;
    uint64_t limit = isnan(args->limit) ? UINT64_MAX : (uint64_t)args->limit;
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '[');
    /* After a number the oldest, so that a reader goes on from the last it got; else the newest. */
    uint64_t seq = first_shown(events, who, since, isnan(args->since) ? limit : UINT64_MAX);
    for (; limit && seq < events->next; seq++) {
        const struct event *event = event_get(events, seq);
        if (!event || !event_visible(event, who))
            continue;
        write_event(writer, NULL, request->core, event);
        limit--;
    }
    write_close(writer, ']');
    answer_end(request);
}

static void notify(struct event_subscriber *subscriber, const struct event *event)
{
    struct connection *connection = container_of(subscriber, struct connection, subscriber);
    struct writer line = {0};

    if (connection->doomed || !event_visible(event, &connection->who))
        return;
    write_open(&line, NULL, '{');
    write_string(&line, "jsonrpc", "2.0");
    write_string(&line, "method", "hbm.event");
    write_event(&line, "params", connection->server->core, event);
    write_close(&line, '}');
    if (line.state != WRITER_FINE || connection->output_bytes > OUTPUT_BYTES_EVENTS)
        connection_doom(connection);
    else
        connection_send(connection, TAKE_PTR(line.bytes), line.size);
    writer_clear(&line);
}

void handle_SUBSCRIBE(struct request *request, const struct SUBSCRIBE_args *args)
{
    struct connection *connection = request->connection;

    (void)args;
    if (!connection->subscribed) {
        connection->subscribed = true;
        connection->subscriber.notify = notify;
        list_append(&request->core->events.subscribers, &connection->subscriber.node);
    }
    write_bool(answer_begin(request), "result", true);
    answer_end(request);
}
