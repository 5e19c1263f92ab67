/* `hbmctl save`: a loaded model as the files it came from, byte for byte while its encodings lose nothing. All
 * files are written beside their places first; none is replaced unless every one is whole. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/kept_files.h"
#include "client/ctl/out_file.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/session.h"
#include "client/ctl/text.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

#define ATTACH_MS 60000u

struct save {
    const struct cli *cli;
    const char *name, *target;
    struct transfer transfer;
    hbm_model *model;
    struct kept_file *files;
    struct out_file *outs; /* one a file */
    unsigned n_files;
};

static int no_memory(const struct save *save)
{
    return report(save->cli, HBM_E_SYSTEM, "there is no memory to save %s; free some and try again", save->name);
}

static bool same_tensor(const struct safetensor *tensor, const struct hbm_info *info)
{
    return tensor->dtype == info->dtype && tensor->rank == info->rank &&
           !memcmp(tensor->dims, info->dims, tensor->rank * sizeof(info->dims[0]));
}

static int write_all(int fd, const char *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(fd, bytes + done, size - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

/* Buffers of the file's tensors, as ranges. */
static int find_ranges(const struct save *save, const struct safetensors *file, struct hbm_range *ranges,
                       unsigned *n)
{
    for (unsigned i = 0; i < file->n; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        struct hbm_info info;
        if (!session_find(save->model, i, tensor->name, &info) || !same_tensor(tensor, &info))
            return report(
                save->cli, HBM_E_INVALID,
                "%s cannot be saved: its tensor \"%s\" is not what the kept header says; `get` its buffers",
                save->name, tensor->name);
        if (tensor->begin < tensor->end)
            ranges[(*n)++] =
                (struct hbm_range){info.id, 0, file->header_bytes + tensor->begin, tensor->end - tensor->begin};
    }
    return 0;
}

static int write_tensors(struct save *save, const struct kept_file *kept, int fd)
{
    char why[SAFETENSORS_WHY];
    unsigned n = 0;
    struct safetensors *file = checkpoint_parse(kept->bytes, kept->size, kept->file_size, why);

    if (!file)
        return report(save->cli, HBM_E_INVALID,
                      "%s cannot be saved: the header kept of %s is damaged: %s; load it again", save->name,
                      kept->name, why);
    _cleanup_free_ struct hbm_range *ranges = calloc(file->n + 1, sizeof(*ranges));
    int status = ranges ? find_ranges(save, file, ranges, &n) : no_memory(save);
    safetensors_free(file);
    if (status)
        return status;
    int error = transfer_run(&save->transfer, fd, ranges, n, true);
    if (error || interrupted())
        progress_end(&save->transfer.progress);
    if (interrupted())
        return report(save->cli, HBM_E_CANCELLED,
                      "the save of %s was interrupted and nothing was replaced; start it again", save->name);
    return error ? report_libhbm(save->cli, error, "%s was not saved", kept->name) : 0;
}

static int write_file(struct save *save, const struct kept_file *kept, struct out_file *out)
{
    if (write_all(out->fd, kept->bytes, kept->size) < 0 || ftruncate(out->fd, (off_t)kept->file_size) < 0)
        return report(save->cli, HBM_E_IO, "%s cannot be written: %m; free space there or name another place",
                      out->path);
    return kept->kind == KEPT_HEADER ? write_tensors(save, kept, out->fd) : 0;
}

static int write_files(struct save *save)
{
    uint64_t total = 0;
    int status = 0;

    for (unsigned i = 0; i < save->n_files; i++)
        total += save->files[i].file_size;
    progress_begin(&save->transfer.progress, total, !save->cli->json);
    for (unsigned i = 0; !status && i < save->n_files; i++)
        status = write_file(save, &save->files[i], &save->outs[i]);
    progress_end(&save->transfer.progress);
    return status;
}

/* One file goes to the target, or into it where it is a directory; several want a directory, made if need be. */
static int open_outs(struct save *save)
{
    char why[OUT_FILE_WHY];
    struct stat status;
    bool directory = stat(save->target, &status) == 0 && S_ISDIR(status.st_mode);

    if (save->n_files > 1 && !directory && mkdir(save->target, 0777) < 0)
        return report(save->cli, HBM_E_INVALID,
                      "%s was loaded from %u files and the directory %s cannot be made: %m; name a directory",
                      save->name, save->n_files, save->target);
    directory |= save->n_files > 1;
    for (unsigned i = 0; i < save->n_files; i++) {
        _cleanup_free_ char *path =
            directory ? text_new("%s/%s", save->target, save->files[i].name) : strdup(save->target);
        if (!path)
            return no_memory(save);
        if (out_file_open(&save->outs[i], path, why) < 0)
            return report(save->cli, HBM_E_IO, "%s was not saved: %s", save->name, why);
    }
    return 0;
}

static int attach(struct save *save)
{
    size_t size = 0;
    int error = hbm_model_attach(save->transfer.session, save->name, HBM_RO, HBM_UNLOCKED, ATTACH_MS, &save->model);

    if (error)
        return report_libhbm(save->cli, error, "%s cannot be saved", save->name);
    const void *metadata = hbm_model_metadata(save->model, &size);
    save->n_files = metadata ? kept_files_unpack(metadata, size, &save->files) : 0;
    if (!save->n_files)
        return report(
            save->cli, HBM_E_UNSUPPORTED,
            "%s cannot be saved: `hbmctl load` did not publish it, so no header was kept; `get` its buffers",
            save->name);
    save->outs = calloc(save->n_files, sizeof(*save->outs));
    return save->outs ? 0 : no_memory(save);
}

static int commit(struct save *save, double seconds)
{
    char why[OUT_FILE_WHY], size[UNITS_TEXT], time[UNITS_TEXT];
    uint64_t bytes = 0;

    for (unsigned i = 0; i < save->n_files; i++) {
        if (out_file_commit(&save->outs[i], why) < 0)
            return report(save->cli, HBM_E_IO, "%s was not saved: %s", save->name, why);
        bytes += save->files[i].file_size;
    }
    if (save->cli->json) {
        _cleanup_json_ cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "model", save->name);
        cJSON_AddNumberToObject(json, "files", save->n_files);
        cJSON_AddNumberToObject(json, "bytes", (double)bytes);
        cJSON_AddNumberToObject(json, "seconds", seconds);
        report_json(json);
    } else {
        printf("%s: %u file%s, %s in %s\n", save->name, save->n_files, save->n_files == 1 ? "" : "s",
               units_bytes((double)bytes, size), units_seconds(seconds, time));
    }
    return EXIT_DONE;
}

/* A warning, no failure: the files are whole, but not the ones that were loaded. */
static void warn_lossy(const struct save *save)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *rows = NULL;
    _cleanup_free_ char *sel = text_new("model:%s", save->name);
    unsigned n = 0, lossy = 0;
    const cJSON *row;

    if (rpc_clients_alone(save->cli)) {
        fflush(stdout);
        fprintf(stderr, "save: whether a lossy codec was used is told on the host alone (hbmctl show)\n");
        return;
    }
    if (!sel || rpc_open(save->cli, &rpc))
        return;
    cJSON *params = cJSON_CreateObject();
    cJSON_AddStringToObject(params, "sel", sel);
    if (rpc_call(rpc, "hbm.show", params, &rows))
        return;
    cJSON_ArrayForEach(row, rows)
    {
        const char *encoding = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "encoding"));
        n++;
        const cJSON *receipt = cJSON_GetObjectItemCaseSensitive(row, "receipt");
        bool whole = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(receipt, "lossless"));
        lossy += (encoding && strcmp(encoding, "raw")) || (cJSON_IsObject(receipt) && !whole);
    }
    fflush(stdout);
    if (lossy)
        fprintf(stderr, "save: %u of %u tensors went through a lossy codec; this is not what was loaded\n", lossy, n);
}

int run_save(const struct cli *cli)
{
    struct save save = {.cli = cli, .name = cli->words[0], .target = cli->words[1]};
    double started = progress_now();

    interrupt_watch();
    int status = session_open(cli, &save.transfer.session);
    if (!status)
        status = attach(&save);
    if (!status)
        status = open_outs(&save);
    if (!status)
        status = write_files(&save);
    if (!status)
        status = commit(&save, progress_now() - started);
    if (!status)
        warn_lossy(&save);
    for (unsigned i = 0; save.outs && i < save.n_files; i++)
        out_file_clear(&save.outs[i]);
    free(save.outs);
    kept_files_free(save.files, save.n_files);
    if (save.model)
        hbm_model_detach(save.model);
    hbm_close(save.transfer.session);
    return status;
}
