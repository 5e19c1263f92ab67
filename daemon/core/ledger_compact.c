/* Compaction: what lives goes into a new file, which takes the old one's place in one rename. */
#include "daemon/core/ledger_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"

#define BLOCK ((size_t)1 << 20)

struct compaction {
    struct ledger *ledger;
    int fd;
    struct pack block;
    uint64_t size; /* of the new file, the block included */
    int error;
};

int ledger_read_entry(const struct ledger *ledger, const struct ledger_entry *entry, unsigned char *record)
{
    if (entry->bytes) {
        memcpy(record, entry->bytes, entry->size);
        return 0;
    }
    for (uint32_t done = 0; done < entry->size;) {
        ssize_t n = pread(ledger->fd, record + done, entry->size - done, (off_t)(entry->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (uint32_t)n;
    }
    return 0;
}

static void flush(struct compaction *compaction)
{
    if (!compaction->error)
        compaction->error = ledger_write_all(compaction->fd, compaction->block.bytes, compaction->block.size);
    compaction->block.size = 0;
}

static void copy_entry(const void *node, VISIT visit, void *context)
{
    struct ledger_entry *entry = *(struct ledger_entry *const *)node;
    struct compaction *compaction = context;

    if ((visit != postorder && visit != leaf) || compaction->error)
        return;
    _cleanup_free_ unsigned char *record = malloc(entry->size);
    compaction->error = record ? ledger_read_entry(compaction->ledger, entry, record) : -ENOMEM;
    if (compaction->error)
        return;
    entry->next_offset = compaction->size;
    pack_bytes(&compaction->block, record, entry->size);
    if (compaction->block.failed)
        compaction->error = -ENOMEM;
    compaction->size += entry->size;
    if (compaction->block.size >= BLOCK)
        flush(compaction);
}

static void settle_entry(const void *node, VISIT visit, void *context)
{
    struct ledger_entry *entry = *(struct ledger_entry *const *)node;

    (void)context;
    if (visit != postorder && visit != leaf)
        return;
    entry->offset = entry->next_offset;
    free(entry->bytes);
    entry->bytes = NULL;
}

int ledger_compact(struct ledger *ledger)
{
    struct ledger_header header = ledger_header(ledger);
    struct compaction compaction = {.ledger = ledger, .size = sizeof(header)};

    compaction.fd =
        openat(ledger->dir_fd, LEDGER_NEW, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (compaction.fd < 0)
        return -errno;
    pack_bytes(&compaction.block, &header, sizeof(header));
    twalk_r(ledger->index, copy_entry, &compaction);
    flush(&compaction);
    free(compaction.block.bytes);
    if (!compaction.error && renameat(ledger->dir_fd, LEDGER_NEW, ledger->dir_fd, LEDGER_NAME) < 0)
        compaction.error = -errno;
    if (compaction.error) {
        unlinkat(ledger->dir_fd, LEDGER_NEW, 0);
        fd_close(compaction.fd);
        return compaction.error;
    }
    twalk_r(ledger->index, settle_entry, NULL);
    fd_close(ledger->fd);
    ledger->fd = compaction.fd;
    ledger->size = compaction.size;
    if (ledger->copy >= 0)
        ledger_refresh_copy(ledger);
    log_debug("the ledger was compacted to %llu bytes", (unsigned long long)ledger->size);
    return 0;
}
