/* A batch: several requests in one array, answered by one array once the last has ended. Its requests run one a
 * turn. */
#pragma once

#include "daemon/rpc/connection.h"
#include "daemon/rpc/writer.h"

struct batch {
    struct list node; /* connection->batches */
    struct connection *connection;
    struct cJSON *items; /* those to run yet */
    unsigned open;       /* begun and not answered */
    struct writer answers;
};

/* Takes items, a parsed array that is not empty. */
void batch_begin(struct connection *connection, struct cJSON *items);
void batch_run_next(struct batch *batch);
/* One of its requests has ended, with this answer; a notification has none. May send and free the batch. */
void batch_settle(struct batch *batch, const struct writer *answer);
struct batch *batch_free(struct batch *batch);
