/* A request that core has and will answer: its reply goes to the link that asked, if that is still there. */
#pragma once

#include "daemon/core/verbs.h"
#include "daemon/wire/link.h"

struct pending {
    struct call call;
    struct list node;  /* link->calls */
    struct link *link; /* NULL once the client is gone: the answer is dropped */
    uint32_t opcode, serial;
    /* What else the reply needs, by opcode. */
    union {
        struct {
            uint32_t n;
            uint32_t slots[WIRE_SLOTS_MAX];
        } lock;
        uint32_t slot;
        struct {
            struct op_wait wait;
            struct timer timer;
            uint64_t op;
        } op_wait;
    };
};

/* A call in link's name that ends in `answer`, or in a refusal. NULL: memory is out and the client has been told.
 */
struct pending *pending_new(struct link *link, uint32_t opcode, uint32_t serial,
                            void (*done)(struct call *call, int error, void *result));
/* For the end of every done: refuses if error, and frees. True: go on and answer, then call pending_free. */
bool pending_goes_on(struct pending *pending, int error);
void pending_reply(struct pending *pending, const void *body, size_t size, int fd);
struct pending *pending_free(struct pending *pending);
/* The `done` of verbs whose answer has nothing in it. */
void pending_done(struct call *call, int error, void *result);
/* The `done` of asynchronous verbs: they are answered with their op. */
void pending_op_begun(struct call *call, int error, void *result);
/* The link goes. */
void pending_abandon_all(struct link *link);
