/* What each owner (listener, uid) has, and may have. Every resource is charged here and released with it, and so it
 * is in the account of the owner's listener as a whole. */
#pragma once

#include "daemon/core/call.h"

struct account {
    struct list node; /* core->accounts; a listener's own is in none */
    struct core *core;
    struct owner owner;
    struct listener *listener; /* lives as long as the core */
    uint64_t use[ACCOUNT_THINGS];
    unsigned refs;   /* pointers to it that nothing is charged for */
    uint32_t warned; /* a bit a thing: near its limit, and that has been said */
    unsigned row;    /* of whoever walks over all accounts */
    struct {
        unsigned n; /* of late */
        uint64_t at_ms;
    } dead_files; /* files of its did not answer, and workers went for them */
    uint64_t turn_ms, turn_ns; /* when its requests were last served, and how long they took in that turn of the loop */
};

/* The name of a thing in hbmd.conf and in answers, without account_ or total_. */
const char *account_thing_name(enum account_thing thing);
/* Found or made; NULL if memory is out. It lives as long as anything is charged to it or refers to it, and until
 * the loop has turned at least; who points at it for longer without a charge takes a reference. */
struct account *account_of(struct core *core, struct owner owner);
struct account *account_ref(struct account *account);
/* NULL is fine; returns NULL. */
struct account *account_unref(struct account *account);
/* Frees those that nobody uses. */
void accounts_sweep(struct timer *timer);
/* What it may have of the thing; 0 = no limit. */
uint64_t account_limit(const struct account *account, enum account_thing thing);
/* 0, or LIMIT with a sentence in detail that names the limit; then nothing is charged. */
int account_charge(struct account *account, enum account_thing thing, uint64_t amount, char *detail);
/* Whether that would be refused now. */
bool account_has_room(const struct account *account, enum account_thing thing, uint64_t amount);
/* The same for what takes the place of something that is charged until then: up to twice the limit, or nobody at
 * his limit could move anything. */
int account_charge_move(struct account *account, enum account_thing thing, uint64_t amount, char *detail);
/* What is there already, whatever the limits say: the ledger's. */
void account_charge_anyway(struct account *account, enum account_thing thing, uint64_t amount);
void account_release(struct account *account, enum account_thing thing, uint64_t amount);
/* The account's jobs, as workers tell them from others' (struct job). */
static inline uint64_t account_share(const struct account *account)
{
    return ((uint64_t)account->owner.listener << 32 | account->owner.uid) + 1;
}
/* A worker went for a file of its that did not answer. */
void account_count_dead_file(struct account *account);
/* 0; or IO with a sentence in detail, for a while after each but the first of late. */
int account_check_files(const struct account *account, char *detail);
/* True if the account could have so much if others of its things went: waiting may help. */
bool account_could_have(const struct account *account, enum account_thing thing, uint64_t amount);
