#include "client/ctl/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/report.h"
#include "client/ctl/runtime_dir.h"

#define POLL_MS 100
#define RECONNECT_MS 3000 /* whoever waits here is a person, or their script: sooner told than kept waiting */

int session_open(const struct cli *cli, hbm_session **ret)
{
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path) - sizeof("/hbmd.sock") + 1];
    int status = runtime_dir(cli, directory, sizeof(directory));
    struct hbm_options options = {.runtime_dir = directory, .client = "hbmctl", .reconnect_ms = RECONNECT_MS};

    if (status)
        return status;
    int error = hbm_open(&options, ret);
    return error ? report_libhbm(cli, error, "no session with the daemon in %s", directory) : 0;
}

uint32_t session_priority(const struct cli *cli)
{
    const char *wanted = cli_value(cli, "--priority");

    if (!wanted)
        return 0;
    return HBM_PRIORITY(*wanted == 'n' ? HBM_NEVER : (unsigned)(*wanted - '0'));
}

int session_device(const struct cli *cli, hbm_session *session, uint32_t *index)
{
    const char *wanted = cli_value(cli, "--device");
    int count;

    *index = HBM_DEVICE_ANY;
    if (!wanted)
        return 0;
    count = hbm_device_count(session);
    if (count < 0)
        return report_libhbm(cli, count, "the devices cannot be listed");
    for (unsigned i = 0; i < (unsigned)count; i++) {
        struct hbm_device_info info;
        char *end;
        bool numbered = strtoul(wanted, &end, 10) == i && end != wanted && !*end;
        int error = hbm_device_get(session, i, &info);
        if (error)
            return report_libhbm(cli, error, "device %u cannot be looked at", i);
        if (numbered || !strcmp(info.uuid, wanted)) {
            *index = i;
            return 0;
        }
    }
    return report(cli, HBM_E_NO_DEVICE, "no device %s is served here; see `hbmctl devices`", wanted);
}

/* The operation to its end. Cancelling is a wish: what counts is how it ends. */
static int follow(const struct transfer *transfer, hbm_op *op)
{
    bool cancelled = false;

    for (;;) {
        struct hbm_op_status status = {0};
        int error = hbm_op_wait(op, POLL_MS, &status);
        if (status.done || (error && error != HBM_E_TIMEOUT))
            return error;
        progress_update(&transfer->progress, transfer->done + status.bytes_done);
        if (interrupted() && !cancelled) {
            hbm_op_cancel(op);
            cancelled = true;
        }
    }
}

int transfer_run(struct transfer *transfer, int fd, const struct hbm_range *ranges, unsigned n, bool write)
{
    hbm_op *op = NULL;
    int error;

    if (!n)
        return 0;
    if (write)
        error = hbm_write_out(transfer->session, fd, ranges, n, &op);
    else
        error = hbm_fill(transfer->session, fd, ranges, n, &op);
    if (error)
        return error;
    error = follow(transfer, op);
    hbm_op_free(op);
    for (unsigned i = 0; i < n; i++)
        transfer->done += ranges[i].bytes;
    return error;
}

bool session_find(const hbm_model *model, unsigned hint, const char *tensor, struct hbm_info *info)
{
    int index;

    if (hint < hbm_model_count(model)) {
        hbm_model_buffer(model, hint, info);
        if (!strcmp(info->name, tensor))
            return true;
    }
    index = hbm_model_find(model, tensor);
    if (index < 0)
        return false;
    hbm_model_buffer(model, (unsigned)index, info);
    return true;
}
