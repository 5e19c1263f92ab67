/* `hbmctl load`: safetensors or GGUF files become a model. The daemon reads the files itself, from descriptors opened here
 * with the caller's rights. Until the commit nobody sees anything of it, and every failure before it discards all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/layout.h"
#include "client/ctl/kept_files.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/session.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

/* How long a publisher waits for memory that others are about to let go of. */
#define PUBLISH_MS 60000u

struct load {
    const struct cli *cli;
    const char *name;
    struct checkpoint *checkpoint;
    struct layout layout;
    hbm_session *session;
    hbm_model *model;
};

static int begin(struct load *load)
{
    const struct cli *cli = load->cli;
    size_t metadata_size = 0;
    _cleanup_free_ void *metadata = kept_files_pack(load->checkpoint, &metadata_size);
    char key[64];
    int must_build = 0;
    struct hbm_publish spec = {
        .name = load->name,
        .key = key,
        .flags = HBM_UNLOCKED | (cli_value(cli, "--shared") ? HBM_SHARED : 0u) |
                 (cli_value(cli, "--replace") ? HBM_REPLACE : 0u) | session_priority(cli),
        .metadata = metadata,
        .metadata_size = metadata_size,
        .buffers = load->layout.buffers,
        .n_buffers = load->layout.n_buffers,
    };
    int status = session_device(cli, load->session, &spec.device);

    if (status)
        return status;
    if (!metadata)
        return report(cli, HBM_E_SYSTEM, "there is no memory for the headers of %s; free some and try again",
                      load->name);
    snprintf(key, sizeof(key), "%s headers %016" PRIx64,
             load->checkpoint->shards[0].file->header ? "safetensors" : "GGUF", (uint64_t)XXH3_64bits(metadata, metadata_size));
    int error = hbm_publish_begin(load->session, &spec, PUBLISH_MS, &load->model, &must_build);
    if (error)
        return report_libhbm(cli, error, "%s cannot be loaded", load->name);
    if (must_build)
        return 0;
    hbm_model_detach(load->model);
    load->model = NULL;
    return report(cli, HBM_E_EXISTS, "%s is there already; choose another name, or pass --replace", load->name);
}

/* Where each tensor of a shard goes. NULL after the reason was told. */
static struct hbm_range *ranges_of(const struct load *load, const struct shard *shard, unsigned first, unsigned *n,
                                   int *status)
{
    struct hbm_range *ranges = calloc(shard->file->n + 1, sizeof(*ranges));

    *n = 0;
    if (!ranges) {
        *status =
            report(load->cli, HBM_E_SYSTEM, "there is no memory to load %s; free some and try again", shard->name);
        return NULL;
    }
    for (unsigned i = 0; i < shard->file->n; i++) {
        const struct safetensor *tensor = &shard->file->tensors[i];
        struct hbm_info info;
        if (tensor->begin == tensor->end)
            continue;
        if (!session_find(load->model, first + i, tensor->name, &info)) {
            *status = report(load->cli, HBM_E_INTERNAL,
                             "the daemon gave no memory for tensor \"%s\"; this is a fault of hbmd, report it",
                             tensor->name);
            free(ranges);
            return NULL;
        }
        ranges[(*n)++] =
            (struct hbm_range){info.id, 0, shard->file->header_bytes + tensor->begin, tensor->end - tensor->begin};
    }
    return ranges;
}

static int fill(struct load *load)
{
    struct transfer transfer = {.session = load->session};
    unsigned first = 0;
    int status = 0;

    progress_begin(&transfer.progress, load->checkpoint->bytes, !load->cli->json);
    for (unsigned i = 0; !status && i < load->checkpoint->n_shards; i++) {
        const struct shard *shard = &load->checkpoint->shards[i];
        unsigned n;
        _cleanup_free_ struct hbm_range *ranges = ranges_of(load, shard, first, &n, &status);
        if (!ranges)
            break;
        int error = transfer_run(&transfer, shard->fd, ranges, n, false);
        if (error || interrupted())
            progress_end(&transfer.progress);
        if (interrupted())
            status = report(load->cli, HBM_E_CANCELLED,
                            "the load of %s was interrupted and nothing of it is kept; start it again", load->name);
        else if (error)
            status = report_libhbm(load->cli, error, "%s was not loaded", shard->name);
        first += shard->file->n;
    }
    progress_end(&transfer.progress);
    return status;
}

static void print_done(const struct load *load, double seconds)
{
    uint64_t bytes = load->checkpoint->bytes;
    double rate = seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
    char size[UNITS_TEXT], time[UNITS_TEXT], speed[UNITS_TEXT];

    if (load->cli->json) {
        _cleanup_json_ cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "model", load->name);
        cJSON_AddNumberToObject(json, "tensors", load->layout.n_buffers);
        cJSON_AddNumberToObject(json, "groups", load->layout.n_groups);
        cJSON_AddNumberToObject(json, "bytes", (double)bytes);
        cJSON_AddNumberToObject(json, "seconds", seconds);
        cJSON_AddNumberToObject(json, "gb_per_s", rate);
        report_json(json);
        return;
    }
    printf("%s: %u tensor%s in %u group%s, %s in %s, %s\n", load->name, load->layout.n_buffers,
           load->layout.n_buffers == 1 ? "" : "s", load->layout.n_groups, load->layout.n_groups == 1 ? "" : "s",
           units_bytes((double)bytes, size), units_seconds(seconds, time), units_rate(rate, speed));
}

static int publish(struct load *load)
{
    double started = progress_now();
    int status = session_open(load->cli, &load->session);

    if (!status)
        status = begin(load);
    if (!status)
        status = fill(load);
    if (status)
        return status;
    int error = hbm_publish_commit(TAKE_PTR(load->model));
    if (error)
        return report_libhbm(load->cli, error, "%s was not published", load->name);
    print_done(load, progress_now() - started);
    return EXIT_DONE;
}

static int prepare(struct load *load)
{
    char why[CHECKPOINT_WHY];

    load->checkpoint = checkpoint_open(load->cli->words, load->cli->n_words, why);
    if (!load->checkpoint)
        return report(load->cli, HBM_E_INVALID,
                      "nothing was loaded: %s; name whole .safetensors or .gguf files that you may read", why);
    if (!load->checkpoint->n_tensors)
        return report(load->cli, HBM_E_INVALID,
                      "nothing was loaded: there is no tensor in %s; give files with some", load->cli->words[0]);
    if (layout_make(&load->layout, load->checkpoint) < 0)
        return report(load->cli, HBM_E_SYSTEM, "there is no memory to load %s; free some and try again",
                      load->name);
    return 0;
}

int run_load(const struct cli *cli)
{
    struct load load = {.cli = cli, .name = cli_value(cli, "--as")};

    interrupt_watch();
    int status = prepare(&load);
    if (!status)
        status = publish(&load);
    if (load.model)
        hbm_publish_abort(load.model);
    hbm_close(load.session);
    layout_clear(&load.layout);
    checkpoint_free(load.checkpoint);
    return status;
}
