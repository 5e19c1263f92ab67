/* The rows that rows.def describes, written for a reader who may see them. */
#pragma once

#include "daemon/core/op.h"
#include "daemon/rpc/leases.h"

/* "0" to "9", or "never". */
void write_priority(struct writer *writer, const struct arena *arena);
void write_buffer(struct writer *writer, struct lease_index *index, const struct principal *who,
                  const struct buffer *buffer);
/* Why it is here still, or its memory would not come back: a list, with the remedy beside each reason. */
void write_keepers(struct writer *writer, const char *key, struct lease_index *index, const struct principal *who,
                   const struct buffer *buffer);
void write_model(struct writer *writer, struct lease_index *index, const struct principal *who,
                 const struct model *model);
void write_session(struct writer *writer, const struct session *session);
/* pod_uid and container_id of its process. */
void write_origin(struct writer *writer, const struct session *session);
void write_devices(struct writer *writer, const char *key, struct core *core);
void write_unaccounted(struct writer *writer, const struct core *core, const struct device *device);
/* lock_waits, lock_wait_seconds, prefetched_locks. */
void write_lock_waits(struct writer *writer, const struct lock_waits *waits);
/* The name of who came by it. */
void write_listener(struct writer *writer, struct core *core, uint32_t listener);
/* The members of a receipt but for bytes_before and bytes_after. */
void write_quality(struct writer *writer, const struct hbm_receipt *receipt, const struct hbm_quality *quality);
/* `observed`; null where nothing was. */
void write_observed(struct writer *writer, const struct buffer *buffer);
/* An encoding off the device; null where it is raw. */
void write_park(struct writer *writer, const char *key, const struct hbm_encoding *encoding);
/* Of advise-codec: what was tried on the row's buffer, and what follows for its group. */
void write_advice(struct writer *writer, const struct op *op, const struct op_row *row);
/* rows: those of the op as well. */
void write_op(struct writer *writer, const char *key, const struct op *op, bool rows);
/* The op's rows as the verb's result, a list. */
void write_op_rows(struct writer *writer, const char *key, const struct op *op);
