#include "daemon/rpc/batch.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/request.h"

void batch_begin(struct connection *connection, struct cJSON *items)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    if (!batch) {
        cJSON_Delete(items);
        connection_doom(connection);
        return;
    }
    batch->connection = connection;
    batch->items = items;
    list_append(&connection->batches, &batch->node);
    connection->reading = batch;
}

struct batch *batch_free(struct batch *batch)
{
    if (batch->connection->reading == batch)
        batch->connection->reading = NULL;
    list_unlink(&batch->node);
    cJSON_Delete(batch->items);
    writer_clear(&batch->answers);
    free(batch);
    return NULL;
}

static void finish(struct batch *batch)
{
    struct connection *connection = batch->connection;

    if (batch->answers.size) {
        write_close(&batch->answers, ']');
        if (batch->answers.state == WRITER_FINE)
            connection_send(connection, TAKE_PTR(batch->answers.bytes), batch->answers.size);
        else
            connection_doom(connection);
    }
    batch_free(batch);
}

void batch_settle(struct batch *batch, const struct writer *answer)
{
    batch->open--;
    if (answer && !batch->answers.size)
        write_open(&batch->answers, NULL, '[');
    if (answer)
        write_json(&batch->answers, NULL, answer->bytes, answer->size);
    if (!batch->open && !batch->items)
        finish(batch);
}

void batch_run_next(struct batch *batch)
{
    cJSON *item = cJSON_DetachItemFromArray(batch->items, 0);

    batch->open++;
    if (!batch->items->child) {
        cJSON_Delete(TAKE_PTR(batch->items));
        batch->connection->reading = NULL;
    }
    /* The batch may be answered, and gone, when this returns. */
    request_run(batch->connection, batch, item);
    cJSON_Delete(item);
}
