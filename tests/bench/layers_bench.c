/* A layer-by-layer forward with 30 % of the layers in host memory and two on their way, beside the same one with
 * all of them resident: once with as much work a layer as gives the link time for it, once with a quarter of that.
 * A last one is traced for plot.py. usage: layers_bench [MIB]      MIB: of a layer */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/bench/control.h"
#include "tests/bench/trace.h"
#include "tests/bench/work.h"

#define LAYERS 10u
#define AHEAD 2u
#define BEHIND 4u /* with the one in use and those ahead 7 of 10 stay */
#define ROUNDS 3u
#define NAME "bench-layers"

static hbm_session *session;
static hbm_model *model;
static struct work work;
static char groups[LAYERS][16];

static void publish(size_t size)
{
    model = bench_layers(session, NAME, groups, LAYERS, size);
    for (unsigned i = 0; i < LAYERS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        if (work.driver)
            driver_must(work.driver->memset_d8((CUdeviceptr)(uintptr_t)info.pointer, (unsigned char)(i + 1), size),
                        "cuMemsetD8");
        else
            memset(info.pointer, (int)(i + 1), size);
    }
    if (work.driver) /* on the default stream, and with what it fills about to be unmapped */
        driver_must(work.driver->stream_synchronize(NULL), "cuStreamSynchronize");
    bench_must(hbm_publish_commit(model), "hbm_publish_commit");
    bench_must(hbm_model_attach(session, NAME, HBM_RO, 0, HBM_FOREVER, &model), "hbm_model_attach");
    bench_must(hbm_model_unlock(model, NULL, NULL, 0), "hbm_model_unlock");
}

static double forward(unsigned passes, unsigned rounds)
{
    double start = bench_now();
    struct hbm_info info;
    void *streams[1];

    for (unsigned turn = 0; turn < rounds * LAYERS; turn++) {
        unsigned at = turn % LAYERS;
        bench_must(hbm_model_lock(model, groups[at], HBM_FOREVER), "hbm_model_lock");
        hbm_model_buffer(model, at, &info);
        work_on(&work, info.pointer, info.size, passes);
        bench_must(hbm_model_unlock(model, groups[at], streams, work_streams(&work, streams)), "hbm_model_unlock");
    }
    work_wait(&work);
    return bench_now() - start;
}

/* Of one layer there and back: twice what the link needs while both directions are busy. */
static double link_seconds(void)
{
    double least = 1e9;

    for (unsigned i = 0; i < 5; i++) {
        double start = bench_now();
        bench_must(hbm_offload(session, "group:" NAME "/layers.0", HBM_TIER_HOST, HBM_FORCE, NULL), "hbm_offload");
        bench_must(hbm_restore(session, "group:" NAME "/layers.0", NULL), "hbm_restore");
        double seconds = bench_now() - start;
        least = seconds < least ? seconds : least;
    }
    return least;
}

/* What the bytes are at the end: a fill's, each layer its own. */
static void verify(size_t size)
{
    unsigned char *back = malloc(size);

    if (!back)
        perror("memory to compare"), exit(1);
    bench_must(hbm_model_lock(model, NULL, HBM_FOREVER), "hbm_model_lock");
    for (unsigned i = 0; i < LAYERS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        if (work.driver)
            driver_must(work.driver->copy_from_device(back, (CUdeviceptr)(uintptr_t)info.pointer, size),
                        "cuMemcpyDtoH");
        else
            memcpy(back, info.pointer, size);
        if (back[0] != i + 1 || memcmp(back, back + 1, size - 1) != 0)
            fprintf(stderr, "what came back is not what went\n"), exit(1);
    }
    free(back);
    bench_must(hbm_model_unlock(model, NULL, NULL, 0), "hbm_model_unlock");
}

static void measure(const char *what, unsigned passes, bool has_aim)
{
    double windowed[BENCH_RUNS / 4], resident[BENCH_RUNS / 4];
    const unsigned runs = BENCH_RUNS / 4;
    char text[128];
    struct bench_row row = {.what = text,
                            .unit = "ms",
                            .beside_what = "all resident",
                            .aim = has_aim && work.driver ? BENCH_RATIO_AT_MOST : BENCH_NO_AIM,
                            .bound = 1.1};

    snprintf(text, sizeof(text), "forward, 30 %% of layers in host memory, %s", what);
    for (unsigned i = 0; i < runs; i++) {
        bench_must(hbm_model_window(model, HBM_FOREVER, 0), "hbm_model_window");
        bench_must(hbm_model_lock(model, NULL, HBM_FOREVER), "hbm_model_lock"); /* brings all of it */
        bench_must(hbm_model_unlock(model, NULL, NULL, 0), "hbm_model_unlock");
        forward(passes, 1);
        resident[i] = forward(passes, ROUNDS);
        bench_must(hbm_model_window(model, BEHIND, HBM_FORCE), "hbm_model_window");
        forward(passes, 1);
        windowed[i] = forward(passes, ROUNDS);
    }
    bench_take(&row, windowed, runs, 0.5, 1000.0 / ROUNDS);
    row.beside = bench_quantile(resident, runs, 0.5) * 1000.0 / ROUNDS;
    bench_print(&row);
}

/* ---- A trace: when each layer was worked on, and when it was on its way ---- */

static struct {
    FILE *file;
    double start, looked; /* looked: the last time; 0: not yet */
    atomic_bool ends;
    struct {
        bool moving, away; /* away: not on the device */
        double since;      /* that it is on its way; 0: it was not seen to begin */
    } layers[LAYERS];
} trace;

static void see(unsigned layer, bool moving, bool away, double now)
{
    if (trace.looked > 0 && away != trace.layers[layer].away) { /* it has arrived, whatever it does next */
        double since = trace.layers[layer].since;
        trace_lane(trace.file, away ? "to host memory" : "to the device", layer, since > 0 ? since : trace.looked,
                   now);
        trace.layers[layer].since = 0;
    } else if (moving != trace.layers[layer].moving) {
        trace.layers[layer].since = moving ? now : 0;
    }
    trace.layers[layer].moving = moving;
    trace.layers[layer].away = away;
}

/* One look at where the layers are. */
static void look(struct control *control)
{
    const char *row = control_ask(control, "hbm.ls", "{\"glob\":\"" NAME "/*\"}");
    double now = bench_now() - trace.start;
    unsigned layer;

    while (sscanf(row = control_value(row, "name"), "\"" NAME "/layers.%u\"", &layer) == 1)
        if (layer < LAYERS)
            see(layer, !strncmp(control_value(row, "state"), "\"moving", 7),
                strncmp(control_value(row, "tier"), "\"device", 7) != 0, now);
    trace.looked = now;
}

static void *watch(void *control)
{
    while (!atomic_load(&trace.ends))
        look(control);
    return NULL;
}

/* In a window as it is; each layer's work is waited for, so that its time is known. */
static void traced_forward(unsigned passes)
{
    static struct control control;
    struct hbm_info info;
    pthread_t watcher;

    trace.file = trace_open();
    if (!trace.file)
        return;
    control_open(&control);
    trace.start = bench_now();
    if (pthread_create(&watcher, NULL, watch, &control))
        perror("a thread"), exit(1);
    for (unsigned turn = 0; turn < 2 * LAYERS; turn++) {
        unsigned at = turn % LAYERS;
        double asked = bench_now() - trace.start;
        bench_must(hbm_model_lock(model, groups[at], HBM_FOREVER), "hbm_model_lock");
        double locked = bench_now() - trace.start;
        hbm_model_buffer(model, at, &info);
        work_on(&work, info.pointer, info.size, passes);
        work_wait(&work);
        double done = bench_now() - trace.start;
        bench_must(hbm_model_unlock(model, groups[at], NULL, 0), "hbm_model_unlock");
        trace_lane(trace.file, "waiting", at, asked, locked);
        trace_lane(trace.file, "computing", at, locked, done);
    }
    atomic_store(&trace.ends, true);
    pthread_join(watcher, NULL);
    close(control.fd);
    trace_close(trace.file);
}

int main(int argc, char **argv)
{
    session = bench_open(0);
    bool gpu = bench_on_gpu(session);
    size_t size = (argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : gpu ? 64 : 8) << 20;
    struct hbm_info info;

    work_open(&work, session, size);
    publish(size);
    double seconds = link_seconds();
    bench_must(hbm_model_lock(model, groups[0], HBM_FOREVER), "hbm_model_lock");
    hbm_model_buffer(model, 0, &info);
    unsigned passes = work_passes(&work, info.pointer, size, seconds);
    bench_must(hbm_model_unlock(model, groups[0], NULL, 0), "hbm_model_unlock");
    bench_must(hbm_model_order(model, NULL, 0, AHEAD), "hbm_model_order");
    measure("the link has twice the time", passes, true);
    measure("the link has half the time", passes / 4 ? passes / 4 : 1, false);
    traced_forward(passes); /* in the window of the last one */
    bench_must(hbm_model_window(model, HBM_FOREVER, 0), "hbm_model_window");
    verify(size);
    bench_must(hbm_model_detach(model), "hbm_model_detach");
    work_close(&work);
    hbm_close(session);
    return 0;
}
