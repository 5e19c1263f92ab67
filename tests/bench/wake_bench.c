/* Sleep and wake of a large model of 80 layers, beside its bytes over the bandwidth of the machine's own copy, and
 * when its first layer can be used. The moves are traced for plot.py. usage: wake_bench [MIB]     MIB: as much of
 * it as fits */
#include "tests/bench/bare.h"
#include "tests/bench/control.h"
#include "tests/bench/trace.h"

#define LAYERS 80u
#define NAME "bench-wake"
#define RUNS 3u
#define UNIT ((size_t)2 << 20)
#define PROBE ((size_t)1 << 30) /* what the bandwidth is taken from */
#define POLL_US 2000

static hbm_session *session;
static hbm_model *model;
static struct bare bare;
static struct control control;
static FILE *trace;
static char groups[LAYERS][16];

/* No more than fits on the device beside others, nor in what the machine has of memory, which on the host device is
 * both. */
static size_t layer_bytes(size_t wanted)
{
    struct hbm_device_info device;
    unsigned long long available_kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");

    while (file && fgets(line, sizeof(line), file) && sscanf(line, "MemAvailable: %llu", &available_kib) != 1)
        ;
    if (file)
        fclose(file);
    bench_must(hbm_device_get(session, 0, &device), "hbm_device_get");
    size_t room = (size_t)(available_kib << 10) / 10 * (bare.driver ? 6 : 2),
           there = (device.capacity - device.used) / 10 * 9;
    size_t size = wanted < room ? wanted : room;
    size = (size < there ? size : there) / LAYERS / UNIT * UNIT;
    return size ? size : UNIT;
}

static void fill(void *bytes, int value, size_t size)
{
    if (bare.driver)
        driver_must(bare.driver->memset_d8((CUdeviceptr)(uintptr_t)bytes, (unsigned char)value, size),
                    "cuMemsetD8");
    else
        memset(bytes, value, size);
}

static void publish(size_t layer)
{
    model = bench_layers(session, NAME, groups, LAYERS, layer);
    for (unsigned i = 0; i < LAYERS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        fill(info.pointer, (int)(i + 1), layer);
    }
    if (bare.driver) /* what it fills is about to be unmapped */
        driver_must(bare.driver->stream_synchronize(NULL), "cuStreamSynchronize");
    bench_must(hbm_publish_commit(model), "hbm_publish_commit");
    bench_must(hbm_model_attach(session, NAME, HBM_RO, HBM_UNLOCKED, HBM_FOREVER, &model), "hbm_model_attach");
}

/* The first and the last bytes of each layer: all of them would take longer than all the rest. */
static void verify(size_t layer)
{
    unsigned char ends[2][4096];

    bench_must(hbm_model_lock(model, NULL, HBM_FOREVER), "hbm_model_lock");
    for (unsigned i = 0; i < LAYERS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        for (unsigned end = 0; end < 2; end++) {
            const char *at = (const char *)info.pointer + (end ? layer - sizeof(ends[0]) : 0);
            if (bare.driver)
                driver_must(bare.driver->copy_from_device(ends[end], (CUdeviceptr)(uintptr_t)at, sizeof(ends[0])),
                            "cuMemcpyDtoH");
            else
                memcpy(ends[end], at, sizeof(ends[0]));
            if (ends[end][0] != i + 1 || memcmp(ends[end], ends[end] + 1, sizeof(ends[0]) - 1) != 0)
                fprintf(stderr, "layer %u: what came back is not what went\n", i), exit(1);
        }
    }
    bench_must(hbm_model_unlock(model, NULL, NULL, 0), "hbm_model_unlock");
}

static double bandwidth(bool down, size_t size)
{
    struct bare_side side;
    double seconds[5];

    bare_make(&bare, &side, size);
    for (int i = -1; i < 5; i++) {
        double once = bare_once(&bare, &side, down);
        if (i >= 0)
            seconds[i] = once;
    }
    bare_drop(&bare, &side);
    return (double)size / bench_quantile(seconds, 5, 0.5);
}

static void *lock_first(void *usable)
{
    bench_must(hbm_model_lock(model, groups[0], HBM_FOREVER), "hbm_model_lock");
    *(double *)usable = bench_now();
    return NULL;
}

static bool under_way(const char *op)
{
    const char *state = control_value(op, "state");

    return !strncmp(state, "\"running", 8) || !strncmp(state, "\"queued", 7);
}

/* Until the operation has ended, in seconds. Of a wake, when its first layer could be locked (NULL: not asked). */
static double move(const char *verb, const char *params, const char *traced, double *usable)
{
    char op[64];
    pthread_t locker;
    double start = bench_now(), end;

    const char *answer = control_ask(&control, verb, params), *id = control_value(answer, "op");
    if (!*id)
        fprintf(stderr, "%s: %s", verb, answer), exit(1);
    snprintf(op, sizeof(op), "{\"op\":%.*s,\"timeout_seconds\":0}", (int)strcspn(id, ",}"), id);
    if (usable && pthread_create(&locker, NULL, lock_first, usable))
        perror("a thread"), exit(1);
    for (;;) {
        answer = control_ask(&control, "hbm.wait", op);
        end = bench_now();
        if (traced)
            trace_bytes(trace, traced, end - start, strtod(control_value(answer, "bytes_done"), NULL));
        if (!under_way(answer))
            break;
        usleep(POLL_US);
    }
    if (strncmp(control_value(answer, "state"), "\"done", 5) != 0)
        fprintf(stderr, "%s: %s", verb, answer), exit(1);
    if (usable) {
        pthread_join(locker, NULL);
        *usable -= start;
        bench_must(hbm_model_unlock(model, groups[0], NULL, 0), "hbm_model_unlock");
    }
    return end - start;
}

/* of: after the model's name. */
static void row(const char *verb, size_t model_bytes, const char *of, const char *unit, double scale,
                double *seconds, size_t n, double least)
{
    char what[128];
    bool is_wake = !strcmp(verb, "wake") && !*of;
    struct bench_row row = {.what = what,
                            .unit = unit,
                            .beside_what = "its bytes over the bandwidth of one copy",
                            .beside = least * scale,
                            .aim = is_wake && bare.driver ? BENCH_RATIO_AT_MOST : BENCH_NO_AIM,
                            .bound = 1.05};

    snprintf(what, sizeof(what), "%s of a model of %.3g GiB%s", verb, (double)model_bytes / (double)(1 << 30), of);
    bench_take(&row, seconds, n, 0.5, scale);
    bench_print(&row);
}

/* Nobody puts a model to sleep to wake it in the same moment. */
static void let_scrub(size_t freed)
{
    usleep(SCRUBBED_US + (useconds_t)(freed / SCRUBBED_BYTES_PER_US));
}

static void measure(size_t layer)
{
    static const char model_is[] = "{\"model\":\"" NAME "\",\"async\":true}";
    double wakes[RUNS], sleeps[RUNS], usable[RUNS], first;
    size_t all = layer * LAYERS, probe = all < PROBE ? all : PROBE;
    double down = bandwidth(true, probe), up = bandwidth(false, probe);
    unsigned runs = bench_runs(RUNS);

    first = move("hbm.sleep", model_is, NULL, NULL);
    for (unsigned i = 0; i < runs; i++) {
        bool last = i + 1 == runs;
        let_scrub(all);
        wakes[i] = move("hbm.wake", model_is, last ? "wake" : NULL, &usable[i]);
        let_scrub(all);
        sleeps[i] = move("hbm.sleep", model_is, last ? "sleep" : NULL, NULL);
    }
    move("hbm.wake", model_is, NULL, NULL);
    verify(layer);
    trace_level(trace, bare_name(&bare), up / 1e9);
    row("wake", all, "", "s", 1, wakes, runs, (double)all / up);
    row("wake", all, ": its first layer usable", "ms", 1e3, usable, runs, (double)layer / up);
    row("sleep", all, "", "s", 1, sleeps, runs, (double)all / down);
    row("sleep", all, ", host memory made for it", "s", 1, &first, 1, (double)all / down);
}

int main(int argc, char **argv)
{
    session = bench_open(0);
    bare_open(&bare, session);
    control_open(&control);
    trace = trace_open();
    size_t layer = layer_bytes((argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : bare.driver ? 61440 : 512) << 20);
    publish(layer);
    measure(layer);
    bench_must(hbm_model_detach(model), "hbm_model_detach"); /* run.sh removes the model */
    trace_close(trace);
    hbm_close(session);
    return 0;
}
