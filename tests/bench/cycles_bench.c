/* 10 000 cycles of attach and detach: descriptors and resident memory of this process and of the daemon, before and
 * after. usage: cycles_bench DAEMON_PID */
#include <dirent.h>
#include <unistd.h>

#include "tests/bench/bench.h"

#define CYCLES 10000u
#define WARM 5000u /* until the event ring of the daemon has been round once */
#define GROWTH_BYTES (256.0 * 1024) /* of an allocator that has not settled; a leak of 64 bytes a cycle is more */

static double count_fds(const char *pid)
{
    char path[64];
    double n = -2; /* . and .. */

    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    if (!dir)
        perror(path), exit(1);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static double resident(const char *pid)
{
    char path[64];
    unsigned long total, pages;

    snprintf(path, sizeof(path), "/proc/%s/statm", pid);
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%lu %lu", &total, &pages) != 2)
        perror(path), exit(1);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void cycle(hbm_session *session, unsigned n)
{
    hbm_lease *lease;

    while (n--) {
        bench_must(hbm_attach(session, "bench-cycles", HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
        bench_must(hbm_detach(lease), "hbm_detach");
    }
}

static void row(const char *what, const char *unit, double grown, double bound)
{
    bench_print(&(struct bench_row){.what = what,
                                    .unit = unit,
                                    .ours = grown,
                                    .low = grown,
                                    .high = grown,
                                    .aim = BENCH_OURS_AT_MOST,
                                    .bound = bound,
                                    .samples = CYCLES});
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: cycles_bench DAEMON_PID\n");
        return 2;
    }
    const char *daemon = argv[1];
    hbm_session *session = bench_open(0);

    bench_make(session, "bench-cycles", 4 << 20);
    cycle(session, WARM);
    double own_fds = count_fds("self"), fds = count_fds(daemon), own = resident("self"), bytes = resident(daemon);
    double start = bench_now();
    cycle(session, CYCLES);
    double seconds = bench_now() - start;
    own_fds = count_fds("self") - own_fds, fds = count_fds(daemon) - fds;
    own = resident("self") - own, bytes = resident(daemon) - bytes;
    row("10 000 attaches and detaches: fds more, client", "", own_fds, 0);
    row("10 000 attaches and detaches: fds more, daemon", "", fds, 0);
    row("10 000 attaches and detaches: memory more, client", "KiB", own / 1024, GROWTH_BYTES / 1024);
    row("10 000 attaches and detaches: memory more, daemon", "KiB", bytes / 1024, GROWTH_BYTES / 1024);
    bench_print(&(struct bench_row){.what = "one attach and detach, mapped and unmapped",
                                    .unit = "us",
                                    .ours = seconds / CYCLES * 1e6,
                                    .low = seconds / CYCLES * 1e6,
                                    .high = seconds / CYCLES * 1e6,
                                    .samples = CYCLES});
    bench_drop(session, "bench-cycles");
    hbm_close(session);
    return 0;
}
