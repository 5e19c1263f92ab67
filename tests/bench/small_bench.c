/* Tensors of 64 KiB, 1000 a group, offloaded and restored, beside the same bytes in one copy: those of one group, which
 * share memory and move as one; those of several groups that are asked for at once, as the layers of a model are; and loose
 * ones, each with memory of its own. usage: small_bench */
#include "tests/bench/bare.h"

#define TENSORS 1000u
#define TENSOR_BYTES ((size_t)64 << 10)
#define GROUPS_MAX 16u
#define MODEL "bench-small"
#define LOOSE "bench-loose"

static hbm_session *session;
static struct bare bare;

static void publish(unsigned groups)
{
    static struct hbm_publish_buffer rows[GROUPS_MAX * TENSORS];
    static char names[GROUPS_MAX * TENSORS][16], layers[GROUPS_MAX][16];
    struct hbm_publish spec = {
        .name = MODEL, .device = HBM_DEVICE_ANY, .flags = HBM_REPLACE, .buffers = rows, .n_buffers = groups * TENSORS};
    hbm_model *model;
    int must_build;

    for (unsigned i = 0; i < groups; i++)
        snprintf(layers[i], sizeof(layers[i]), "%u", i);
    for (unsigned i = 0; i < groups * TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        rows[i] = (struct hbm_publish_buffer){
            .name = names[i], .group = layers[i / TENSORS], .dtype = HBM_U8, .rank = 1, .dims = {TENSOR_BYTES}};
    }
    bench_must(hbm_publish_begin(session, &spec, HBM_FOREVER, &model, &must_build), "hbm_publish_begin");
    bench_must(hbm_publish_commit(model), "hbm_publish_commit");
}

static void row(const char *verb, const char *which, double *seconds, double *copy, size_t bytes, unsigned runs)
{
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = bare_name(&bare),
                            .aim = bare.driver ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 0.9};

    snprintf(what, sizeof(what), "%s of tensors of 64 KiB, %s", verb, which);
    bench_take_rate(&row, seconds, runs, bytes);
    row.beside = (double)bytes / 1e9 / bench_quantile(copy, runs, 0.5);
    bench_print(&row);
}

/* Seconds until all have moved that are selected. */
static double move_all(char selected[][32], unsigned n, bool away)
{
    hbm_op *ops[GROUPS_MAX];
    double start = bench_now();

    for (unsigned i = 0; i < n; i++)
        bench_must(away ? hbm_offload(session, selected[i], HBM_TIER_HOST, HBM_FORCE, &ops[i])
                        : hbm_restore(session, selected[i], &ops[i]),
                   away ? "hbm_offload" : "hbm_restore");
    for (unsigned i = 0; i < n; i++)
        bench_must(hbm_op_wait(ops[i], HBM_FOREVER, NULL), "hbm_op_wait");
    double seconds = bench_now() - start;
    for (unsigned i = 0; i < n; i++)
        hbm_op_free(ops[i]);
    return seconds;
}

static void measure(const char *which, char selected[][32], unsigned n, unsigned runs)
{
    double offload[BENCH_RUNS], restore[BENCH_RUNS], down[BENCH_RUNS], up[BENCH_RUNS];
    struct bare_side side;

    bare_make(&bare, &side, n * TENSORS * TENSOR_BYTES);
    for (int i = -1; i < (int)runs; i++) {
        double away = move_all(selected, n, true);
        usleep(SCRUBBED_US);
        double back = move_all(selected, n, false);
        double bare_up = bare_once(&bare, &side, false), bare_down = bare_once(&bare, &side, true);
        if (i >= 0)
            offload[i] = away, restore[i] = back, down[i] = bare_down, up[i] = bare_up;
    }
    bare_drop(&bare, &side);
    row("offload", which, offload, down, side.size, runs);
    row("restore", which, restore, up, side.size, runs);
}

int main(void)
{
    char name[32], layers[GROUPS_MAX][32], loose[][32] = {LOOSE ".*"};

    session = bench_open(0);
    bare_open(&bare, session);
    unsigned groups = bare.driver ? GROUPS_MAX : 4;
    publish(groups); /* run.sh removes the model */
    for (unsigned i = 0; i < groups; i++)
        snprintf(layers[i], sizeof(layers[i]), "group:" MODEL "/%u", i);
    measure("a group of 1000", layers, 1, bench_runs(BENCH_RUNS));
    snprintf(name, sizeof(name), "%u groups at once", groups);
    measure(name, layers, groups, bench_runs(BENCH_RUNS / 2));
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), LOOSE ".%u", i);
        bench_make(session, name, TENSOR_BYTES);
    }
    measure("1000 loose", loose, 1, bench_runs(BENCH_RUNS / 4));
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), LOOSE ".%u", i);
        bench_drop(session, name);
    }
    hbm_close(session);
    return 0;
}
