/* Lock and unlock of a resident buffer, beside an atomic compare-and-swap on a word of this process. */
#include <stdatomic.h>

#include "tests/bench/bench.h"

#define TURNS 1000000u

static double swaps(void)
{
    static _Atomic uint64_t word;
    double start = bench_now();

    for (unsigned i = 0; i < TURNS; i++) {
        uint64_t old = atomic_load_explicit(&word, memory_order_relaxed);
        while (!atomic_compare_exchange_weak(&word, &old, old + 1))
            ;
    }
    return (bench_now() - start) / TURNS;
}

static double pairs(hbm_lease *lease)
{
    double start = bench_now();

    for (unsigned i = 0; i < TURNS; i++) {
        int error = hbm_lock(lease, 0);
        if (!error)
            error = hbm_unlock(lease, NULL, 0);
        if (error)
            bench_must(error, "hbm_lock, hbm_unlock");
    }
    return (bench_now() - start) / TURNS;
}

int main(void)
{
    hbm_session *session = bench_open(0);
    hbm_lease *lease;
    double ours[BENCH_RUNS], beside[BENCH_RUNS];
    struct bench_row row = {.what = "lock and unlock of resident memory",
                            .unit = "ns",
                            .beside_what = "one atomic swap",
                            .aim = BENCH_OURS_AT_MOST,
                            .bound = 100};

    bench_make(session, "bench-lock", 1 << 20);
    bench_must(hbm_attach(session, "bench-lock", HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
    bench_must(hbm_unlock(lease, NULL, 0), "hbm_unlock"); /* counted from 0, as between the steps of an engine */
    for (int i = -(int)BENCH_WARM; i < (int)BENCH_RUNS; i++) {
        double pair = pairs(lease), swap = swaps();
        if (i >= 0)
            ours[i] = pair, beside[i] = swap;
    }
    bench_take(&row, ours, BENCH_RUNS, 0.5, 1e9);
    row.beside = bench_quantile(beside, BENCH_RUNS, 0.5) * 1e9;
    bench_print(&row);
    bench_must(hbm_detach(lease), "hbm_detach");
    bench_drop(session, "bench-lock");
    hbm_close(session);
    return 0;
}
