/* One handler a request. The form has been checked: size, fds, texts, unused fields. What a value means is checked
 * here, what it may do is judged by core. Each sends one reply in the end, a refusal or an answer (one-way: none).
 */
#pragma once

#include "daemon/wire/link.h"

#define HANDLER(name) void name(struct link *link, const struct packet_header *header, struct packet *packet)

/* handle_session.c */
HANDLER(handle_hello);
HANDLER(handle_device);
HANDLER(handle_bye);
/* handle_resume.c */
HANDLER(handle_resume);
/* handle_buffer.c */
HANDLER(handle_alloc);
HANDLER(handle_attach);
HANDLER(handle_detach);
HANDLER(handle_free);
/* handle_lock.c */
HANDLER(handle_lock);
HANDLER(handle_released);
/* handle_early.c */
HANDLER(handle_lock_early);
HANDLER(handle_arrived);
/* handle_order.c */
HANDLER(handle_ahead);
HANDLER(handle_behind);
HANDLER(handle_order);
HANDLER(handle_window);
/* handle_model.c */
HANDLER(handle_attach_model);
HANDLER(handle_publish);
HANDLER(handle_commit);
/* handle_op.c */
HANDLER(handle_compress);
HANDLER(handle_compress_by);
HANDLER(handle_decompress);
HANDLER(handle_offload);
HANDLER(handle_restore);
HANDLER(handle_prefetch);
HANDLER(handle_op_cancel);
/* handle_transfer.c */
HANDLER(handle_transfer);
/* handle_observe.c */
HANDLER(handle_observe_batch);
HANDLER(handle_observed);
/* handle_wait.c */
HANDLER(handle_op_wait);

/* In a handler: the request's struct, and a refusal that ends the handler. */
#define REQUEST(name) const struct wire_##name##_request *request = (const void *)packet->body
#define REFUSE(error, ...)                                                                                         \
    do {                                                                                                           \
        link_refuse(link, header->opcode, header->serial, error, __VA_ARGS__);                                     \
        return;                                                                                                    \
    } while (0)
