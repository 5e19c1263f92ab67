/* hbm.who: who holds what of each device, by the ledger and by the driver. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/listener.h"
#include "daemon/core/peer.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

#define DRIVER_MS 2000 /* longer than any driver takes that answers at all */

/* What an account has on one device. */
struct holding {
    uint64_t bytes[HBM_TIERS], unmapped[HBM_TIERS];
};

static bool is_seen_by(struct owner owner, const struct principal *who)
{
    return who->admin || owner_equal(owner, who->owner);
}

static void write_bytes_of(struct writer *writer, const uint64_t bytes[HBM_TIERS])
{
    for (unsigned tier = 0; tier < HBM_TIERS; tier++)
        write_number(writer, hbm_tier_name(tier), bytes[tier]);
}

/* ---- By the ledger ---- */

/* Marks what some session maps with core->visits; a piece that several map is one. */
static void mark_mapped(struct core *core)
{
    core->visits++;
    list_for_each (node, &core->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->mappings)
            list_entry(inner, struct mapping, session_node)->extent->visit = core->visits;
}

static void write_account(struct writer *writer, const struct account *account, const struct holding *holding)
{
    write_open(writer, NULL, '{');
    write_number(writer, "uid", account->owner.uid);
    write_listener(writer, account->core, account->owner.listener);
    write_bytes_of(writer, holding->bytes);
    write_open(writer, "unmapped", '{');
    write_bytes_of(writer, holding->unmapped);
    write_close(writer, '}');
    write_close(writer, '}');
}

/* holdings: one an account, in the order of the list, all zero. */
static void write_accounts(struct writer *writer, struct core *core, const struct device *device,
                           const struct principal *who, struct holding *holdings)
{
    uint64_t others[HBM_TIERS] = {0};
    unsigned n = 0;

    list_for_each (node, &core->accounts)
        list_entry(node, struct account, node)->row = n++;
    list_for_each (node, &core->extents) {
        const struct extent *extent = list_entry(node, struct extent, node);
        struct holding *holding = &holdings[extent->account->row];
        if (extent->device != device || extent->uncounted)
            continue;
        holding->bytes[extent->tier] += extent->size;
        holding->unmapped[extent->tier] += extent->visit == core->visits ? 0 : extent->size;
    }
    write_open(writer, "accounts", '[');
    list_for_each (node, &core->accounts) {
        const struct account *account = list_entry(node, struct account, node);
        const uint64_t *bytes = holdings[account->row].bytes;
        bool any = bytes[HBM_TIER_DEVICE] || bytes[HBM_TIER_HOST] || bytes[HBM_TIER_DISK];
        if (any && is_seen_by(account->owner, who))
            write_account(writer, account, &holdings[account->row]);
        else
            for (unsigned tier = 0; tier < HBM_TIERS; tier++)
                others[tier] += bytes[tier];
    }
    write_close(writer, ']');
    write_open(writer, "others", '{');
    write_bytes_of(writer, others);
    write_close(writer, '}');
}

static void write_session_holding(struct writer *writer, const struct session *session, const struct device *device)
{
    uint64_t bytes[HBM_TIERS] = {0}, locked = 0;
    struct awaiting awaiting;
    uint32_t n_leases = 0;

    list_for_each (node, &session->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, session_node);
        if (mapping->extent->device != device)
            continue;
        bytes[mapping->extent->tier] += mapping->extent->size;
        if (mapping->early && mapping->early != mapping->extent)
            bytes[mapping->early->tier] += mapping->early->size;
        locked += mapping_is_locked(mapping) ? mapping->extent->size : 0;
    }
    if (!bytes[HBM_TIER_DEVICE] && !bytes[HBM_TIER_HOST] && !bytes[HBM_TIER_DISK])
        return;
    list_for_each (node, &session->leases)
        n_leases++;
    write_open(writer, NULL, '{');
    write_id(writer, "session", session->id);
    write_integer(writer, "pid", session->pid);
    write_number(writer, "uid", session->who.owner.uid);
    write_listener(writer, session->core, session->who.owner.listener);
    write_string(writer, "client", session->client);
    write_origin(writer, session);
    write_string(writer, "state", session_state_name(session->state));
    write_string(writer, "awaiting", session_awaiting(session, &awaiting) ? awaiting.what : NULL);
    write_number(writer, "leases", n_leases);
    write_bytes_of(writer, bytes);
    write_number(writer, "locked", locked);
    write_close(writer, '}');
}

static void write_sessions(struct writer *writer, const struct core *core, const struct device *device,
                           const struct principal *who)
{
    write_open(writer, "sessions", '[');
    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        if (is_seen_by(session->who.owner, who))
            write_session_holding(writer, session, device);
    }
    write_close(writer, ']');
}

/* ---- By the driver ---- */

static const char *role_of(const struct core *core, const struct device *device, uint32_t pid)
{
    if (pid == (uint32_t)device->worker_pid)
        return "worker";
    list_for_each (node, &core->sessions)
        if (list_entry(node, struct session, node)->pid == (int32_t)pid)
            return "client";
    return "other";
}

/* False if it has ended, or is not to be seen from here. */
static bool look_up(uint32_t pid, char name[32], uid_t *uid)
{
    char path[32];
    struct stat status;

    snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    FILE *comm = fopen(path, "re");
    bool found = comm && fstat(fileno(comm), &status) == 0 && fscanf(comm, "%31[^\n]", name) == 1;

    if (found)
        *uid = status.st_uid;
    if (comm)
        fclose(comm);
    return found;
}

static void write_process(struct writer *writer, const struct core *core, const struct device *device,
                          const struct principal *who, const struct job_holder *holder)
{
    char name[32] = "";
    uid_t uid = (uid_t)-1;
    bool found = look_up(holder->pid, name, &uid);

    if (!who->admin && (!found || uid != who->owner.uid))
        return;
    write_open(writer, NULL, '{');
    write_integer(writer, "pid", holder->pid);
    write_string(writer, "name", found ? name : NULL);
    write_real(writer, "uid", found ? (double)uid : (double)NAN);
    if (holder->bytes == UINT64_MAX)
        write_null(writer, "bytes");
    else
        write_number(writer, "bytes", holder->bytes);
    write_string(writer, "is", role_of(core, device, holder->pid));
    write_close(writer, '}');
}

static void write_driver(struct writer *writer, const struct core *core, const struct device *device,
                         const struct principal *who)
{
    const struct job_query_reply *said = &device->books.said;

    if (!device->books.at_ms) {
        write_null(writer, "driver");
    } else {
        write_open(writer, "driver", '{');
        write_number(writer, "total", said->total_bytes);
        write_number(writer, "used", said->used_bytes);
        write_number(writer, "free", said->free_bytes);
        write_real(writer, "seconds", (double)(core_now(core) - device->books.at_ms) / 1e3);
        write_close(writer, '}');
    }
    write_unaccounted(writer, core, device);
    if (!device->books.at_ms || !said->tells_holders) {
        write_null(writer, "processes");
        return;
    }
    uint32_t listed = sizeof(said->holders) / sizeof(said->holders[0]);
    if (said->n < listed)
        listed = said->n;
    write_open(writer, "processes", '[');
    for (uint32_t i = 0; i < listed; i++)
        write_process(writer, core, device, who, &said->holders[i]);
    write_close(writer, ']');
    write_number(writer, "processes_unlisted", said->n - listed);
}

void write_unaccounted(struct writer *writer, const struct core *core, const struct device *device)
{
    uint64_t bytes;

    if (books_unaccounted(core, device, &bytes))
        write_number(writer, "unaccounted", bytes);
    else
        write_null(writer, "unaccounted");
}

/* ---- The method ---- */

static void write_device_holders(struct writer *writer, struct core *core, const struct device *device,
                                 const struct principal *who, struct holding *holdings)
{
    write_open(writer, NULL, '{');
    write_number(writer, "index", device->index);
    write_string(writer, "uuid", device->uuid);
    write_string(writer, "name", device->name);
    write_number(writer, "ledger", device->used[HBM_TIER_DEVICE]);
    write_number(writer, "peer_bytes", peer_bytes(core, device));
    write_driver(writer, core, device, who);
    write_accounts(writer, core, device, who, holdings);
    write_sessions(writer, core, device, who);
    write_number(writer, "pooled", device->pooled);
    write_close(writer, '}');
}

static void answer(struct request *request)
{
    struct core *core = request->core;
    struct writer *writer = answer_begin(request);
    size_t n = 0;

    list_for_each (node, &core->accounts)
        n++;
    mark_mapped(core);
    write_open(writer, "result", '[');
    list_for_each (node, &core->devices) {
        const struct device *device = list_entry(node, struct device, node);
        _cleanup_free_ struct holding *holdings = calloc(n + 1, sizeof(*holdings));
        if (!holdings)
            return answer_refuse(request, INTERNAL_ERROR, "no memory for the answer");
        if (!*request->subject || !strcmp(device->uuid, request->subject))
            write_device_holders(writer, core, device, &request->connection->who, holdings);
    }
    write_close(writer, ']');
    answer_end(request);
}

static void driver_has_told(struct books_wait *wait)
{
    answer(container_of(wait, struct request, books));
}

static void driver_is_late(struct timer *timer)
{
    answer(container_of(timer, struct request, timer));
}

void handle_WHO(struct request *request, const struct WHO_args *args)
{
    struct device *device = args->device ? device_by_text(request->core, args->device) : NULL;

    if (args->device && !device)
        return answer_refuse(request, HBM_E_NO_DEVICE, "%.100s", args->device);
    if (device)
        snprintf(request->subject, sizeof(request->subject), "%s", device->uuid);
    request->timer.fire = driver_is_late;
    timer_arm(request->core, &request->timer, DRIVER_MS);
    request->books.ready = driver_has_told;
    books_await(request->core, device, &request->books);
}
