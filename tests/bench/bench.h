/* What the measuring programs share: the clock, medians, and one JSON line a row, which run.sh gathers. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/hbm.h"

#define BENCH_RUNS 20u /* samples of what takes long; after a warm-up */
#define BENCH_WARM 3u

static inline double bench_now(void) /* seconds */
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How many samples: all, or as few as the environment's RUNS says. */
static inline unsigned bench_runs(unsigned all)
{
    const char *text = getenv("RUNS");
    unsigned runs = text ? (unsigned)strtoul(text, NULL, 10) : all;

    return runs && runs < all ? runs : all;
}

/* The sample below which `part` of them lie. Sorts. */
static inline double bench_quantile(double *samples, size_t n, double part)
{
    qsort(samples, n, sizeof(*samples), bench_by_value);
    size_t i = (size_t)(part * (double)n);
    return samples[i < n ? i : n - 1];
}

static inline void bench_must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, hbm_strerror(error), hbm_last_error_detail());
    exit(1);
}

enum bench_aim {
    BENCH_NO_AIM,
    BENCH_RATIO_AT_MOST, /* ours / beside */
    BENCH_RATIO_AT_LEAST,
    BENCH_OURS_AT_MOST,
};

struct bench_row {
    const char *what;
    const char *unit;
    double ours, low, high;  /* the median (or the quantile named), and the spread: 5th and 95th percentile */
    const char *beside_what; /* NULL: nothing beside it */
    double beside;
    enum bench_aim aim;
    double bound;
    size_t samples;
};

static inline void bench_print(const struct bench_row *row)
{
    static const char *const aims[] = {"", "ratio <= %g", "ratio >= %g", "<= %g"};
    double ratio = row->beside_what && row->beside > 0 ? row->ours / row->beside : 0;
    bool ok = true;

    if (row->aim == BENCH_RATIO_AT_MOST)
        ok = ratio <= row->bound;
    else if (row->aim == BENCH_RATIO_AT_LEAST)
        ok = ratio >= row->bound;
    else if (row->aim == BENCH_OURS_AT_MOST)
        ok = row->ours <= row->bound;
    printf("{\"what\": \"%s\", \"unit\": \"%s\", \"ours\": %.6g, \"low\": %.6g, \"high\": %.6g, ", row->what,
           row->unit, row->ours, row->low, row->high);
    if (row->beside_what)
        printf("\"beside\": %.6g, \"beside_what\": \"%s\", \"ratio\": %.4g, ", row->beside, row->beside_what,
               ratio);
    if (row->aim != BENCH_NO_AIM) {
        char aim[32];
        snprintf(aim, sizeof(aim), aims[row->aim], row->bound);
        printf("\"aim\": \"%s\", \"ok\": %s, ", aim, ok ? "true" : "false");
    }
    printf("\"samples\": %zu}\n", row->samples);
    fflush(stdout);
}

/* Fills ours, low and high from samples (sorted on return), each times `scale`. */
static inline void bench_take(struct bench_row *row, double *samples, size_t n, double part, double scale)
{
    row->ours = bench_quantile(samples, n, part) * scale;
    row->low = bench_quantile(samples, n, 0.05) * scale;
    row->high = bench_quantile(samples, n, 0.95) * scale;
    row->samples = n;
}

/* The same as GB/s, of the seconds that so many bytes took each time. */
static inline void bench_take_rate(struct bench_row *row, double *seconds, size_t n, size_t bytes)
{
    row->ours = (double)bytes / 1e9 / bench_quantile(seconds, n, 0.5);
    row->low = (double)bytes / 1e9 / bench_quantile(seconds, n, 0.95);
    row->high = (double)bytes / 1e9 / bench_quantile(seconds, n, 0.05);
    row->samples = n;
}

/* A session with the daemon that HBM_RUNTIME_DIR names. */
static inline hbm_session *bench_open(unsigned flags)
{
    hbm_session *session = NULL;

    bench_must(hbm_open(&(struct hbm_options){.client = "bench", .flags = flags}, &session), "hbm_open");
    return session;
}

static inline bool bench_on_gpu(hbm_session *session)
{
    struct hbm_device_info device;

    bench_must(hbm_device_get(session, 0, &device), "hbm_device_get");
    return device.is_cuda != 0;
}

/* A kept buffer of that name and size, unleased. */
static inline void bench_make(hbm_session *session, const char *name, uint64_t size)
{
    struct hbm_spec spec = {
        .size = size, .dtype = HBM_U8, .name = name, .flags = HBM_KEEP, .device = HBM_DEVICE_ANY};
    hbm_lease *lease = NULL;

    bench_must(hbm_alloc(session, &spec, &lease), "hbm_alloc");
    bench_must(hbm_detach(lease), "hbm_detach");
}

static inline void bench_drop(hbm_session *session, const char *name)
{
    hbm_lease *lease = NULL;
    struct hbm_info info;

    bench_must(hbm_attach(session, name, HBM_RO, HBM_UNLOCKED, 0, &lease), "hbm_attach");
    hbm_lease_info(lease, &info);
    bench_must(hbm_detach(lease), "hbm_detach");
    bench_must(hbm_free(session, info.id), "hbm_free");
}

/* A model of n layers of that size, named and grouped as `groups` is filled: under construction, to be filled, at
 * most 128. */
static inline hbm_model *bench_layers(hbm_session *session, const char *name, char (*groups)[16], unsigned n,
                                      uint64_t size)
{
    struct hbm_publish_buffer rows[128];
    struct hbm_publish spec = {
        .name = name, .device = HBM_DEVICE_ANY, .flags = HBM_REPLACE, .buffers = rows, .n_buffers = n};
    hbm_model *model;
    int must_build;

    for (unsigned i = 0; i < n; i++) {
        snprintf(groups[i], sizeof(groups[i]), "layers.%u", i);
        rows[i] = (struct hbm_publish_buffer){
            .name = groups[i], .group = groups[i], .dtype = HBM_U8, .rank = 1, .dims = {size}};
    }
    bench_must(hbm_publish_begin(session, &spec, HBM_FOREVER, &model, &must_build), "hbm_publish_begin");
    return model;
}
