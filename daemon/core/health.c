#include "daemon/core/health.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/ledger.h"

#define FDS_RESERVED 8 /* for operators, and for whoever comes to free something */
#define MEMORY_RESERVED ((size_t)1 << 20)
#define FDS_PLENTY 256 /* with so many left, and memory, nobody looks again for PLENTY_MS */
#define PLENTY_MS 10
#define RETRY_MS 500

static const char *const names[AILMENTS] = {"ledger", "fds", "memory"};
static const char *const remedies[AILMENTS] = {
    [AILMENT_LEDGER] = "make room in the runtime directory",
    [AILMENT_FDS] = "raise LimitNOFILE of the unit, or free buffers",
    [AILMENT_MEMORY] = "free memory of the machine, or raise the unit's limit",
};

const char *ailment_name(enum ailment ailment)
{
    return names[ailment];
}

const char *ailment_remedy(enum ailment ailment)
{
    return remedies[ailment];
}

static bool lacks_ledger(struct core *core, char *cause, size_t size)
{
    int error = ledger_trouble(core);

    if (error)
        snprintf(cause, size, "the ledger cannot be written: %s", strerror(-error));
    return error;
}

/* The lowest number that is free says how many are taken. */
static bool lacks_fds(char *cause, size_t size, bool *plenty)
{
    struct rlimit limit;
    _cleanup_fd_ int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

    if (fd < 0 && errno != EMFILE) /* no stderr, in a test */
        return false;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return false;
    *plenty = fd >= 0 && (rlim_t)fd + FDS_PLENTY < limit.rlim_cur;
    if (fd >= 0 && (rlim_t)fd + FDS_RESERVED < limit.rlim_cur)
        return false;
    snprintf(cause, size, "fewer than %d of %llu file descriptors are left", FDS_RESERVED,
             (unsigned long long)limit.rlim_cur);
    return true;
}

static bool lacks_memory(char *cause, size_t size)
{
    void *probe = mmap(NULL, MEMORY_RESERVED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (probe != MAP_FAILED) {
        munmap(probe, MEMORY_RESERVED);
        return false;
    }
    snprintf(cause, size, "the daemon gets no more memory: %s", strerror(errno));
    return true;
}

/* Takes down what is new of it: that it is lacking, or no longer. */
static void book(struct core *core, enum ailment ailment, bool lacking, const char *cause)
{
    struct ailing *ailing = &core->ailing[ailment];

    if (lacking == (ailing->since_ms != 0))
        return;
    if (!lacking) {
        log_write(LOG_LEVEL_INFO, MESSAGE_RECOVERED, "recovered: %s", ailing->cause);
        event_emit(&core->events, "daemon.recovered", 0, names[ailment], 0, UINT32_MAX, 0, "%s", ailing->cause);
        ailing->since_ms = 0;
        return;
    }
    ailing->since_ms = core_now(core);
    snprintf(ailing->cause, sizeof(ailing->cause), "%s", cause);
    core->counters.degraded++;
    log_write(LOG_LEVEL_ERROR, MESSAGE_DEGRADED,
              "degraded, nothing new is taken on: %s; %s", cause, remedies[ailment]);
    event_emit(&core->events, "daemon.degraded", 0, names[ailment], 0, UINT32_MAX, 0, "%s", cause);
}

void health_look(struct core *core)
{
    char cause[AILMENTS][sizeof(core->ailing[0].cause)];
    bool lacking[AILMENTS] = {[AILMENT_LEDGER] = lacks_ledger(core, cause[AILMENT_LEDGER], sizeof(cause[0]))};
    bool any = false, plenty = false;

    if (core_now(core) >= core->plenty_until_ms) {
        lacking[AILMENT_FDS] = lacks_fds(cause[AILMENT_FDS], sizeof(cause[0]), &plenty);
        lacking[AILMENT_MEMORY] = lacks_memory(cause[AILMENT_MEMORY], sizeof(cause[0]));
        core->plenty_until_ms = plenty && !lacking[AILMENT_MEMORY] ? core_now(core) + PLENTY_MS : 0;
    }
    for (unsigned i = 0; i < AILMENTS; i++) {
        book(core, i, lacking[i], cause[i]);
        any |= lacking[i];
    }
    if (any)
        health_watch(core);
}

void health_watch(struct core *core)
{
    if (!core->health_timer.at_ms)
        timer_arm(core, &core->health_timer, RETRY_MS);
}

int health_check(struct core *core, char *detail)
{
    health_look(core);
    for (unsigned i = 0; i < AILMENTS; i++) {
        if (!core->ailing[i].since_ms)
            continue;
        snprintf(detail, HBM_DETAIL_MAX, "%s; %s", core->ailing[i].cause, remedies[i]);
        return HBM_E_DEGRADED;
    }
    return 0;
}

void health_tick(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, health_timer);

    ledger_mend(core);
    health_look(core);
}
