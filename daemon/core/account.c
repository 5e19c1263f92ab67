#include "daemon/core/account.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct account *account_of(struct core *core, struct owner owner)
{
    list_for_each(node, &core->accounts) {
        struct account *account = list_entry(node, struct account, node);
        if (owner_equal(account->owner, owner))
            return account;
    }
    struct account *account = calloc(1, sizeof(*account));
    if (!account)
        return NULL;
    account->owner = owner;
    list_append(&core->accounts, &account->node);
    return account;
}

int account_charge_bytes(struct core *core, struct account *account, enum hbm_tier tier, uint64_t bytes, char *detail)
{
    uint64_t limit = core->limits.account_bytes[tier];

    if (limit && (bytes > limit || account->bytes[tier] > limit - bytes)) {
        snprintf(detail, HBM_DETAIL_MAX,
                 "user %" PRIu32 " has %" PRIu64 " bytes in the %s tier and asked for %" PRIu64 " more, limit_%s_bytes is %" PRIu64,
                 account->owner.uid, account->bytes[tier], hbm_tier_name(tier), bytes, hbm_tier_name(tier), limit);
        return HBM_E_LIMIT;
    }
    account->bytes[tier] += bytes;
    return 0;
}

void account_release_bytes(struct account *account, enum hbm_tier tier, uint64_t bytes)
{
    account->bytes[tier] -= bytes;
}

int account_charge_one(struct account *account, uint32_t *count, uint32_t limit, const char *what, char *detail)
{
    if (limit && *count >= limit) {
        snprintf(detail, HBM_DETAIL_MAX, "user %" PRIu32 " has %" PRIu32 " %s, limit_%s is %" PRIu32, account->owner.uid, *count,
                 what, what, limit);
        return HBM_E_LIMIT;
    }
    (*count)++;
    return 0;
}
