/* `hbmctl put` and `get`: a buffer's bytes from and to a file. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/out_file.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/session.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

#define ATTACH_MS 60000u

static void print_done(const struct cli *cli, const char *name, const struct hbm_info *info, uint64_t bytes,
                       double seconds)
{
    char size[UNITS_TEXT], time[UNITS_TEXT], id[32];

    if (!cli->json) {
        printf("%s: %s in %s\n", name, units_bytes((double)bytes, size), units_seconds(seconds, time));
        return;
    }
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    snprintf(id, sizeof(id), "0x%" PRIx64, info->id);
    cJSON_AddStringToObject(json, "name", name);
    cJSON_AddStringToObject(json, "id", id);
    cJSON_AddNumberToObject(json, "bytes", (double)bytes);
    cJSON_AddNumberToObject(json, "seconds", seconds);
    report_json(json);
}

/* One transfer with its bar; told where it fails. */
static int move(const struct cli *cli, hbm_session *session, int fd, const struct hbm_range *range, bool write)
{
    struct transfer transfer = {.session = session};

    progress_begin(&transfer.progress, range->bytes, !cli->json);
    int error = transfer_run(&transfer, fd, range, range->bytes ? 1 : 0, write);
    progress_end(&transfer.progress);
    if (interrupted())
        return report(cli, HBM_E_CANCELLED, "%s %s was interrupted and nothing of it is kept; start it again",
                      cli->verb->name, cli->words[0]);
    return error ? report_libhbm(cli, error, "%s %s failed", cli->verb->name, cli->words[0]) : 0;
}

static int open_source(const struct cli *cli, const char *path, int *fd, uint64_t *size)
{
    struct stat status;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &status) < 0)
        return report(cli, HBM_E_IO, "%s cannot be opened: %m; name a file that you may read", path);
    if (!S_ISREG(status.st_mode) || status.st_size == 0)
        return report(cli, HBM_E_INVALID, "%s %s; name a file with bytes in it", path,
                      S_ISREG(status.st_mode) ? "is empty, and a buffer is not" : "is no regular file");
    /* O_NONBLOCK kept a FIFO from hanging us; the worker's reads would fail with EAGAIN under it. */
    if (fcntl(*fd, F_SETFL, 0) < 0)
        return report(cli, HBM_E_IO, "%s cannot be read: %m; name another file", path);
    *size = (uint64_t)status.st_size;
    return 0;
}

/* A buffer that was not filled must not stay. */
static void discard(hbm_session *session, hbm_lease *lease)
{
    struct hbm_info info;

    hbm_lease_info(lease, &info);
    hbm_detach(lease);
    hbm_free(session, info.id);
}

static int put(const struct cli *cli, hbm_session *session, int fd, uint64_t size)
{
    struct hbm_spec spec = {.size = size, .dtype = HBM_U8, .rank = 1, .name = cli->words[0], .dims = {size}};
    double started = progress_now();
    struct hbm_info info;
    hbm_lease *lease = NULL;
    int status = session_device(cli, session, &spec.device);

    if (status)
        return status;
    spec.flags = HBM_KEEP | (cli_value(cli, "--shared") ? HBM_SHARED : 0u) | session_priority(cli);
    int error = hbm_alloc(session, &spec, &lease);
    if (error)
        return report_libhbm(cli, error, "%s was not made", spec.name);
    hbm_lease_info(lease, &info);
    struct hbm_range range = {info.id, 0, 0, size};
    status = move(cli, session, fd, &range, false);
    if (status) {
        discard(session, lease);
        return status;
    }
    print_done(cli, spec.name, &info, size, progress_now() - started);
    hbm_detach(lease);
    return EXIT_DONE;
}

int run_put(const struct cli *cli)
{
    _cleanup_(session_closep) hbm_session *session = NULL;
    _cleanup_fd_ int fd = -1;
    uint64_t size = 0;

    interrupt_watch();
    int status = open_source(cli, cli->words[1], &fd, &size);
    if (!status)
        status = session_open(cli, &session);
    return status ? status : put(cli, session, fd, size);
}

/* What the daemon writes: the logical dtype, whatever the encoding. */
static uint64_t logical_bytes(const struct hbm_info *info)
{
    uint64_t bytes = info->size;

    if (info->encoding.codec != HBM_CODEC_RAW)
        hbm_shape_bytes(info->dims, info->rank, info->dtype, &bytes);
    return bytes;
}

static int get(const struct cli *cli, hbm_session *session, struct out_file *out)
{
    double started = progress_now();
    char why[OUT_FILE_WHY];
    hbm_lease *lease = NULL;
    struct hbm_info info;
    int error = hbm_attach(session, cli->words[0], HBM_RO, HBM_UNLOCKED, ATTACH_MS, &lease);

    if (error)
        return report_libhbm(cli, error, "%s cannot be read", cli->words[0]);
    hbm_lease_info(lease, &info);
    struct hbm_range range = {info.id, 0, 0, logical_bytes(&info)};
    int status = move(cli, session, out->fd, &range, true);
    if (!status && out_file_commit(out, why) < 0)
        status = report(cli, HBM_E_IO, "%s was not written: %s", cli->words[0], why);
    if (!status)
        print_done(cli, cli->words[0], &info, range.bytes, progress_now() - started);
    hbm_detach(lease);
    return status;
}

int run_get(const struct cli *cli)
{
    _cleanup_(session_closep) hbm_session *session = NULL;
    _cleanup_(out_file_clear) struct out_file out = {.fd = -1};
    char why[OUT_FILE_WHY];

    interrupt_watch();
    int status = session_open(cli, &session);
    if (!status && out_file_open(&out, cli->words[1], why) < 0)
        status = report(cli, HBM_E_IO, "%s was not written: %s", cli->words[0], why);
    return status ? status : get(cli, session, &out);
}
