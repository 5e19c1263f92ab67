/* The ledger as a file of records and an index of the live ones: what ledger_rows.c writes and readopt.c reads. */
#pragma once

#include "daemon/core/ledger.h"

enum ledger_type {
    LEDGER_BATCH = 1, /* payload: records */
    LEDGER_DROP = 2,  /* of the row of that id */
    LEDGER_IDS = 3,   /* id 0: idmap.bounds */
    LEDGER_EXTENT = 16,
    LEDGER_ARENA,
    LEDGER_MODEL,
    LEDGER_BUFFER,
    LEDGER_SESSION,
    LEDGER_LEASE,
    LEDGER_OBSERVATION, /* since version 9 */
};

/* A payload being written: native byte order, since the file never leaves the machine. */
struct pack {
    unsigned char *bytes;
    size_t size, room;
    bool failed; /* memory is out */
};
void pack_bytes(struct pack *pack, const void *bytes, size_t size);
void pack_u32(struct pack *pack, uint32_t value);
void pack_u64(struct pack *pack, uint64_t value);
void pack_text(struct pack *pack, const char *text); /* NULL is told from "" */

/* A payload being read: past its end everything is 0 and failed is set. */
struct unpack {
    const unsigned char *at;
    size_t left;
    bool failed;
};
void unpack_bytes(struct unpack *unpack, void *bytes, size_t size);
uint32_t unpack_u32(struct unpack *unpack);
uint64_t unpack_u64(struct unpack *unpack);
/* Points into the payload, or NULL. */
const char *unpack_text(struct unpack *unpack);
/* A field that rows gained in a later version: 0 where it is not there. */
uint32_t unpack_later_u32(struct unpack *unpack);

/* A record with the payload (taken: freed). Into core->ledger, which there is. */
void ledger_write(struct core *core, enum ledger_type type, uint64_t id, struct pack *pack);

/* A tombstone, where there is something to bury. */
void ledger_bury(struct core *core, uint64_t id);

struct ledger_row {
    uint32_t type;
    uint64_t id;
    struct unpack payload;
};
/* The live rows by type, then id; bytes and rows are the caller's to free. 0 or -errno. */
int ledger_load(struct ledger *ledger, struct ledger_row **rows, size_t *n, void **bytes);
uint16_t ledger_epoch(const struct ledger *ledger);
/* Another epoch: ids of the old one resolve to nothing. Only while nothing lives. */
int ledger_renew(struct ledger *ledger);
