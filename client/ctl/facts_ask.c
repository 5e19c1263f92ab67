/* What the daemon tells, as facts: of a selection, or of all that is leased on a device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/duplicates.h"
#include "client/ctl/facts.h"
#include "client/ctl/member.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"

static const cJSON *find(const cJSON *rows, const char *name, const char *value)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, rows) if (!strcmp(text_of(row, name), value)) return row;
    return NULL;
}

/* ---- The device ---- */

static int choose_device(const struct cli *cli, const cJSON *selected, struct state *state)
{
    const cJSON *devices = member(state->status, "devices"), *row;
    const char *wanted = cli_value(cli, "--device");
    char *end;

    if (selected && selected->child) {
        state->device = find(devices, "uuid", text_of(selected->child, "device"));
    } else if (!wanted) {
        state->device = devices ? devices->child : NULL;
    } else {
        state->device = find(devices, "uuid", wanted);
        unsigned long index = strtoul(wanted, &end, 10);
        cJSON_ArrayForEach(row, devices) if (end != wanted && !*end && number(row, "index") == (double)index)
            state->device = row;
    }
    return state->device ? 0
                         : report(cli, HBM_E_NO_DEVICE, "no device %s is served here; see `hbmctl devices`",
                                  wanted ? wanted : "at all");
}

static void note_device(const struct state *state, struct facts *facts)
{
    const cJSON *tier = find(member(state->device, "tiers"), "tier", "device");

    facts->is_gpu = strcmp(text_of(state->device, "kind"), "host") != 0;
    if (cJSON_IsNumber(member(state->device, "unaccounted")))
        facts->others_bytes = number(state->device, "unaccounted");
    facts->capacity_bytes = number(tier, "capacity");
    facts->used_bytes = number(tier, "used") - number(tier, "closing") - number(tier, "pooled");
}

static void note_counters(const struct state *state, struct facts *facts)
{
    const cJSON *refused = find(member(state->status, "refusals"), "error", "NO_MEMORY");

    facts->uptime_seconds = number(state->status, "uptime_seconds");
    facts->attaches = number(state->status, "attaches");
    facts->attached_bytes = number(state->status, "attached_bytes");
    facts->lock_waits = number(state->status, "lock_waits");
    facts->lock_wait_seconds = number(state->status, "lock_wait_seconds");
    facts->bounces = number(state->status, "bounces");
    facts->evicted_bytes = number(state->status, "evicted_bytes");
    facts->refused = number(refused, "n");
}

static void note_config(const cJSON *config, struct state *state, struct facts *facts)
{
    const cJSON *limit = find(config, "key", "offload_limit"), *directory = find(config, "key", "state_dir");

    if (limit)
        facts->offload_limit = strtod(text_of(limit, "value"), NULL) / 100;
    state->directory = must_text("%s", text_of(directory, "value"));
}

/* ---- What is meant ---- */

static bool is_locked(const cJSON *row)
{
    const cJSON *lease;

    cJSON_ArrayForEach(lease, member(row, "leases")) if (cJSON_IsTrue(member(lease, "locked"))) return true;
    return false;
}

static bool is_leased(const cJSON *row)
{
    const cJSON *leases = member(row, "leases");

    return leases && leases->child;
}

static bool is_on(const cJSON *row, const struct state *state)
{
    return !strcmp(text_of(row, "device"), text_of(state->device, "uuid"));
}

/* As it lies, or would lie, on the device: what is parked is raw there. */
static double needs(const cJSON *row)
{
    return number(row, strcmp(text_of(row, "encoding"), "raw") ? "stored_size" : "size");
}

static bool same_group(const cJSON *a, const cJSON *b)
{
    return a && *text_of(a, "group") && *text_of(a, "model") && !strcmp(text_of(a, "group"), text_of(b, "group")) &&
           !strcmp(text_of(a, "model"), text_of(b, "model")) && number(a, "owner") == number(b, "owner");
}

static void note_row(const cJSON *row, struct facts *facts)
{
    const char *dtype = text_of(row, "dtype");
    double bytes = needs(row);

    facts->needed_bytes += bytes;
    if (*text_of(row, "parks_as"))
        facts->parks_bytes += bytes;
    if (!*text_of(row, "model"))
        facts->loose_bytes += bytes;
    if (strcmp(text_of(row, "encoding"), "raw")) {
        facts->encoded_bytes += bytes;
        facts->decoded_bytes += number(row, "size");
    } else if (!strcmp(dtype, "F32")) {
        facts->f32_bytes += bytes;
    } else if (!strcmp(dtype, "F16") || !strcmp(dtype, "BF16")) {
        facts->f16_bytes += bytes;
    }
}

bool is_its_model(const cJSON *model, const cJSON *row)
{
    const char *name = text_of(model, "name"), *slash = strrchr(name, '/'), *its = text_of(row, "model");

    return *its && !strcmp(slash ? slash + 1 : name, its) && number(model, "owner") == number(row, "owner");
}

static const cJSON *model_of(const cJSON *models, const cJSON *row)
{
    const cJSON *model;

    cJSON_ArrayForEach(model, models) if (is_its_model(model, row)) return model;
    return NULL;
}

/* Rows of one group follow each other. */
static void note_buffers(const cJSON *rows, const cJSON *models, bool whole, const struct state *state,
                         struct facts *facts)
{
    const cJSON *row, *last = NULL;

    facts->needed_bytes = facts->f32_bytes = facts->f16_bytes = facts->parks_bytes = facts->loose_bytes = 0;
    facts->encoded_bytes = facts->decoded_bytes = facts->groups = facts->windowed = 0;
    if (!whole)
        facts->lock_waits = facts->lock_wait_seconds = 0;
    cJSON_ArrayForEach(row, rows)
    {
        if (!is_on(row, state) || (whole && !is_leased(row)))
            continue;
        note_row(row, facts);
        if (same_group(last, row))
            continue;
        facts->groups++;
        if (!whole) {
            facts->lock_waits += number(row, "lock_waits");
            facts->lock_wait_seconds += number(row, "lock_wait_seconds");
        }
        const cJSON *model =
            last && !strcmp(text_of(last, "model"), text_of(row, "model")) ? NULL : model_of(models, row);
        if (model && cJSON_GetArraySize(member(model, "windows")) > 0)
            facts->windowed = 1;
        if (model)
            facts->ordered =
                isnan(facts->ordered) || facts->ordered > 0 ? cJSON_IsArray(member(model, "order")) : 0;
        last = row;
    }
}

static double locked_bytes(const cJSON *rows, const struct state *state)
{
    const cJSON *row;
    double bytes = 0;

    cJSON_ArrayForEach(row, rows) if (is_on(row, state) && is_locked(row) &&
                                      !strcmp(text_of(row, "tier"), "device")) bytes += needs(row);
    return bytes;
}

static int ask_rows(const struct cli *cli, struct rpc *rpc, cJSON **buffers, cJSON **models, cJSON **selected)
{
    int status = rpc_call(rpc, "hbm.ls", NULL, buffers);

    if (!status)
        status = rpc_call(rpc, "hbm.models", NULL, models);
    if (!status && cli->n_words) {
        cJSON *params = cJSON_CreateObject();
        cJSON_AddStringToObject(params, "sel", cli->words[0]);
        status = rpc_call(rpc, "hbm.show", params, selected);
    }
    return status;
}

int facts_ask(const struct cli *cli, struct facts *facts, struct state *state)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *config = NULL, *buffers = NULL, *models = NULL, *selected = NULL;
    int status = rpc_open(cli, &rpc);

    if (!status)
        status = rpc_call(rpc, "hbm.status", NULL, &state->status);
    if (!status)
        status = rpc_call(rpc, "hbm.config", NULL, &config);
    if (!status)
        status = ask_rows(cli, rpc, &buffers, &models, &selected);
    if (!status)
        status = choose_device(cli, selected, state);
    if (status)
        return status;
    note_device(state, facts);
    note_counters(state, facts);
    note_config(config, state, facts);
    note_buffers(selected ? selected : buffers, models, !selected, state, facts);
    facts->taken_bytes = selected ? locked_bytes(buffers, state) - locked_bytes(selected, state) : 0;
    return duplicates_find(rpc, buffers, models, selected, text_of(state->device, "uuid"), facts);
}

void state_clear(struct state *state)
{
    cJSON_Delete(state->status);
    free(state->directory);
    *state = (struct state){0};
}
