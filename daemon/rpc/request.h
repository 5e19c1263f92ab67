/* One request: from its JSON to a handler, and to the one answer it gets. */
#pragma once

#include "daemon/core/books.h"
#include "daemon/core/op.h"
#include "daemon/rpc/connection.h"
#include "daemon/rpc/method.h"
#include "daemon/rpc/protocol.h"
#include "daemon/rpc/writer.h"

struct request {
    struct list node; /* connection->requests */
    struct core *core;
    struct connection *connection; /* weak: NULL once it is gone */
    struct batch *batch;           /* weak; NULL if none */
    char *id;                      /* its JSON text; NULL: a notification, which gets no answer */
    struct writer answer;
    bool begun; /* some of the answer is on its way: no error takes its place any more */
    struct call call;
    bool with_verb; /* the core has the call */
    bool async;
    struct op_wait wait;
    struct books_wait books;
    uint64_t about;             /* id of the op or session that it is about */
    char subject[HBM_NAME_MAX]; /* name of what it is about */
    struct timer timer;
};

/* Runs a request object; item is the caller's and may be freed afterwards. */
void request_run(struct connection *connection, struct batch *batch, const struct cJSON *item);
/* Answers a line that holds no request. */
void request_reject(struct connection *connection, int code, const char *why);
/* Its connection goes. */
void request_orphan(struct request *request);
struct request *request_free(struct request *request);
/* First thing in every call->done: the core gave the call back. NULL (and the request is gone) if nobody waits any
 * more. */
struct request *request_returned(struct call *call);
/* Readies request->call for a verb. */
struct call *request_call(struct request *request, void (*done)(struct call *call, int error, void *result));

/* An answer: begin, write one value under the key "result", end. The request is gone after the end, as after the
 * others. */
struct writer *answer_begin(struct request *request);
void answer_end(struct request *request);
/* Sends what is written so far, for an answer that nothing else of its connection comes into. */
void answer_send_on(struct request *request);
/* code: a protocol error or a negative hbm_error. op: that failed, or 0. */
void answer_error(struct request *request, int code, const char *detail, uint64_t op);
__attribute__((format(printf, 3, 4))) void answer_refuse(struct request *request, int code, const char *format,
                                                         ...);
/* Writes the object of an error, under "error". */
void write_error(struct writer *writer, int code, const char *detail, uint64_t op);
