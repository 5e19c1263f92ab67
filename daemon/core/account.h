/* What each owner (listener, uid) has, and may have. Every resource is charged here and released with it. */
#pragma once

#include "daemon/core/call.h"

struct account {
    struct list node;
    struct owner owner;
    uint64_t bytes[HBM_TIERS];
    uint32_t buffers, sessions, ops;
    unsigned row; /* of whoever walks over all accounts */
};

/* Found or made; NULL if memory is out. Accounts stay until the core goes: there are as many as users. */
struct account *account_of(struct core *core, struct owner owner);
/* 0 or LIMIT with a sentence in detail. bytes count for a tier. */
int account_charge_bytes(struct core *core, struct account *account, enum hbm_tier tier, uint64_t bytes, char *detail);
void account_release_bytes(struct account *account, enum hbm_tier tier, uint64_t bytes);
/* Counted things: 0 or LIMIT with a sentence naming the limit. */
int account_charge_one(struct account *account, uint32_t *count, uint32_t limit, const char *what, char *detail);
