/* The ledger: what the owner must know after its own death. An append-only file in the runtime directory, each
 * record checksummed and self-describing; a row replaces the earlier row of its id, a tombstone ends it. Written
 * with one write() a record: a process may die at any byte, the machine's death takes the memory along anyway
 * (tmpfs). A torn tail is cut off. Compacted when it has grown to several times what lives. A copy is kept with the
 * memory that it describes. */
#pragma once

#include "daemon/core/session.h"

struct ledger;

/* Opens (or makes) DIR/ledger. Fails with -errno; one that a newer build says is not for ours is -EPROTO,
 * untouched. */
int ledger_open(int dir_fd, struct ledger **ret);
/* A copy of the file, in an fd that belongs where the memory's fds are kept. First, before ledger_readopt: a file
 * that is gone, damaged or shorter than the copy that came back from there is made anew from it. 0 or -errno. */
int ledger_recover(struct ledger *ledger, int copy);
/* Goes on with that one (taken), or with a new one (-1). The fd, which stays the ledger's, or -errno: there is
 * none. */
int ledger_keep_copy(struct ledger *ledger, int copy);
struct ledger *ledger_close(struct ledger *ledger);

/* Rows, written at once; all take core->ledger == NULL. A full file system is logged once and counted: the rows are
 * tried again with the next write by compaction. */
void ledger_put_extent(struct core *core, const struct extent *extent);
void ledger_put_arena(struct core *core, const struct arena *arena);
void ledger_put_buffer(struct core *core, const struct buffer *buffer);
void ledger_put_model(struct core *core, const struct model *model);
void ledger_put_session(struct core *core, const struct session *session);
void ledger_put_lease(struct core *core, const struct lease *lease);
void ledger_put_observation(struct core *core, const struct observation *observation);
void ledger_put_ids(struct core *core); /* idmap.bounds */
void ledger_drop(struct core *core, uint64_t id);

/* 0 if the file has every row; else the error that keeps it from them. */
int ledger_trouble(const struct core *core);
/* Tries what is lacking now, rather than with the next row. */
void ledger_mend(struct core *core);

/* Rows and tombstones between these two become one record: a crash finds all of them or none. They nest. */
void ledger_begin(struct core *core);
void ledger_end(struct core *core);

/* True if all of its memory lies on devices that is_one says yes to. Before ledger_readopt. */
bool ledger_lies_on(const struct ledger *ledger, bool (*is_one)(const void *context, const char *uuid),
                    const void *context);

/* An fd that came back from the store. */
struct kept_fd {
    char name[STORE_NAME_MAX];
    int fd; /* taken (set to -1) when adopted */
};
/* Rebuilds the catalog from the ledger and the fds. Devices must have been added, by UUID; a device that is missing
 * makes its arenas LOST. fds without a row are left in kept for the caller to drop; rows without an fd are LOST and
 * said. BUILDING models are discarded. Sessions come back DETACHED, their pidfds to be watched. 0 or -errno. */
int ledger_readopt(struct core *core, struct kept_fd *kept, size_t n);
