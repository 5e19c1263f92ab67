/* Both directions at once: one buffer leaves for host memory while another comes back, beside the bare pair of
 * copies. usage: pair_bench [MIB...]      MIB: of each of the two */
#include "tests/bench/bare.h"

static const char *const names[2] = {"bench-pair.0", "bench-pair.1"};

static hbm_session *session;
static struct bare bare;

static double both_once(const char *away, const char *back)
{
    hbm_op *down = NULL, *up = NULL;
    double start = bench_now();

    bench_must(hbm_restore(session, back, &up), "hbm_restore");
    bench_must(hbm_offload(session, away, HBM_TIER_HOST, 0, &down), "hbm_offload");
    bench_must(hbm_op_wait(up, HBM_FOREVER, NULL), "hbm_restore");
    bench_must(hbm_op_wait(down, HBM_FOREVER, NULL), "hbm_offload");
    double seconds = bench_now() - start;
    hbm_op_free(down);
    hbm_op_free(up);
    return seconds;
}

static void measure(size_t size)
{
    double both[BENCH_RUNS], beside[BENCH_RUNS];
    unsigned runs = bench_runs(BENCH_RUNS);
    struct bare_side sides[2];
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what =
                                bare.driver ? "pinned copies, both at once" : "memcpy to new memfds, two threads",
                            .aim = bare.driver ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 0.9};

    for (unsigned i = 0; i < 2; i++) {
        bare_make(&bare, &sides[i], size);
        bench_make(session, names[i], size);
        bare_fill(&bare, session, names[i], &sides[i]);
    }
    bench_must(hbm_offload(session, names[1], HBM_TIER_HOST, 0, NULL), "hbm_offload");
    for (int i = -(int)BENCH_WARM; i < (int)runs; i++) {
        double ours = both_once(names[0], names[1]);
        usleep(SCRUBBED_US);
        both_once(names[1], names[0]); /* as it was */
        usleep(SCRUBBED_US);
        double bare_both = bare_pair(&bare, &sides[0], &sides[1]);
        if (i >= 0)
            both[i] = ours, beside[i] = bare_both;
    }
    bench_must(hbm_restore(session, "bench-pair.*", NULL), "hbm_restore");
    for (unsigned i = 0; i < 2; i++) {
        bare_verify(&bare, session, names[i], &sides[i]);
        bench_drop(session, names[i]);
        bare_drop(&bare, &sides[i]);
    }
    snprintf(what, sizeof(what), "offload and restore at once, %zu MiB each", size >> 20);
    bench_take_rate(&row, both, runs, 2 * size);
    row.beside = (double)size * 2 / 1e9 / bench_quantile(beside, runs, 0.5);
    bench_print(&row);
}

int main(int argc, char **argv)
{
    session = bench_open(0);
    bare_open(&bare, session);
    for (int i = 1; i < argc; i++)
        measure((size_t)strtoull(argv[i], NULL, 10) << 20);
    if (argc == 1)
        measure((size_t)(bare.driver ? 1024 : 256) << 20);
    hbm_close(session);
    return 0;
}
