/* 1000 tensors of 64 KiB, offloaded and restored, beside the same bytes in one copy: those of a group, which share
 * memory and move as one, and loose ones, each with memory of its own. usage: small_bench */
#include "tests/bench/bare.h"

#define TENSORS 1000u
#define TENSOR_BYTES ((size_t)64 << 10)
#define MODEL "bench-small"
#define LOOSE "bench-loose"

static hbm_session *session;
static struct bare bare;
static struct bare_side side;

static void publish(void)
{
    static struct hbm_publish_buffer rows[TENSORS];
    static char names[TENSORS][16];
    struct hbm_publish spec = {
        .name = MODEL, .device = HBM_DEVICE_ANY, .flags = HBM_REPLACE, .buffers = rows, .n_buffers = TENSORS};
    hbm_model *model;
    int must_build;

    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        rows[i] = (struct hbm_publish_buffer){
            .name = names[i], .group = "layer", .dtype = HBM_U8, .rank = 1, .dims = {TENSOR_BYTES}};
    }
    bench_must(hbm_publish_begin(session, &spec, HBM_FOREVER, &model, &must_build), "hbm_publish_begin");
    bench_must(hbm_publish_commit(model), "hbm_publish_commit");
}

static void row(const char *verb, const char *which, double *seconds, double *copy, unsigned runs)
{
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = bare_name(&bare),
                            .aim = bare.driver ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 0.9};

    snprintf(what, sizeof(what), "%s of 1000 tensors of 64 KiB, %s", verb, which);
    bench_take_rate(&row, seconds, runs, side.size);
    row.beside = (double)side.size / 1e9 / bench_quantile(copy, runs, 0.5);
    bench_print(&row);
}

static void measure(const char *which, const char *sel, unsigned runs)
{
    double offload[BENCH_RUNS], restore[BENCH_RUNS], down[BENCH_RUNS], up[BENCH_RUNS];

    for (int i = -1; i < (int)runs; i++) {
        double start = bench_now();
        bench_must(hbm_offload(session, sel, HBM_TIER_HOST, HBM_FORCE, NULL), "hbm_offload");
        double away = bench_now() - start;
        usleep(SCRUBBED_US);
        start = bench_now();
        bench_must(hbm_restore(session, sel, NULL), "hbm_restore");
        double back = bench_now() - start;
        double bare_up = bare_once(&bare, &side, false), bare_down = bare_once(&bare, &side, true);
        if (i >= 0)
            offload[i] = away, restore[i] = back, down[i] = bare_down, up[i] = bare_up;
    }
    row("offload", which, offload, down, runs);
    row("restore", which, restore, up, runs);
}

int main(void)
{
    char name[32];

    session = bench_open(0);
    bare_open(&bare, session);
    bare_make(&bare, &side, TENSORS * TENSOR_BYTES);
    publish(); /* run.sh removes the model */
    measure("a group", "group:" MODEL "/layer", bench_runs(BENCH_RUNS));
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), LOOSE ".%u", i);
        bench_make(session, name, TENSOR_BYTES);
    }
    measure("loose", LOOSE ".*", bench_runs(BENCH_RUNS / 4));
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), LOOSE ".%u", i);
        bench_drop(session, name);
    }
    bare_drop(&bare, &side);
    hbm_close(session);
    return 0;
}
