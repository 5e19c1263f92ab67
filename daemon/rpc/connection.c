#include "daemon/rpc/connection.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/batch.h"
#include "daemon/rpc/listing.h"
#include "daemon/rpc/output.h"
#include "daemon/rpc/request.h"
#include "daemon/rpc/scan.h"

#define READ_BYTES ((size_t)64 << 10)

static void on_socket(uv_poll_t *poll, int status, int events);

static void find_line(struct connection *connection)
{
    char *from = connection->input + connection->looked;
    char *newline = connection->looked < connection->input_end
                        ? memchr(from, '\n', connection->input_end - connection->looked)
                        : NULL;

    connection->looked = newline ? (size_t)(newline - connection->input) : connection->input_end;
    connection->line_size = newline ? connection->looked + 1 - connection->input_at : 0;
    /* Someone who shuts down after the last brace means it, newline or not. */
    if (!newline && connection->input_ended)
        connection->line_size = connection->input_end - connection->input_at;
}

static bool has_work(const struct connection *connection)
{
    return connection->listing || (!connection->refused && (connection->reading || connection->line_size));
}

static bool is_over(const struct connection *connection)
{
    if (!list_empty(&connection->output) || has_work(connection))
        return false;
    if (connection->refused)
        return true;
    return connection->input_ended && list_empty(&connection->requests) && !connection->subscribed;
}

void connection_update(struct connection *connection)
{
    bool room = connection->output_bytes < OUTPUT_BYTES_PAUSE;
    int events = 0;

    if (!list_empty(&connection->output))
        events |= UV_WRITABLE;
    if (!connection->input_ended && !connection->refused && !has_work(connection) && room)
        events |= UV_READABLE;
    if (!events)
        uv_poll_stop(&connection->poll);
    else if (uv_poll_start(&connection->poll, events, on_socket) < 0)
        connection->doomed = true;
    if (connection->doomed || is_over(connection) || (has_work(connection) && room))
        rpc_server_take_turn(connection);
    else
        list_unlink(&connection->turn);
}

void connection_doom(struct connection *connection)
{
    connection->doomed = true;
    connection_update(connection);
}

void connection_send(struct connection *connection, char *text, size_t size)
{
    char *line = realloc(text, size + 1);

    if (!line) {
        free(text);
        connection_doom(connection);
        return;
    }
    line[size] = '\n';
    if (!output_queue(connection, line, size + 1) || connection->output_bytes > OUTPUT_BYTES_MAX)
        connection->doomed = true;
    connection_update(connection);
}

static void run_text(struct connection *connection, const char *text, size_t size)
{
    const char *why = NULL;
    int code = scan_line(text, size, &why);
    cJSON *item = code ? NULL : cJSON_ParseWithLength(text, size);

    if (!code && !item)
        code = INTERNAL_ERROR, why = "no memory to read the line";
    if (!code)
        code = scan_names(item, &why);
    if (!code && cJSON_IsArray(item) && !item->child)
        code = INVALID_REQUEST, why = "an empty batch";
    if (code) {
        request_reject(connection, code, why);
        cJSON_Delete(item);
    } else if (cJSON_IsArray(item)) {
        batch_begin(connection, item);
    } else {
        request_run(connection, NULL, item);
        cJSON_Delete(item);
    }
}

static void run_line(struct connection *connection)
{
    run_text(connection, connection->input + connection->input_at, connection->line_size);
    connection->input_at += connection->line_size;
    connection->looked = connection->input_at;
    find_line(connection);
    if (connection->input_at == connection->input_end) {
        free(connection->input);
        connection->input = NULL;
        connection->input_at = connection->input_end = connection->looked = connection->input_room = 0;
    }
}

void connection_take_turn(struct connection *connection)
{
    if (connection->doomed || is_over(connection)) {
        connection_close(connection);
        return;
    }
    if (connection->output_bytes < OUTPUT_BYTES_PAUSE) {
        if (connection->listing)
            listing_go_on(connection->listing);
        else if (connection->reading)
            batch_run_next(connection->reading);
        else if (has_work(connection))
            run_line(connection);
    }
    connection_update(connection);
}

static bool make_room(struct connection *connection)
{
    size_t room = connection->input_room ? connection->input_room * 2 : READ_BYTES;

    if (connection->input_at) {
        connection->input_end -= connection->input_at;
        connection->looked -= connection->input_at;
        memmove(connection->input, connection->input + connection->input_at, connection->input_end);
        connection->input_at = 0;
    }
    if (connection->input_end < connection->input_room)
        return true;
    char *input = realloc(connection->input, room);
    if (!input)
        return false;
    connection->input = input;
    connection->input_room = room;
    return true;
}

/* False when the peer is gone for good. */
static bool read_some(struct connection *connection)
{
    if (!make_room(connection))
        return false;
    ssize_t n = recv(connection->fd, connection->input + connection->input_end,
                     connection->input_room - connection->input_end, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
        /* One who only stopped writing still reads; one who closed does not. */
        struct pollfd peer = {.fd = connection->fd};
        if (poll(&peer, 1, 0) == 1 && (peer.revents & (POLLHUP | POLLERR)))
            return false;
        connection->input_ended = true;
    }
    connection->input_end += (size_t)n;
    find_line(connection);
    if (connection->line_size > LINE_BYTES_MAX ||
        (!connection->line_size && connection->input_end >= LINE_BYTES_MAX)) {
        request_reject(connection, PARSE_ERROR, "a line of more than 1 MiB");
        connection->refused = true;
    }
    return true;
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct connection *connection = poll->data;
    bool alive = status == 0;

    if (alive && (events & UV_WRITABLE))
        alive = output_flush(connection) == 0;
    if (alive && (events & UV_READABLE))
        alive = read_some(connection);
    if (!alive || is_over(connection)) {
        connection_close(connection);
        return;
    }
    connection_update(connection);
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

int connection_new(struct rpc_server *server, int fd, struct principal who)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    int error;

    if (!connection)
        return -ENOMEM;
    connection->poll.data = connection;
    error = uv_poll_init(server->loop, &connection->poll, fd);
    if (error < 0) {
        free(connection);
        return error;
    }
    connection->server = server;
    connection->who = who;
    connection->fd = fd; /* consume fd */
    list_init(&connection->turn);
    list_init(&connection->output);
    list_init(&connection->requests);
    list_init(&connection->batches);
    list_init(&connection->subscriber.node);
    list_append(&server->connections, &connection->node);
    server->n_connections++;
    connection_update(connection);
    return 0;
}

void connection_close(struct connection *connection)
{
    list_unlink(&connection->subscriber.node);
    connection->listing = listing_free(connection->listing);
    list_for_each_safe (node, &connection->requests)
        request_orphan(list_entry(node, struct request, node));
    while (!list_empty(&connection->batches))
        batch_free(list_entry(list_first(&connection->batches), struct batch, node));
    list_unlink(&connection->turn);
    list_unlink(&connection->node);
    connection->server->n_connections--;
    uv_close((uv_handle_t *)&connection->poll, on_closed);
    connection->fd = fd_close(connection->fd);
    output_clear(connection);
    free(connection->input);
    connection->input = NULL;
}
