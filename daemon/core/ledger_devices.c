/* On which devices the ledger's memory lies, and whose it is. */
#include <search.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger_internal.h"

struct look {
    const struct ledger *ledger;
    bool (*is_one)(const void *context, const char *uuid);
    const void *context;
    bool all;
};

static const char *device_in(enum ledger_type type, struct unpack *payload)
{
    if (type == LEDGER_EXTENT)
        return unpack_text(payload);
    for (unsigned i = 0; i < 5; i++) /* owner, shared, mode, handle */
        unpack_u32(payload);
    unpack_text(payload);
    unpack_u64(payload);
    unpack_later_u32(payload); /* live */
    unpack_later_u32(payload); /* priority */
    return payload->failed || payload->left < sizeof(uint32_t) ? NULL : unpack_text(payload);
}

static void look_at(const void *node, VISIT visit, void *context)
{
    const struct ledger_entry *entry = *(struct ledger_entry *const *)node;
    struct look *look = context;

    if ((visit != postorder && visit != leaf) || !look->all ||
        (entry->type != LEDGER_EXTENT && entry->type != LEDGER_ARENA))
        return;
    _cleanup_free_ unsigned char *record = malloc(entry->size);
    look->all = record && ledger_read_entry(look->ledger, entry, record) == 0;
    if (!look->all)
        return;
    struct unpack payload = {.at = record + sizeof(struct ledger_record), .left = entry->size - LEDGER_RECORD_MIN};
    const char *uuid = device_in(entry->type, &payload);
    look->all = !uuid || look->is_one(look->context, uuid); /* a damaged row comes back nowhere */
}

bool ledger_lies_on(const struct ledger *ledger, bool (*is_one)(const void *context, const char *uuid),
                    const void *context)
{
    struct look look = {ledger, is_one, context, true};

    twalk_r(ledger->index, look_at, &look);
    return look.all;
}
