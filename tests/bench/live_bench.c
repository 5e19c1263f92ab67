/* How long a reader stands still while its memory is demoted to host memory under it, and comes back, beside the
 * bare swap: unmap, import, map, set access, of the same bytes. usage: live_bench [MIB] */
#include "tests/bench/bare.h"

#define NAME "bench-live"

static hbm_session *session;
static struct bare bare;

/* The reader's longest safe point until it has ended, in seconds; < 0: unsupported. */
static double longest_pause(bool to_host)
{
    double longest = 0;
    hbm_op *op = NULL;
    int error =
        to_host ? hbm_offload(session, NAME, HBM_TIER_HOST, HBM_LIVE, &op) : hbm_restore(session, NAME, &op);

    if (error == HBM_E_UNSUPPORTED)
        return -1;
    while (!error && (error = hbm_op_wait(op, 0, NULL)) == HBM_E_TIMEOUT) {
        double start = bench_now();
        error = hbm_safepoint(session, NULL, 0, HBM_FOREVER);
        double pause = bench_now() - start;
        longest = pause > longest ? pause : longest;
    }
    hbm_op_free(op);
    bench_must(error, "a move under a reader");
    return longest;
}

/* The same range, mapped to one allocation and then to the other; seconds. */
static double swap(CUdeviceptr address, int fd, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle;
    double start = bench_now();

    driver_must(bare.driver->unmap(address, size), "cuMemUnmap");
    driver_must(bare.driver->import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle");
    driver_must(bare.driver->map(address, size, 0, handle, 0), "cuMemMap");
    driver_must(bare.driver->set_access(address, size, &access, 1), "cuMemSetAccess");
    driver_must(bare.driver->release(handle), "cuMemRelease");
    return bench_now() - start;
}

static void row(const char *where, double *ours, double *beside, unsigned runs, size_t size)
{
    char what[96];
    struct bench_row row = {
        .what = what, .unit = "ms a GiB", .aim = bare.driver ? BENCH_OURS_AT_MOST : BENCH_NO_AIM, .bound = 12};
    double scale = 1e3 * (double)((size_t)1 << 30) / (double)size;

    snprintf(what, sizeof(what), "live move of %zu MiB %s: its reader stands still", size >> 20, where);
    bench_take(&row, ours, runs, 0.5, scale);
    if (bare.driver) {
        row.beside_what = "the bare swap";
        row.beside = bench_quantile(beside, runs, 0.5) * scale;
    }
    bench_print(&row);
}

int main(int argc, char **argv)
{
    double down[BENCH_RUNS], up[BENCH_RUNS], bare_down[BENCH_RUNS] = {0}, bare_up[BENCH_RUNS] = {0};
    unsigned runs = bench_runs(BENCH_RUNS / 2);
    CUdeviceptr address = 0;
    int device_fd = -1, host_fd = -1;
    hbm_lease *lease;

    session = bench_open(0);
    bare_open(&bare, session);
    size_t size = (argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : bare.driver ? 1024 : 256) << 20;
    bench_make(session, NAME, size);
    bench_must(hbm_attach(session, NAME, HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
    if (longest_pause(true) < 0) {
        fprintf(stderr, "  the driver has no host memory that processes share: no live moves\n");
        return 0;
    }
    longest_pause(false);
    if (bare.driver) {
        device_fd = driver_export(bare.driver, size);
        host_fd = driver_export_host(bare.driver, size);
        address = driver_map(bare.driver, device_fd, size);
    }
    for (unsigned i = 0; i < runs; i++) {
        down[i] = longest_pause(true);
        up[i] = longest_pause(false);
        if (bare.driver) {
            bare_down[i] = swap(address, host_fd, size);
            bare_up[i] = swap(address, device_fd, size);
        }
    }
    row("to host memory", down, bare_down, runs, size);
    row("back", up, bare_up, runs, size);
    bench_must(hbm_detach(lease), "hbm_detach");
    bench_drop(session, NAME);
    hbm_close(session);
    return 0;
}
