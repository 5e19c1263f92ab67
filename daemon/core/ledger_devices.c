/* On which devices the ledger's memory lies. */
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

static void look_at(const void *node, VISIT visit, void *context)
{
    const struct ledger_entry *entry = *(struct ledger_entry *const *)node;
    struct look *look = context;

    if ((visit != postorder && visit != leaf) || entry->type != LEDGER_EXTENT || !look->all)
        return;
    _cleanup_free_ unsigned char *record = malloc(entry->size);
    look->all = record && ledger_read_entry(look->ledger, entry, record) == 0;
    if (!look->all)
        return;
    struct unpack payload = {.at = record + sizeof(struct ledger_record), .left = entry->size - LEDGER_RECORD_MIN};
    const char *uuid = unpack_text(&payload);
    look->all = !uuid || look->is_one(look->context, uuid); /* a damaged row comes back nowhere */
}

bool ledger_lies_on(const struct ledger *ledger, bool (*is_one)(const void *context, const char *uuid),
                    const void *context)
{
    struct look look = {ledger, is_one, context, true};

    twalk_r(ledger->index, look_at, &look);
    return look.all;
}
