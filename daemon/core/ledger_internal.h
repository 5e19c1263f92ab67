/* Shared by ledger.c (writing), ledger_open.c (reading at the start), ledger_devices.c, ledger_compact.c and
 * ledger_copy.c. */
#pragma once

#include "daemon/core/ledger_file.h"

#define LEDGER_MAGIC 0x4c4d4248u /* "HBML" */
/* Another build reads this ledger, after an upgrade as after a rollback. So a row changes in one way only: it gains
 * fields at its end, which older builds pass over and newer ones read as 0 where they are not there; rows of
 * unknown kinds are kept. LEDGER_VERSION counts such changes. What an older build must not pass over, because it
 * would give memory away that somebody holds, raises LEDGER_SINCE: it leaves the file alone then, and does not
 * start. */
#ifdef HBM_LEDGER_NEXT /* tests: the build after this one, whose rows have gained a field */
#define LEDGER_VERSION 10u
#define LEDGER_MORE "what only a newer build knows"
#else
#define LEDGER_VERSION 9u
#endif
#define LEDGER_SINCE 3u /* older ones drop the spill files' key */
#define LEDGER_SINCE_PACKED 7u /* once there is a packed extent: older ones would hand it out as if it were raw */
#define LEDGER_NAME "ledger"
#define LEDGER_NEW "ledger.new"

struct ledger_header {
    uint32_t magic, since; /* the lowest version that can read it */
    uint16_t epoch;
    uint16_t version; /* of who made the file; version 1 left 0 */
    uint32_t check;   /* of what is before it; version 1 left 0 */
};

/* Then the payload, padded to 8 bytes, and XXH3-64 of all that. */
struct ledger_record {
    uint32_t size; /* of all, checksum included; a multiple of 8 */
    uint32_t type;
    uint64_t id;
};
#define LEDGER_RECORD_MIN (sizeof(struct ledger_record) + sizeof(uint64_t))

/* The last record of an id. */
struct ledger_entry {
    uint64_t id;
    uint32_t type, size;
    uint64_t offset, next_offset;
    unsigned char *bytes; /* while the file could not take it */
};

struct ledger {
    int dir_fd, fd;
    int copy;         /* ledger_copy.c; -1: none */
    bool copy_behind; /* it lacks rows */
    bool doubtful;    /* the file says nothing, or something in it could not be read */
    uint32_t since;   /* of rows that are there */
    uint16_t epoch;
    uint64_t size, live; /* bytes: of the file, and of its live records */
    void *index;         /* tsearch root of struct ledger_entry, by id */
    size_t n;
    unsigned depth; /* of ledger_begin */
    struct pack batch;
    bool behind;     /* the file lacks rows: compaction puts all that lives into a new one */
    bool partial;    /* for want of memory it lacks rows or keeps dead ones: it is rebuilt from the catalog */
    bool rebuilding; /* rows go into the index only */
    int error;       /* while behind: why */
    uint64_t failures;
};

/* The ledger, made whole first where it is not. NULL: nothing is remembered. */
struct ledger *ledger_ready(struct core *core);
struct ledger_header ledger_header(const struct ledger *ledger);
bool ledger_header_is_sound(const struct ledger_header *header);
uint64_t ledger_checksum(const void *bytes, size_t size);
/* True if a whole, sound record starts at bytes. */
bool ledger_record_is_sound(const unsigned char *bytes, uint64_t left);
/* Enters a record (or a batch's records) that lies at offset; with `keep` its bytes are kept in memory as well. */
void ledger_index_record(struct ledger *ledger, const unsigned char *bytes, uint64_t offset, bool keep);
void ledger_index_clear(struct ledger *ledger);
int ledger_write_all(int fd, const void *bytes, size_t size);
int ledger_read_all(int fd, unsigned char *bytes, uint64_t size);
/* Indexes what is in the file; what cannot be read is cut off or set aside. */
int ledger_read(struct ledger *ledger);
int ledger_compact(struct ledger *ledger);
/* The copy, from the file. */
int ledger_refresh_copy(struct ledger *ledger);
void ledger_append_to_copy(struct ledger *ledger, const unsigned char *bytes, size_t size);
/* From now on the file is for builds of that version and newer ones only. */
void ledger_raise_since(struct ledger *ledger, uint32_t since);
/* The file lacks rows that the index has: tries a new file. */
void ledger_catch_up(struct ledger *ledger);
/* Fills `record` (entry->size bytes). 0 or -errno. */
int ledger_read_entry(const struct ledger *ledger, const struct ledger_entry *entry, unsigned char *record);
