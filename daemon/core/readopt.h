/* Re-adoption in parts: the catalog (readopt_catalog.c) and what clients hold of it (readopt_sessions.c). */
#pragma once

#include "daemon/core/ledger_file.h"

struct readopt {
    struct core *core;
    struct kept_fd *kept;
    size_t n_kept;
};

/* The kept fd of exactly that name, taken; -1. */
int readopt_take_fd(struct readopt *readopt, const char *name);
/* Each puts one row's object where it was. A negative errno ends the re-adoption; a row that can't be is dropped.
 */
int readopt_extent(struct readopt *readopt, struct ledger_row *row);
int readopt_arena(struct readopt *readopt, struct ledger_row *row);
int readopt_model(struct readopt *readopt, struct ledger_row *row);
int readopt_buffer(struct readopt *readopt, struct ledger_row *row);
/* After all buffers: links scales, and models with their buffers. */
void readopt_scale(struct readopt *readopt, struct ledger_row *row);
void readopt_model_order(struct readopt *readopt, struct ledger_row *row);
int readopt_session(struct readopt *readopt, struct ledger_row *row);
int readopt_lease(struct readopt *readopt, struct ledger_row *row);
