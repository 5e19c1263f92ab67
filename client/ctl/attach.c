/* `hbmctl attach`: what any client would do with a buffer, for scripts and for eyes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/mapped_hash.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/session.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

#define ATTACH_MS 60000u

struct attach {
    const struct cli *cli;
    hbm_session *session;
    unsigned access;
    cJSON *rows; /* for --json */
};

static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);

    return strncmp(text, prefix, length) ? NULL : text + length;
}

static int print_buffer(struct attach *attach, const struct hbm_info *info, const char *model)
{
    const char *slash = model ? "/" : "", *name = info->name ? info->name : "";
    char id[32], address[32], hash_text[32];
    uint64_t hash;
    const char *why = mapped_hash(attach->session, info, &hash);
    _cleanup_free_ char *full = NULL;

    if (why)
        return report(attach->cli, HBM_E_NO_CUDA,
                      "%s is attached, but its bytes cannot be read here: %s; see `hbmctl hash`", name, why);
    snprintf(id, sizeof(id), "id:0x%" PRIx64, info->id);
    full = text_new("%s%s%s", model ? model : "", slash, *name ? name : id);
    if (!full)
        return report(attach->cli, HBM_E_SYSTEM, "there is no memory for a name; free some and try again");
    snprintf(address, sizeof(address), "0x%" PRIxPTR, (uintptr_t)info->pointer);
    snprintf(hash_text, sizeof(hash_text), "%016" PRIx64, hash);
    if (attach->cli->json) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "id", after(id, "id:"));
        cJSON_AddStringToObject(row, "name", full);
        cJSON_AddStringToObject(row, "address", address);
        cJSON_AddNumberToObject(row, "size", (double)info->size);
        cJSON_AddStringToObject(row, "hash", hash_text);
        cJSON_AddStringToObject(row, "access", info->access == HBM_RW ? "rw" : "ro");
        cJSON_AddItemToArray(attach->rows, row);
        return 0;
    }
    report_clean(full);
    printf("%s %" PRIu64 " %s %s\n", address, info->size, hash_text, full);
    return 0;
}

static int attach_model(struct attach *attach, const char *name)
{
    hbm_model *model = NULL; /* released with the session */
    int error = hbm_model_attach(attach->session, name, attach->access, 0, ATTACH_MS, &model), status = 0;

    if (error)
        return report_libhbm(attach->cli, error, "%s cannot be attached", name);
    for (unsigned i = 0; !status && i < hbm_model_count(model); i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        status = print_buffer(attach, &info, name);
    }
    return status;
}

static int attached(struct attach *attach, int error, const hbm_lease *lease, const char *wanted)
{
    struct hbm_info info;

    if (error)
        return report_libhbm(attach->cli, error, "%s cannot be attached", wanted);
    hbm_lease_info(lease, &info);
    return print_buffer(attach, &info, NULL);
}

static int attach_id(struct attach *attach, const char *text)
{
    hbm_lease *lease = NULL; /* released with the session */
    char *end;
    uint64_t id = strtoull(text, &end, 16);

    if (end == text || *end)
        return report(attach->cli, HBM_E_INVALID, "\"%s\" is no id: one is hexadecimal, as `hbmctl ls` shows it",
                      text);
    int error = hbm_attach_id(attach->session, id, attach->access, 0, ATTACH_MS, &lease);
    return attached(attach, error, lease, text);
}

static int attach_name(struct attach *attach, const char *name)
{
    hbm_lease *lease = NULL; /* released with the session */
    int error = hbm_attach(attach->session, name, attach->access, 0, ATTACH_MS, &lease);

    return attached(attach, error, lease, name);
}

/* Groups and globs are the daemon's to resolve. */
static int attach_selected(struct attach *attach, const char *sel)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *buffers = NULL;
    cJSON *params = cJSON_CreateObject();
    const cJSON *row;
    int status = rpc_open(attach->cli, &rpc);

    cJSON_AddStringToObject(params, "sel", sel);
    if (status) {
        cJSON_Delete(params);
        return status;
    }
    status = rpc_call(rpc, "hbm.show", params, &buffers);
    cJSON_ArrayForEach(row, buffers)
    {
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "id"));
        if (!status && id)
            status = attach_id(attach, id);
    }
    return status;
}

static int attach_all(struct attach *attach, const char *sel)
{
    if (after(sel, "model:"))
        return attach_model(attach, after(sel, "model:"));
    if (after(sel, "id:"))
        return attach_id(attach, after(sel, "id:"));
    if (after(sel, "group:") || strpbrk(sel, "*?["))
        return attach_selected(attach, sel);
    return attach_name(attach, sel);
}

/* The daemon is asked every second whether it still knows the session; libhbm waits for a daemon that restarts. */
static int hold(struct attach *attach, double seconds)
{
    double until = progress_now() + seconds;

    for (;;) {
        double left = until - progress_now();
        struct hbm_device_info info;
        if (interrupted() || left <= 0)
            return EXIT_DONE;
        interrupt_sleep(left < 1 ? left : 1);
        int error = interrupted() ? 0 : hbm_device_get(attach->session, 0, &info);
        if (!error)
            continue;
        _cleanup_(rpc_closep) struct rpc *rpc = NULL;
        int status = rpc_open(attach->cli, &rpc);
        if (status)
            return status;
        report_libhbm(attach->cli, error, "the hold ended: the daemon is there, but it ended this session");
        return EXIT_REFUSED;
    }
}

int run_attach(const struct cli *cli)
{
    _cleanup_(session_closep) hbm_session *session = NULL;
    _cleanup_json_ cJSON *rows = cJSON_CreateArray();
    struct attach attach = {.cli = cli, .access = cli_value(cli, "--rw") ? HBM_RW : HBM_RO, .rows = rows};
    int status = session_open(cli, &session);

    if (status)
        return status;
    attach.session = session;
    interrupt_watch();
    status = attach_all(&attach, cli->words[0]);
    if (status)
        return status;
    if (cli->json)
        report_json(rows);
    fflush(stdout);
    return hold(&attach, cli_number(cli, "--hold", 0));
}
