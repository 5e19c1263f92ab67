#include "daemon/core/account.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/listener.h"

static_assert((int)ACCOUNT_DEVICE_BYTES == HBM_TIER_DEVICE && (int)ACCOUNT_HOST_BYTES == HBM_TIER_HOST &&
                  (int)ACCOUNT_DISK_BYTES == HBM_TIER_DISK && HBM_TIERS == 3,
              "a tier is the thing that its bytes are");

static const struct {
    const char *name, *words;
} things[ACCOUNT_THINGS] = {
#define THING(NAME, name, words) {#name, words},
#include "daemon/core/thing.def"
#undef THING
};

#define DEAD_FILES_MS 7200000 /* so long they count */
#define FILES_PAUSE_MS 60000ull /* after the second, and twice as long after each further one */
#define FILES_PAUSE_MAX_MS 3600000ull
#define DEAD_FILES_SWEEP_MS 60000
#define SWEEP_MS 1000 /* who comes again and again keeps his account, and with it his turn of the loop */

const char *account_thing_name(enum account_thing thing)
{
    return things[thing].name;
}

static bool is_whole(const struct account *account)
{
    return account == &account->listener->whole;
}

static bool is_idle(const struct account *account)
{
    for (unsigned thing = 0; thing < ACCOUNT_THINGS; thing++)
        if (account->use[thing])
            return false;
    return !account->refs;
}

static bool has_dead_files(const struct account *account)
{
    return account->dead_files.n && core_now(account->core) < account->dead_files.at_ms + DEAD_FILES_MS;
}

static void sweep_if_idle(const struct account *account)
{
    struct timer *timer = &account->core->accounts_timer;

    if (is_idle(account) && (!timer->at_ms || timer->at_ms > core_now(account->core) + SWEEP_MS))
        timer_arm(account->core, timer, SWEEP_MS);
}

void accounts_sweep(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, accounts_timer);
    bool again = false;

    list_for_each_safe (node, &core->accounts) {
        struct account *account = list_entry(node, struct account, node);
        if (!is_idle(account))
            continue;
        if (has_dead_files(account)) {
            again = true;
            continue;
        }
        list_unlink(node);
        free(account);
    }
    if (again)
        timer_arm(core, timer, DEAD_FILES_SWEEP_MS);
}

struct account *account_ref(struct account *account)
{
    account->refs++;
    return account;
}

struct account *account_unref(struct account *account)
{
    if (account && !--account->refs)
        sweep_if_idle(account);
    return NULL;
}

struct account *account_of(struct core *core, struct owner owner)
{
    list_for_each (node, &core->accounts) {
        struct account *account = list_entry(node, struct account, node);
        if (owner_equal(account->owner, owner))
            return account;
    }
    struct listener *listener = listener_of(core, owner.listener);
    struct account *account = listener ? calloc(1, sizeof(*account)) : NULL;
    if (!account)
        return NULL;
    account->core = core;
    account->owner = owner;
    account->listener = listener;
    list_append(&core->accounts, &account->node);
    sweep_if_idle(account);
    return account;
}

uint64_t account_limit(const struct account *account, enum account_thing thing)
{
    const struct listener *listener = account->listener;

    return is_whole(account) ? listener->total[thing]
           : listener->id    ? listener->each[thing]
                             : account->core->limits.account[thing];
}

static void describe(const struct account *account, enum account_thing thing, char *text, size_t size)
{
    if (is_whole(account))
        snprintf(text, size, "listener %s has %" PRIu64 " %s, total_%s", account->listener->name,
                 account->use[thing], things[thing].words, things[thing].name);
    else
        snprintf(text, size, "user %" PRIu32 " has %" PRIu64 " %s, account_%s", account->owner.uid,
                 account->use[thing], things[thing].words, things[thing].name);
}

/* times: the limit, so often. */
static int check(const struct account *account, enum account_thing thing, uint64_t amount, unsigned times,
                 char *detail)
{
    uint64_t limit = account_limit(account, thing), most;
    char has[120];

    if (__builtin_mul_overflow(limit, times, &most))
        most = UINT64_MAX;
    if (!limit || (amount <= most && account->use[thing] <= most - amount))
        return 0;
    describe(account, thing, has, sizeof(has));
    if (amount == 1)
        snprintf(detail, HBM_DETAIL_MAX, "%s is %" PRIu64, has, limit);
    else
        snprintf(detail, HBM_DETAIL_MAX, "%" PRIu64 " more were asked for; %s is %" PRIu64, amount, has, limit);
    return HBM_E_LIMIT;
}

/* account_soft percent of the limit. */
static bool is_near(const struct account *account, enum account_thing thing)
{
    uint64_t limit = account_limit(account, thing);
    unsigned soft = account->core->limits.soft_percent;

    return limit && soft && (unsigned __int128)account->use[thing] * 100 >= (unsigned __int128)limit * soft;
}

/* Once, until it has come down again. */
static void warn_if_near(struct account *account, enum account_thing thing)
{
    char has[120];

    if ((account->warned >> thing & 1) || !is_near(account, thing))
        return;
    account->warned |= 1u << thing;
    describe(account, thing, has, sizeof(has));
    event_emit(&account->core->events, "account.near_limit", 0, NULL, account->owner.listener, account->owner.uid,
               0, "%s is %" PRIu64, has, account_limit(account, thing));
}

static void add(struct account *account, enum account_thing thing, uint64_t amount)
{
    account->use[thing] += amount;
    warn_if_near(account, thing);
}

static void subtract(struct account *account, enum account_thing thing, uint64_t amount)
{
    account->use[thing] -= amount;
    if ((account->warned >> thing & 1) && !is_near(account, thing))
        account->warned &= ~(1u << thing);
}

static int charge(struct account *account, enum account_thing thing, uint64_t amount, unsigned times, char *detail)
{
    int error = check(account, thing, amount, times, detail);

    if (!error)
        error = check(&account->listener->whole, thing, amount, times, detail);
    if (!error)
        account_charge_anyway(account, thing, amount);
    return error;
}

int account_charge(struct account *account, enum account_thing thing, uint64_t amount, char *detail)
{
    return charge(account, thing, amount, 1, detail);
}

bool account_has_room(const struct account *account, enum account_thing thing, uint64_t amount)
{
    char ignored[HBM_DETAIL_MAX];

    return !check(account, thing, amount, 1, ignored) && !check(&account->listener->whole, thing, amount, 1, ignored);
}

int account_charge_move(struct account *account, enum account_thing thing, uint64_t amount, char *detail)
{
    return charge(account, thing, amount, 2, detail);
}

void account_charge_anyway(struct account *account, enum account_thing thing, uint64_t amount)
{
    add(account, thing, amount);
    add(&account->listener->whole, thing, amount);
}

void account_release(struct account *account, enum account_thing thing, uint64_t amount)
{
    subtract(account, thing, amount);
    subtract(&account->listener->whole, thing, amount);
    sweep_if_idle(account);
}

void account_count_dead_file(struct account *account)
{
    uint64_t now = core_now(account->core);

    if (account->dead_files.n && account->dead_files.at_ms == now) /* for both the same worker went */
        return;
    account->dead_files.n = has_dead_files(account) ? account->dead_files.n + 1 : 1;
    account->dead_files.at_ms = now;
    event_emit(&account->core->events, "account.dead_file", 0, NULL, account->owner.listener, account->owner.uid, 0,
               "a file of user %" PRIu32 " did not answer, and a worker had to be replaced for it",
               account->owner.uid);
}

int account_check_files(const struct account *account, char *detail)
{
    uint64_t now = core_now(account->core), until = account->dead_files.at_ms;

    if (account->dead_files.n < 2 || !has_dead_files(account))
        return 0;
    until += account->dead_files.n < 8 ? FILES_PAUSE_MS << (account->dead_files.n - 2) : FILES_PAUSE_MAX_MS;
    if (until <= now)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX,
             "%u files of user %" PRIu32 " did not answer, and a worker had to be replaced for each: more are taken in "
             "%" PRIu64 " s",
             account->dead_files.n, account->owner.uid, (until - now + 999) / 1000);
    return HBM_E_IO;
}

bool account_could_have(const struct account *account, enum account_thing thing, uint64_t amount)
{
    uint64_t own = account_limit(account, thing), whole = account_limit(&account->listener->whole, thing);

    return (!own || amount <= own) && (!whole || amount <= whole);
}
