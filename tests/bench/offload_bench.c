/* Offload to host memory and restore of one buffer, asked for and waited for by a client, beside the machine's own
 * copy of the same bytes; and of one that is parked, beside one of the plain floats. usage: offload_bench [MIB...]
 */
#include "tests/bench/bare.h"

#define NAME "bench-offload"
#define LARGE ((size_t)256 << 20) /* from here on the line rate is wanted */

static hbm_session *session;
static struct bare bare;
static unsigned runs;

/* The line rate, and what it must never be below. */
static void row(const char *verb, size_t size, double *seconds, double *copy, bool has_aim)
{
    char what[96];
    struct bench_row row = {.what = what, .unit = "GB/s", .beside_what = bare_name(&bare)};

    has_aim = has_aim && bare.driver && size >= LARGE;
    bench_take_rate(&row, seconds, runs, size);
    row.beside = (double)size / 1e9 / bench_quantile(copy, runs, 0.5);
    row.aim = has_aim ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM;
    row.bound = 0.95;
    snprintf(what, sizeof(what), "%s of %zu MiB", verb, size >> 20);
    bench_print(&row);
    if (!has_aim)
        return;
    row.bound = 0.85;
    snprintf(what, sizeof(what), "%s of %zu MiB, at the very least", verb, size >> 20);
    bench_print(&row);
}

static double offload_once(void)
{
    double start = bench_now();

    bench_must(hbm_offload(session, NAME, HBM_TIER_HOST, 0, NULL), "hbm_offload");
    return bench_now() - start;
}

static double restore_once(void)
{
    double start = bench_now();

    bench_must(hbm_restore(session, NAME, NULL), "hbm_restore");
    return bench_now() - start;
}

static void measure(size_t size)
{
    double offload[BENCH_RUNS], restore[BENCH_RUNS], at_once[BENCH_RUNS], down[BENCH_RUNS], up[BENCH_RUNS];
    struct bare_side side;

    bare_make(&bare, &side, size);
    bench_make(session, NAME, size);
    bare_fill(&bare, session, NAME, &side);
    for (int i = -(int)BENCH_WARM; i < (int)runs; i++) {
        double away = offload_once();
        usleep(SCRUBBED_US);
        double back = restore_once();
        offload_once();
        double back_at_once = restore_once();
        double bare_up = bare_once(&bare, &side, false), bare_down = bare_once(&bare, &side, true);
        if (i >= 0)
            offload[i] = away, restore[i] = back, at_once[i] = back_at_once, down[i] = bare_down, up[i] = bare_up;
    }
    bare_verify(&bare, session, NAME, &side);
    row("offload", size, offload, down, true);
    row("restore", size, restore, up, true);
    row("restore in the same millisecond", size, at_once, up, false);
    bench_drop(session, NAME);
    bare_drop(&bare, &side);
}

/* The same buffer of floats, restored as it is and as its codec has it, in turn. Zeros: no codec looks at what they
 * are. */
static void measure_parked(size_t size, unsigned codec)
{
    struct hbm_spec spec = {.dtype = HBM_F32,
                            .rank = 2,
                            .dims = {size >> 14, 4096},
                            .name = NAME,
                            .flags = HBM_KEEP,
                            .device = HBM_DEVICE_ANY};
    struct hbm_compress park = {
        .sel = spec.name, .codec = codec, .granularity = codec == HBM_CODEC_INT8, .park = 1};
    double plain[BENCH_RUNS], parked[BENCH_RUNS];
    hbm_lease *lease = NULL;
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = "a restore of the plain floats",
                            .aim = bare.driver && size >= LARGE ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 1.7};

    bench_must(hbm_alloc(session, &spec, &lease), "hbm_alloc");
    bench_must(hbm_detach(lease), "hbm_detach");
    for (int i = -(int)BENCH_WARM; i < (int)runs; i++) {
        offload_once();
        usleep(SCRUBBED_US);
        double as_it_is = restore_once();
        bench_must(hbm_compress(session, &park, NULL, NULL), "hbm_compress");
        offload_once();
        usleep(SCRUBBED_US);
        double decoded = restore_once();
        bench_must(hbm_decompress(session, spec.name, NULL), "hbm_decompress");
        if (i >= 0)
            plain[i] = as_it_is, parked[i] = decoded;
    }
    snprintf(what, sizeof(what), "restore of %zu MiB of floats parked as %s", size >> 20, hbm_codec_name(codec));
    bench_take_rate(&row, parked, runs, size);
    row.beside = (double)size / 1e9 / bench_quantile(plain, runs, 0.5);
    bench_print(&row);
    bench_drop(session, spec.name);
}

int main(int argc, char **argv)
{
    session = bench_open(0);
    bare_open(&bare, session);
    runs = bench_runs(BENCH_RUNS);
    for (int i = 1; i < argc; i++)
        measure((size_t)strtoull(argv[i], NULL, 10) << 20);
    if (argc == 1)
        measure((size_t)256 << 20), measure((size_t)1 << 30);
    size_t last = argc > 1 ? (size_t)strtoull(argv[argc - 1], NULL, 10) << 20 : (size_t)1 << 30;
    measure_parked(last, HBM_CODEC_FP16), measure_parked(last, HBM_CODEC_INT8);
    hbm_close(session);
    return 0;
}
