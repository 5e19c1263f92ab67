/* Measures what a device does: by a session of our own, as any client would see it, on memory that goes with the
 * session. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/bench.h"
#include "client/ctl/json_text.h"
#include "client/ctl/member.h"
#include "client/ctl/profile.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/session.h"
#include "client/ctl/terminal.h"

#define MIB ((uint64_t)1 << 20)
#define RUNS 5u
#define SMALL_RUNS 50u
#define LOCKS 100000u
#define WAIT_MS 60000u
#define ROW 1024u /* elements */

struct measuring {
    const struct cli *cli;
    const struct state *state;
    struct facts *facts;
    cJSON *missing;
    hbm_session *session;
    uint32_t device;
    uint64_t bytes; /* of what is moved */
};

static void miss(const struct measuring *m, const char *fact, const char *why)
{
    cJSON_DeleteItemFromObjectCaseSensitive(m->missing, fact);
    cJSON_AddStringToObject(m->missing, fact, why);
}

static int by_value(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;

    return (one > other) - (one < other);
}

static double median(double *all, unsigned n)
{
    qsort(all, n, sizeof(*all), by_value);
    return all[n / 2];
}

/* ---- Memory to measure with ---- */

/* Nearly normal numbers, as weights have them, of either dtype. */
static void write_numbers(void *memory, uint64_t bytes, uint32_t dtype)
{
    uint32_t seed = 1;

    for (uint64_t i = 0; i < bytes / (dtype == HBM_F32 ? 4 : 2); i++) {
        int32_t sum = 0;
        float value;
        uint32_t bits;
        for (unsigned j = 0; j < 4; j++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (int32_t)(seed >> 16) - 32768;
        }
        value = (float)sum / 1e6f;
        memcpy(&bits, &value, sizeof(bits));
        if (dtype == HBM_F32)
            ((uint32_t *)memory)[i] = bits;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    }
}

/* The worker reads them from a file, so that no GPU is needed here to write there. */
static int fill(const struct measuring *m, uint64_t id, uint64_t bytes, uint32_t dtype)
{
    struct hbm_range range = {id, 0, 0, bytes};
    _cleanup_fd_ int fd = memfd_create("hbmctl-advise", MFD_CLOEXEC);
    void *memory = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;

    if (memory == MAP_FAILED)
        return HBM_E_NO_MEMORY;
    write_numbers(memory, bytes, dtype);
    munmap(memory, bytes);
    return hbm_fill(m->session, fd, &range, 1, NULL);
}

/* Leased and unlocked, so that it can be moved; gone with its lease. */
static int make(const struct measuring *m, uint64_t bytes, uint32_t dtype, hbm_lease **lease, char sel[32])
{
    uint64_t elements = bytes / (dtype == HBM_F32 ? 4 : 2);
    struct hbm_spec spec = {.device = m->device, .dtype = dtype, .rank = 2, .dims = {elements / ROW, ROW}};
    struct hbm_info info;
    int error = hbm_alloc(m->session, &spec, lease);

    if (error)
        return error;
    hbm_lease_info(*lease, &info);
    snprintf(sel, 32, "id:0x%" PRIx64, info.id);
    error = fill(m, info.id, bytes, dtype);
    return error ? error : hbm_unlock(*lease, NULL, 0);
}

/* ---- Over links ---- */

static const struct trip {
    uint32_t dtype, codec, tier;
    const char *away, *back; /* facts; NULL: not kept */
} trips[] = {
    {HBM_F32, HBM_CODEC_RAW, HBM_TIER_HOST, "to_host_gb_per_s", "to_device_gb_per_s"},
    {HBM_F32, HBM_CODEC_RAW, HBM_TIER_DISK, "to_disk_gb_per_s", "from_disk_gb_per_s"},
    {HBM_F32, HBM_CODEC_RAW, HBM_TIER_PEER, "to_peer_gb_per_s", "from_peer_gb_per_s"},
    {HBM_F32, HBM_CODEC_FP16, HBM_TIER_HOST, NULL, "back_fp16_gb_per_s"},
    {HBM_F32, HBM_CODEC_INT8, HBM_TIER_HOST, NULL, "back_int8_gb_per_s"},
    {HBM_BF16, HBM_CODEC_BF16_LOSSLESS, HBM_TIER_HOST, NULL, "back_lossless_gb_per_s"},
};

static void note(const struct measuring *m, const char *name, double value)
{
    for (const struct fact_row *row = fact_next(NULL); name && row; row = fact_next(row))
        if (!strcmp(row->name, name))
            *fact_of(m->facts, row) = value;
}

static int park(const struct measuring *m, const struct trip *trip, const char *sel)
{
    bool groups = trip->codec == HBM_CODEC_INT8;
    struct hbm_compress spec = {.sel = sel,
                                .codec = trip->codec,
                                .granularity = groups ? HBM_PER_GROUP : HBM_PER_TENSOR,
                                .group = groups ? 128 : 0,
                                .park = 1};

    return trip->codec == HBM_CODEC_RAW ? 0 : hbm_compress(m->session, &spec, NULL, NULL);
}

/* There and back; the first time, for which memory is made and pinned, does not count. */
static int travel(const struct measuring *m, const struct trip *trip)
{
    double away[RUNS], back[RUNS];
    hbm_lease *lease = NULL;
    char sel[32];
    int error = make(m, m->bytes, trip->dtype, &lease, sel);

    if (!error)
        error = park(m, trip, sel);
    for (unsigned i = 0; !error && i <= RUNS; i++) {
        double start = progress_now(), middle;
        error = hbm_offload(m->session, sel, trip->tier, HBM_FORCE, NULL);
        middle = progress_now();
        if (!error)
            error = hbm_restore(m->session, sel, NULL);
        away[i ? i - 1 : 0] = middle - start;
        back[i ? i - 1 : 0] = progress_now() - middle;
    }
    if (lease)
        hbm_detach(lease);
    if (error)
        return error;
    note(m, trip->away, (double)m->bytes / 1e9 / median(away, RUNS));
    note(m, trip->back, (double)m->bytes / 1e9 / median(back, RUNS));
    return 0;
}

static void measure_links(const struct measuring *m)
{
    for (unsigned i = 0; i < sizeof(trips) / sizeof(trips[0]); i++) {
        const struct trip *trip = &trips[i];
        if (!travel(m, trip))
            continue;
        if (trip->away)
            miss(m, trip->away, hbm_last_error_detail());
        miss(m, trip->back, hbm_last_error_detail());
    }
}

/* ---- What goes however little it is about ---- */

static int attach_often(const struct measuring *m, hbm_session *other, uint64_t id)
{
    double all[SMALL_RUNS];
    int error = 0;

    for (unsigned i = 0; !error && i <= SMALL_RUNS; i++) { /* the first makes a context, where there is a GPU */
        hbm_lease *lease;
        double start = progress_now();
        error = hbm_attach_id(other, id, HBM_RO, 0, WAIT_MS, &lease);
        if (!error)
            error = hbm_detach(lease);
        all[i ? i - 1 : 0] = progress_now() - start;
    }
    if (!error)
        m->facts->attach_seconds = median(all, SMALL_RUNS);
    return error;
}

static int lock_often(const struct measuring *m, hbm_lease *lease, const char *sel)
{
    double all[SMALL_RUNS], start;
    int error = hbm_lock(lease, WAIT_MS);

    if (!error)
        error = hbm_unlock(lease, NULL, 0);
    start = progress_now();
    for (unsigned i = 0; !error && i < LOCKS; i++) {
        error = hbm_lock(lease, WAIT_MS);
        if (!error)
            error = hbm_unlock(lease, NULL, 0);
    }
    if (!error)
        m->facts->lock_seconds = (progress_now() - start) / LOCKS;
    for (unsigned i = 0; !error && i < SMALL_RUNS; i++) {
        error = hbm_offload(m->session, sel, HBM_TIER_HOST, HBM_FORCE, NULL);
        start = progress_now();
        if (!error)
            error = hbm_lock(lease, WAIT_MS);
        all[i] = progress_now() - start;
        if (!error)
            error = hbm_unlock(lease, NULL, 0);
    }
    if (!error)
        m->facts->lock_away_seconds = median(all, SMALL_RUNS);
    return error;
}

static void measure_latency(const struct measuring *m)
{
    _cleanup_(session_closep) hbm_session *other = NULL;
    hbm_lease *lease = NULL;
    struct hbm_info info;
    char sel[32];
    int error = make(m, (uint64_t)4 * ROW, HBM_F32, &lease, sel);

    if (!error)
        error = lock_often(m, lease, sel);
    if (error)
        miss(m, "lock_away_seconds", hbm_last_error_detail());
    if (!lease || session_open(m->cli, &other))
        return;
    hbm_lease_info(lease, &info);
    if (attach_often(m, other, info.id))
        miss(m, "attach_seconds", hbm_last_error_detail());
    hbm_detach(lease);
}

/* ---- Device memory ---- */

static void measure_host_memory(const struct measuring *m)
{
    double all[RUNS];
    char *from = malloc(m->bytes), *to = malloc(m->bytes);

    if (from && to) {
        memset(from, 1, m->bytes);
        memset(to, 2, m->bytes);
        for (unsigned i = 0; i < RUNS; i++) {
            double start = progress_now();
            memcpy(to, from, m->bytes);
            all[i] = progress_now() - start;
            from[i] = to[m->bytes - 1]; /* somebody wants it */
        }
        m->facts->memory_gb_per_s = 2 * (double)m->bytes / 1e9 / median(all, RUNS);
    } else {
        miss(m, "memory_gb_per_s", "there is no memory to copy");
    }
    free(from);
    free(to);
}

/* What `hbmctl bench smem --json` prints of that device. */
static cJSON *shared_memory(const struct measuring *m)
{
    static const struct json_rules rules = {.depth_max = 16};
    _cleanup_free_ char *program = bench_program();
    const char *uuid = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m->state->device, "uuid")), *why;
    bool told = program && uuid && !setenv("HBM_BENCH", program, 1) && !setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
    FILE *output = told ? popen("exec \"$HBM_BENCH\" 4096 --json", "re") : NULL;
    char text[8192];
    size_t n = output ? fread(text, 1, sizeof(text), output) : 0;

    if (output && pclose(output) != 0)
        n = 0;
    return n ? json_parse(text, n, &rules, &why) : NULL;
}

static void measure_gpu_memory(const struct measuring *m)
{
    _cleanup_json_ cJSON *told = shared_memory(m);
    const cJSON *step, *steps = cJSON_GetObjectItemCaseSensitive(told, "steps");
    const char *why = "hbm-bench-smem is not installed, or failed: it is built where the CUDA toolkit is; see "
                      "`hbmctl bench smem`";

    if (number(told, "copy_gb_per_s") > 0)
        m->facts->memory_gb_per_s = number(told, "copy_gb_per_s");
    else
        miss(m, "memory_gb_per_s", why);
    cJSON_ArrayForEach(step, steps)
    {
        _cleanup_free_ char *name =
            must_text("%s_tflops", cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(step, "step")));
        note(m, name, number(step, "tflops"));
    }
    if (isnan(m->facts->fast_tflops))
        miss(m, "fast_tflops", why);
}

/* ---- */

static uint64_t free_in(const struct measuring *m, const char *name)
{
    const cJSON *tier, *tiers = cJSON_GetObjectItemCaseSensitive(m->state->device, "tiers");

    cJSON_ArrayForEach(tier, tiers)
    {
        const char *its = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tier, "tier"));
        if (its && !strcmp(its, name))
            return (uint64_t)fmax(0, number(tier, "free"));
    }
    return 0;
}

/* A share of what is free: others go on meanwhile. */
static int choose_size(struct measuring *m)
{
    uint64_t room = free_in(m, "device"), host = free_in(m, "host"),
             most = (m->facts->is_gpu == 1 ? 256 : 64) * MIB;

    room = room < host ? room : host;
    m->bytes = (room / 4 < most ? room / 4 : most) / MIB * MIB;
    return m->bytes ? 0
                    : report(m->cli, HBM_E_NO_MEMORY,
                             "there is no room to measure with: that takes 4 MiB free in the device and in the "
                             "host tier; offload something, or free it");
}

static void say(const char *what)
{
    if (terminal_watched())
        fprintf(stderr, "measuring %s\n", what);
}

int figures_measure(const struct cli *cli, const struct state *state, struct facts *facts, cJSON *missing)
{
    _cleanup_(session_closep) hbm_session *session = NULL;
    struct measuring m = {.cli = cli, .state = state, .facts = facts, .missing = missing};
    int status = choose_size(&m);

    if (!status)
        status = session_open(cli, &session);
    m.session = session;
    if (!status)
        status = session_device(cli, session, &m.device);
    if (status)
        return status;
    say("latency");
    measure_latency(&m);
    say("links");
    measure_links(&m);
    say("memory");
    if (facts->is_gpu == 1)
        measure_gpu_memory(&m);
    else
        measure_host_memory(&m);
    return 0;
}
