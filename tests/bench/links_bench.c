/* A restore that goes over the links of idle neighbours too (split_bytes), beside one over the device's own. Two
 * devices or more. usage: links_bench CONFIG PID [MIB]      the daemon's, to switch it on and off */
#include <signal.h>

#include "tests/bench/bare.h"
#include "tests/bench/control.h"

#define NAME "bench-links"
#define SEL "{\"sel\":\"" NAME "\"}"

static hbm_session *session;
static struct bare bare;
static struct control control;

static const char *answer_of(const char *method, const char *params)
{
    const char *answer = control_ask(&control, method, params);

    if (*control_value(answer, "error") && strncmp(control_value(answer, "error"), "null", 4) != 0)
        fprintf(stderr, "%s: %s", method, answer), exit(1);
    return answer;
}

/* The file's last lines count; it is in effect once the daemon says so. */
static void split_from(const char *config, pid_t daemon, const char *text, size_t whole)
{
    char is[64];
    FILE *file = truncate(config, (off_t)whole) ? NULL : fopen(config, "ae");

    if (!file || fprintf(file, "split_bytes = %s\n", text) < 0 || fclose(file) || kill(daemon, SIGHUP))
        perror(config), exit(1);
    snprintf(is, sizeof(is), "\"%s\"", text);
    for (unsigned i = 0; i < 1000; i++) {
        const char *at = strstr(answer_of("hbm.config", "{}"), "\"split_bytes\"");
        if (at && !strncmp(control_value(at, "value"), is, strlen(is)))
            return;
        usleep(10000);
    }
    fprintf(stderr, "the daemon does not take split_bytes = %s\n", text);
    exit(1);
}

/* There and back: the seconds of the way back, and how many links it took. */
static double restore_once(unsigned *links)
{
    char op[64];

    bench_must(hbm_offload(session, NAME, HBM_TIER_HOST, 0, NULL), "hbm_offload");
    usleep(SCRUBBED_US);
    double start = bench_now();
    const char *id = control_value(answer_of("hbm.restore", "{\"sel\":\"" NAME "\",\"async\":true}"), "op");
    snprintf(op, sizeof(op), "{\"op\":%.*s}", (int)strcspn(id, ",}"), id);
    const char *answer = answer_of("hbm.wait", op);
    double seconds = bench_now() - start;
    unsigned n = (unsigned)strtoul(control_value(answer, "links"), NULL, 10);
    *links = n ? n : 1;
    return seconds;
}

static void copy_hash(char *to, size_t size)
{
    snprintf(to, size, "%.18s", control_value(answer_of("hbm.hash", SEL), "hash"));
}

int main(int argc, char **argv)
{
    double split[BENCH_RUNS], own[BENCH_RUNS];
    unsigned runs = bench_runs(BENCH_RUNS / 2), links = 1, one;
    char before[32], after[32], what[96];
    struct bench_row row = {.what = what, .unit = "GB/s", .beside_what = "over one link", .bound = 1.7};

    if (argc < 3) {
        fprintf(stderr, "usage: links_bench CONFIG PID [MIB]\n");
        return 2;
    }
    session = bench_open(0);
    bare_open(&bare, session);
    control_open(&control);
    const char *config = argv[1];
    pid_t daemon = (pid_t)atoi(argv[2]);
    size_t size = (argc > 3 ? (size_t)strtoull(argv[3], NULL, 10) : bare.driver ? 4096 : 256) << 20;
    FILE *file = fopen(config, "re");
    if (!file || fseek(file, 0, SEEK_END))
        perror(config), exit(1);
    size_t whole = (size_t)ftell(file);
    fclose(file);

    bench_make(session, NAME, size);
    copy_hash(before, sizeof(before));
    for (int i = -(int)BENCH_WARM; i < (int)runs; i++) {
        split_from(config, daemon, "0", whole);
        double by_one = restore_once(&one);
        split_from(config, daemon, "64MiB", whole);
        double by_all = restore_once(&links);
        if (i >= 0)
            own[i] = by_one, split[i] = by_all;
    }
    split_from(config, daemon, "0", whole);
    copy_hash(after, sizeof(after));
    if (strcmp(before, after) != 0)
        fprintf(stderr, "what came back is not what went\n"), exit(1);
    snprintf(what, sizeof(what), "restore of %zu MiB over %u link%s", size >> 20, links, links == 1 ? "" : "s");
    row.aim = bare.driver ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM;
    bench_take_rate(&row, split, runs, size);
    row.beside = (double)size / 1e9 / bench_quantile(own, runs, 0.5);
    bench_print(&row);
    bench_drop(session, NAME);
    hbm_close(session);
    return 0;
}
