#include "daemon/core/ledger_internal.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/core/health.h"

#define COMPACT_SLACK ((uint64_t)1 << 20)

uint64_t ledger_checksum(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}

int ledger_write_all(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;

    while (size) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

/* ---- The index ---- */

static int compare(const void *left, const void *right)
{
    const struct ledger_entry *a = left, *b = right;

    return a->id < b->id ? -1 : a->id > b->id;
}

static void forget(struct ledger *ledger, uint64_t id)
{
    struct ledger_entry key = {.id = id}, **found = tfind(&key, &ledger->index, compare);

    if (!found)
        return;
    struct ledger_entry *entry = *found;
    ledger->live -= entry->size;
    ledger->n--;
    tdelete(&key, &ledger->index, compare);
    free(entry->bytes);
    free(entry);
}

static void fell_short(struct ledger *ledger)
{
    if (!ledger->partial)
        log_error("out of memory for the ledger: it is made anew from the catalog when there is some");
    ledger->partial = true;
}

static void enter(struct ledger *ledger, const struct ledger_record *record, uint64_t offset,
                  const unsigned char *keep)
{
    struct ledger_entry *entry = calloc(1, sizeof(*entry));

    forget(ledger, record->id);
    if (entry)
        *entry =
            (struct ledger_entry){.id = record->id, .type = record->type, .size = record->size, .offset = offset};
    if (entry && keep && (entry->bytes = malloc(record->size)))
        memcpy(entry->bytes, keep, record->size);
    if (!entry || (keep && !entry->bytes) || !tsearch(entry, &ledger->index, compare)) {
        fell_short(ledger);
        if (entry)
            free(entry->bytes);
        free(entry);
        return;
    }
    ledger->live += entry->size;
    ledger->n++;
}

void ledger_index_record(struct ledger *ledger, const unsigned char *bytes, uint64_t offset, bool keep)
{
    struct ledger_record record;

    memcpy(&record, bytes, sizeof(record));
    if (record.type == LEDGER_DROP) {
        forget(ledger, record.id);
    } else if (record.type == LEDGER_BATCH) {
        uint64_t end = record.size - sizeof(uint64_t);
        for (uint64_t at = sizeof(record); ledger_record_is_sound(bytes + at, end - at);) {
            uint32_t size;
            memcpy(&size, bytes + at, sizeof(size));
            ledger_index_record(ledger, bytes + at, offset + at, keep);
            at += size;
        }
    } else {
        enter(ledger, &record, offset, keep ? bytes : NULL);
    }
}

static void free_entry(void *node)
{
    struct ledger_entry *entry = node;

    free(entry->bytes);
    free(entry);
}

void ledger_index_clear(struct ledger *ledger)
{
    tdestroy(ledger->index, free_entry);
    ledger->index = NULL;
    ledger->n = 0;
    ledger->live = 0;
}

/* ---- Writing ---- */

static void fell_behind(struct ledger *ledger, int error)
{
    if (!ledger->failures++)
        log_error(
            "the ledger cannot be written (%s): what changes from now on is lost if the daemon ends before it can",
            strerror(-error));
    ledger->behind = true;
    ledger->error = error;
    /* Half a record would hide everything behind it. */
    if (ftruncate(ledger->fd, (off_t)ledger->size) < 0)
        log_error("the ledger cannot be cut back either: %s", strerror(errno));
}

static void append(struct ledger *ledger, const unsigned char *bytes, size_t size)
{
    int error = ledger->behind || ledger->rebuilding ? -EAGAIN : ledger_write_all(ledger->fd, bytes, size);

    if (error && !ledger->behind && !ledger->rebuilding)
        fell_behind(ledger, error);
    if (!ledger->rebuilding)
        ledger_append_to_copy(ledger, bytes, size);
    ledger_index_record(ledger, bytes, ledger->size, error != 0);
    if (!error)
        ledger->size += size;
    if (ledger->partial || ledger->rebuilding)
        return;
    if (ledger->behind)
        ledger_catch_up(ledger);
    else if (ledger->size > 4 * ledger->live + COMPACT_SLACK)
        ledger_compact(ledger);
}

void ledger_catch_up(struct ledger *ledger)
{
    int error = ledger_compact(ledger);

    if (error < 0) {
        ledger->error = error;
        return;
    }
    ledger->behind = false;
    log_info("the ledger is complete again");
}

void ledger_raise_since(struct ledger *ledger, uint32_t since)
{
    if (ledger->since >= since)
        return;
    ledger->since = since;
    if (ledger->behind || ledger->partial || ledger->rebuilding)
        return; /* the new file that is due will say so */
    int error = ledger_compact(ledger);
    ledger->behind = error < 0;
    ledger->error = error;
}

/* Appends the record to pack. */
static void pack_record(struct pack *out, enum ledger_type type, uint64_t id, const struct pack *payload)
{
    static const unsigned char zeros[8];
    size_t start = out->size, padding = (8 - payload->size % 8) % 8;
    struct ledger_record record = {
        .size = (uint32_t)(LEDGER_RECORD_MIN + payload->size + padding),
        .type = type,
        .id = id,
    };

    pack_bytes(out, &record, sizeof(record));
    pack_bytes(out, payload->bytes, payload->size);
    pack_bytes(out, zeros, padding);
    if (!out->failed)
        pack_u64(out, ledger_checksum(out->bytes + start, out->size - start));
    if (out->failed)
        out->size = start;
}

void ledger_write(struct core *core, enum ledger_type type, uint64_t id, struct pack *pack)
{
    struct ledger *ledger = core->ledger;
    struct pack record = {0}, *out = ledger->depth ? &ledger->batch : &record;

#ifdef LEDGER_MORE
    if (type > LEDGER_IDS)
        pack_text(pack, LEDGER_MORE);
#endif
    if (!pack->failed)
        pack_record(out, type, id, pack);
    if (pack->failed || out->failed) {
        fell_short(ledger);
        out->failed = false;
    } else if (!ledger->depth) {
        append(ledger, record.bytes, record.size);
    }
    free(record.bytes);
    free(pack->bytes);
    *pack = (struct pack){0};
    if (ledger_trouble(core))
        health_watch(core); /* the next row may be long in coming */
}

void ledger_bury(struct core *core, uint64_t id)
{
    struct ledger *ledger = core->ledger;
    struct ledger_entry key = {.id = id};
    struct pack nothing = {0};

    if (ledger->depth || ledger->partial || tfind(&key, &ledger->index, compare))
        ledger_write(core, LEDGER_DROP, id, &nothing);
}

int ledger_trouble(const struct core *core)
{
    const struct ledger *ledger = core->ledger;

    if (!ledger || (!ledger->behind && !ledger->partial))
        return 0;
    return ledger->partial ? -ENOMEM : ledger->error;
}

void ledger_mend(struct core *core)
{
    struct ledger *ledger = ledger_ready(core);

    if (ledger && ledger->behind && !ledger->partial)
        ledger_catch_up(ledger);
}

void ledger_begin(struct core *core)
{
    if (core->ledger)
        core->ledger->depth++;
}

void ledger_end(struct core *core)
{
    struct ledger *ledger = core->ledger;

    if (!ledger || --ledger->depth || !ledger->batch.size)
        return;
    struct pack rows = ledger->batch;
    ledger->batch = (struct pack){0}; /* rows has it now */
    ledger_write(core, LEDGER_BATCH, 0, &rows);
    ledger_ready(core); /* one record stands for much: it is not left to the next */
}
