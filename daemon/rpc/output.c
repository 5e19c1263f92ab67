#include "daemon/rpc/output.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#define WRITES_A_TURN 16 /* a fast reader of much may not keep the loop */
#define WRITE_BYTES ((size_t)256 << 10)

struct chunk {
    struct list node;
    char *text;
    size_t size, sent;
};

bool output_queue(struct connection *connection, char *text, size_t size)
{
    struct chunk *chunk = malloc(sizeof(*chunk));

    if (!chunk) {
        free(text);
        return false;
    }
    *chunk = (struct chunk){.text = text, .size = size};
    list_append(&connection->output, &chunk->node);
    connection->output_bytes += size;
    return true;
}

static void drop(struct connection *connection, struct chunk *chunk)
{
    connection->output_bytes -= chunk->size - chunk->sent;
    list_unlink(&chunk->node);
    free(chunk->text);
    free(chunk);
}

int output_flush(struct connection *connection)
{
    for (int i = 0; i < WRITES_A_TURN && !list_empty(&connection->output); i++) {
        struct chunk *chunk = list_entry(list_first(&connection->output), struct chunk, node);
        size_t left = chunk->size - chunk->sent;
        ssize_t sent =
            send(connection->fd, chunk->text + chunk->sent, left < WRITE_BYTES ? left : WRITE_BYTES, MSG_NOSIGNAL);

        if (sent < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        chunk->sent += (size_t)sent;
        connection->output_bytes -= (size_t)sent;
        if (chunk->sent == chunk->size)
            drop(connection, chunk);
    }
    return 0;
}

void output_clear(struct connection *connection)
{
    while (!list_empty(&connection->output))
        drop(connection, list_entry(list_first(&connection->output), struct chunk, node));
}
