#include "daemon/core/ledger_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"

static int random_epoch(uint16_t *epoch, uint16_t except)
{
    do {
        if (getrandom(epoch, sizeof(*epoch), 0) != sizeof(*epoch))
            return -errno;
    } while (*epoch == 0 || *epoch == except);
    return 0;
}

bool ledger_record_is_sound(const unsigned char *bytes, uint64_t left)
{
    struct ledger_record record;
    uint64_t checksum;

    if (left < LEDGER_RECORD_MIN)
        return false;
    memcpy(&record, bytes, sizeof(record));
    if (record.size < LEDGER_RECORD_MIN || record.size % 8 || record.size > left)
        return false;
    memcpy(&checksum, bytes + record.size - sizeof(checksum), sizeof(checksum));
    return checksum == ledger_checksum(bytes, record.size - sizeof(checksum));
}

/* Where the record behind an unsound one starts, if a sound one does: then it was not torn off but damaged, and
 * only it is lost. 0 if there is none. */
static uint64_t resume_at(const unsigned char *bytes, uint64_t at, uint64_t size)
{
    uint32_t length;

    if (size - at < LEDGER_RECORD_MIN)
        return 0;
    memcpy(&length, bytes + at, sizeof(length));
    if (length < LEDGER_RECORD_MIN || length % 8 || length >= size - at)
        return 0;
    return ledger_record_is_sound(bytes + at + length, size - at - length) ? at + length : 0;
}

static void index_file(struct ledger *ledger, const unsigned char *bytes, uint64_t size)
{
    uint64_t at = sizeof(struct ledger_header);

    while (at < size) {
        if (ledger_record_is_sound(bytes + at, size - at)) {
            uint32_t length;
            memcpy(&length, bytes + at, sizeof(length));
            ledger_index_record(ledger, bytes + at, at, false);
            at += length;
            continue;
        }
        uint64_t next = resume_at(bytes, at, size);
        if (!next)
            break;
        log_write(LOG_LEVEL_ERROR, MESSAGE_LEDGER_DAMAGED,
                  "the ledger's record at byte %llu is damaged: what it said is lost", (unsigned long long)at);
        ledger->doubtful = true;
        at = next;
    }
    if (at < size)
        log_warning("the ledger ends in %llu bytes of a record that was not written to its end: cut off",
                    (unsigned long long)(size - at));
    ledger->size = at;
}

int ledger_read_all(int fd, unsigned char *bytes, uint64_t size)
{
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pread(fd, bytes + done, size - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (uint64_t)n;
    }
    return 0;
}

static uint32_t check_of(const struct ledger_header *header)
{
    return (uint32_t)ledger_checksum(header, offsetof(struct ledger_header, check));
}

struct ledger_header ledger_header(const struct ledger *ledger)
{
    struct ledger_header header = {
        .magic = LEDGER_MAGIC, .since = ledger->since, .epoch = ledger->epoch, .version = LEDGER_VERSION};

    header.check = check_of(&header);
    return header;
}

bool ledger_header_is_sound(const struct ledger_header *header)
{
    return header->magic == LEDGER_MAGIC && header->since && header->epoch &&
           header->check == (header->version ? check_of(header) : 0);
}

static int start_empty(struct ledger *ledger)
{
    int error = random_epoch(&ledger->epoch, 0);

    ledger->doubtful = true;
    ledger->since = LEDGER_SINCE;
    struct ledger_header header = ledger_header(ledger);
    if (!error && ftruncate(ledger->fd, 0) < 0)
        error = -errno;
    if (!error)
        error = ledger_write_all(ledger->fd, &header, sizeof(header));
    ledger->size = sizeof(header);
    return error;
}

/* What it says is unknown, but perhaps not to a person. */
static int set_aside(struct ledger *ledger)
{
    log_write(LOG_LEVEL_ERROR, MESSAGE_LEDGER_DAMAGED,
              "the ledger is none, or its head is damaged: kept as ledger.damaged, and a new one begun");
    if (renameat(ledger->dir_fd, LEDGER_NAME, ledger->dir_fd, "ledger.damaged") < 0)
        return -errno;
    fd_close(ledger->fd);
    ledger->fd =
        openat(ledger->dir_fd, LEDGER_NAME, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return ledger->fd < 0 ? -errno : start_empty(ledger);
}

int ledger_read(struct ledger *ledger)
{
    struct stat status;
    struct ledger_header header;

    if (fstat(ledger->fd, &status) < 0)
        return -errno;
    uint64_t size = (uint64_t)status.st_size;
    if (size < sizeof(header)) /* died while writing its head: nothing had been granted */
        return start_empty(ledger);
    _cleanup_free_ unsigned char *bytes = malloc(size);
    int error = bytes ? ledger_read_all(ledger->fd, bytes, size) : -ENOMEM;
    if (error)
        return error;
    memcpy(&header, bytes, sizeof(header));
    if (!ledger_header_is_sound(&header))
        return set_aside(ledger);
    if (header.since > LEDGER_VERSION)
        return -EPROTO;
    ledger->doubtful = size == sizeof(header); /* new, perhaps: who made it may have died before it took the copy */
    ledger->since = header.since > LEDGER_SINCE ? header.since : LEDGER_SINCE;
    ledger->epoch = header.epoch;
    index_file(ledger, bytes, size);
    if (ledger->partial) /* rows would count as never written: better no start than one without them */
        return -ENOMEM;
    if (ledger->size < size && ftruncate(ledger->fd, (off_t)ledger->size) < 0)
        return -errno;
    /* Rows that older builds may not pass over come after a head that says so. */
    return header.since < LEDGER_SINCE ? ledger_compact(ledger) : 0;
}

int ledger_open(int dir_fd, struct ledger **ret)
{
    struct ledger *ledger = calloc(1, sizeof(*ledger));
    int error = 0;

    if (!ledger)
        return -ENOMEM;
    ledger->fd = ledger->copy = -1;
    ledger->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    if (ledger->dir_fd >= 0)
        ledger->fd = openat(dir_fd, LEDGER_NAME, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (ledger->fd < 0)
        error = -errno;
    if (!error) {
        unlinkat(dir_fd, LEDGER_NEW, 0); /* of a compaction that was cut short */
        error = ledger_read(ledger);
    }
    if (error) {
        ledger_close(ledger);
        return error;
    }
    *ret = ledger;
    return 0;
}

struct ledger *ledger_close(struct ledger *ledger)
{
    if (!ledger)
        return NULL;
    ledger_index_clear(ledger);
    free(ledger->batch.bytes);
    fd_close(ledger->fd);
    fd_close(ledger->copy);
    fd_close(ledger->dir_fd);
    free(ledger);
    return NULL;
}

uint16_t ledger_epoch(const struct ledger *ledger)
{
    return ledger->epoch;
}

int ledger_renew(struct ledger *ledger)
{
    uint16_t old = ledger->epoch;
    int error = random_epoch(&ledger->epoch, old);

    if (!error) {
        ledger_index_clear(ledger);
        ledger->since = LEDGER_SINCE;
        error = ledger_compact(ledger);
    }
    if (error)
        ledger->epoch = old;
    return error;
}

/* ---- Loading ---- */

struct load {
    struct ledger *ledger;
    struct ledger_row *rows;
    size_t n;
    unsigned char *at;
    int error;
};

static void load_entry(const void *node, VISIT visit, void *context)
{
    const struct ledger_entry *entry = *(struct ledger_entry *const *)node;
    struct load *load = context;

    if ((visit != postorder && visit != leaf) || load->error)
        return;
    load->error = ledger_read_entry(load->ledger, entry, load->at);
    load->rows[load->n++] = (struct ledger_row){
        .type = entry->type,
        .id = entry->id,
        .payload = {.at = load->at + sizeof(struct ledger_record), .left = entry->size - LEDGER_RECORD_MIN},
    };
    load->at += entry->size;
}

static int compare_rows(const void *left, const void *right)
{
    const struct ledger_row *a = left, *b = right;

    if (a->type != b->type)
        return a->type < b->type ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

int ledger_load(struct ledger *ledger, struct ledger_row **rows, size_t *n, void **bytes)
{
    struct load load = {
        .ledger = ledger, .rows = calloc(ledger->n + 1, sizeof(*load.rows)), .at = malloc(ledger->live + 1)};

    *bytes = load.at;
    *rows = load.rows;
    if (!load.rows || !load.at)
        return -ENOMEM;
    twalk_r(ledger->index, load_entry, &load);
    *n = load.n;
    qsort(load.rows, load.n, sizeof(*load.rows), compare_rows);
    return load.error;
}
