/* What a kernel loses while memory moves: a kernel that only computes, and one that only reads memory, over and
 * over beside an offload, a restore and the same with a codec, against the same kernel alone. usage: kernel_bench
 * [MIB] */
#include "tests/bench/bare.h"
#include "tests/bench/grind.h"

#define NAME "bench-kernel"
#define GRIND_BYTES ((size_t)256 << 20) /* no cache holds it */
#define GRIND_SECONDS 0.001
#define ALONE 20u

static hbm_session *session;
static struct bare bare;
static struct bare_side memory;

static const struct kernel {
    enum grind what;
    const char *name;
} kernels[] = {{GRIND_COMPUTE, "that computes"}, {GRIND_MEMORY, "that reads memory"}};

static const struct move {
    const char *name;
    bool down, parked;
} moves[] = {
    {"an offload", true, false},
    {"a restore", false, false},
    {"an offload encoded as int8", true, true},
    {"a restore decoded from int8", false, true},
};

#define KERNELS (sizeof(kernels) / sizeof(kernels[0]))
#define MOVES (sizeof(moves) / sizeof(moves[0]))

static void on_cpu(enum grind what, unsigned rounds)
{
    const volatile uint64_t *words = memory.host;
    volatile double a = 1;

    for (unsigned i = 0; what == GRIND_COMPUTE && i < rounds * 64; i++)
        a = a * 0.999 + 1;
    for (size_t i = 0; what == GRIND_MEMORY && i < (size_t)rounds * 8192; i++)
        (void)words[i * 8 % (GRIND_BYTES / sizeof(*words))];
}

/* Seconds. */
static double kernel_once(enum grind what, unsigned rounds)
{
    double start = bench_now();

    if (!bare.driver) {
        on_cpu(what, rounds);
        return bench_now() - start;
    }
#ifdef HBM_BENCH_CUDA
    driver_must(grind_cuda(what, (void *)(uintptr_t)memory.device, GRIND_BYTES, rounds, bare.streams[0]),
                "a kernel");
#endif
    driver_must(bare.driver->stream_synchronize(bare.streams[0]), "cuStreamSynchronize");
    return bench_now() - start;
}

static unsigned rounds_of(enum grind what)
{
    unsigned rounds = 1;

    kernel_once(what, 1); /* the first loads it */
    while (rounds < 1u << 24 && kernel_once(what, rounds) < GRIND_SECONDS)
        rounds *= 2;
    return rounds;
}

static double alone(enum grind what, unsigned rounds)
{
    double sum = 0;

    for (unsigned i = 0; i < ALONE; i++)
        sum += kernel_once(what, rounds);
    return sum / ALONE;
}

/* The mean of those that ended while it was under way; 0: none did. */
static double beside_a(const struct move *move, enum grind what, unsigned rounds)
{
    struct hbm_compress park = {.sel = NAME, .codec = HBM_CODEC_INT8, .granularity = 1, .park = 1};
    unsigned n = 0;
    double sum = 0;
    hbm_op *op;
    int error;

    if (move->parked && move->down)
        bench_must(hbm_compress(session, &park, NULL, NULL), "hbm_compress");
    bench_must(move->down ? hbm_offload(session, NAME, HBM_TIER_HOST, 0, &op) : hbm_restore(session, NAME, &op),
               "a move");
    for (;;) {
        double seconds = kernel_once(what, rounds);
        if ((error = hbm_op_wait(op, 0, NULL)) != HBM_E_TIMEOUT)
            break;
        sum += seconds;
        n++;
    }
    bench_must(error, move->name);
    hbm_op_free(op);
    if (move->parked && !move->down)
        bench_must(hbm_decompress(session, NAME, NULL), "hbm_decompress");
    usleep(SCRUBBED_US);
    return n ? sum / n : 0;
}

static void measure(const struct kernel *kernel, unsigned runs)
{
    double beside[MOVES][BENCH_RUNS], by_itself[BENCH_RUNS];
    unsigned n[MOVES] = {0}, rounds = rounds_of(kernel->what);

    for (int i = -1; i < (int)runs; i++) {
        double quiet = alone(kernel->what, rounds);
        for (unsigned k = 0; k < MOVES; k++) {
            double seconds = beside_a(&moves[k], kernel->what, rounds);
            if (i >= 0 && seconds > 0)
                beside[k][n[k]++] = seconds;
        }
        if (i >= 0)
            by_itself[i] = quiet;
    }
    for (unsigned k = 0; k < MOVES; k++) {
        char text[96];
        bool plain = kernel->what == GRIND_COMPUTE && !moves[k].parked;
        struct bench_row row = {.what = text,
                                .unit = "us",
                                .beside_what = "alone",
                                .beside = bench_quantile(by_itself, runs, 0.5) * 1e6,
                                .aim = plain && bare.driver ? BENCH_RATIO_AT_MOST : BENCH_NO_AIM,
                                .bound = 1.03};
        snprintf(text, sizeof(text), "a kernel %s, beside %s", kernel->name, moves[k].name);
        if (!n[k]) {
            fprintf(stderr, "  %s: over before one kernel was\n", text);
            continue;
        }
        bench_take(&row, beside[k], n[k], 0.5, 1e6);
        bench_print(&row);
    }
}

int main(int argc, char **argv)
{
    session = bench_open(0);
    bare_open(&bare, session);
    size_t size = (argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : bare.driver ? 4096 : 256) << 20;
    struct hbm_spec spec = {.dtype = HBM_F32,
                            .rank = 2,
                            .dims = {size >> 14, 4096},
                            .name = NAME,
                            .flags = HBM_KEEP,
                            .device = HBM_DEVICE_ANY};
    hbm_lease *lease;

    bare_make(&bare, &memory, GRIND_BYTES);
    bench_must(hbm_alloc(session, &spec, &lease), "hbm_alloc");
    bench_must(hbm_detach(lease), "hbm_detach");
    for (unsigned i = 0; i < KERNELS; i++)
        measure(&kernels[i], bench_runs(BENCH_RUNS / 2));
    bench_drop(session, NAME);
    bare_drop(&bare, &memory);
    hbm_close(session);
    return 0;
}
