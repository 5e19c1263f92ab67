/* Re-adoption in parts: the catalog (readopt_catalog.c), what clients hold of it (readopt_sessions.c), and the fds
 * that either needs (readopt_fds.c). */
#pragma once

#include "daemon/core/ledger_file.h"

struct readopt {
    struct core *core;
    struct kept_fd *kept;
    size_t n_kept;
};

/* readopt_fds.c: the kept fd of exactly that name, taken, if it is what it is to be; -1. */
int readopt_take_memory(struct readopt *readopt, const char *name, const struct device *device,
                        enum job_extent_kind kind, uint64_t size);
int readopt_take_pidfd(struct readopt *readopt, const char *name);
/* A memfd of that size, sealed against shrinking. */
int readopt_take_sized(struct readopt *readopt, const char *name, uint64_t size);
/* Each puts one row's object where it was. A negative errno ends the re-adoption; a row that can't be is dropped.
 */
int readopt_extent(struct readopt *readopt, struct ledger_row *row);
int readopt_arena(struct readopt *readopt, struct ledger_row *row);
int readopt_model(struct readopt *readopt, struct ledger_row *row);
int readopt_buffer(struct readopt *readopt, struct ledger_row *row);
/* After all buffers: links parts, and models with their buffers. */
int readopt_part(struct readopt *readopt, struct ledger_row *row);
int readopt_model_order(struct readopt *readopt, struct ledger_row *row);
int readopt_observation(struct readopt *readopt, struct ledger_row *row);
int readopt_session(struct readopt *readopt, struct ledger_row *row);
int readopt_lease(struct readopt *readopt, struct ledger_row *row);
