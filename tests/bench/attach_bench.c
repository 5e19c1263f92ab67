/* First attaches, beside the bare calls that map the same bytes: the driver's on a GPU, mmap of a memfd on the host
 * device. The bare calls have their descriptor already; ours ask the daemon for it. */
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "proto/packet.h"
#include "tests/bench/driver.h"

#define ONE ((uint64_t)1 << 30)
#define LAYERS 80u
#define TENSORS 1000u
#define TENSOR_BYTES ((uint64_t)128 << 10)

static const struct cuda_driver *driver; /* NULL: the host device */
static int maker = -1; /* memory of our own the driver imports faster than another process's */

static void make_for_others(int socket)
{
    const struct cuda_driver *mine = NULL;
    uint64_t size;

    while (read(socket, &size, sizeof(size)) == sizeof(size)) {
        if (!mine)
            mine = driver_open();
        int fd = driver_export(mine, size);
        packet_send(socket, &(struct packet_header){.opcode = 1}, NULL, 0, &fd, 1);
        close(fd);
    }
    _exit(0);
}

/* Before there is a context, which no child could use. */
static void start_maker(void)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        perror("socketpair"), exit(1);
    if (fork() == 0) {
        close(pair[1]);
        make_for_others(pair[0]);
    }
    close(pair[0]);
    maker = pair[1];
}

static int made_by_another(uint64_t size)
{
    static struct packet packet;

    if (write(maker, &size, sizeof(size)) < 0 || packet_receive(maker, &packet))
        return -1;
    return packet_take_fd(&packet, 0);
}

static int bare_make(uint64_t size)
{
    int fd = driver ? made_by_another(size) : memfd_fixed("bench", size);

    if (fd < 0)
        perror("bare memory"), exit(1);
    return fd;
}

static void bare_map(const int *fds, uint64_t *addresses, unsigned n, uint64_t size)
{
    for (unsigned i = 0; i < n; i++) {
        void *address = driver ? NULL : mmap(NULL, size, PROT_READ, MAP_SHARED, fds[i], 0);
        if (address == MAP_FAILED)
            perror("mmap"), exit(1);
        addresses[i] = driver ? driver_map(driver, fds[i], size) : (uint64_t)(uintptr_t)address;
    }
}

static void bare_unmap(const uint64_t *addresses, unsigned n, uint64_t size)
{
    for (unsigned i = 0; i < n; i++) {
        if (driver)
            driver_unmap(driver, addresses[i], size);
        else
            munmap((void *)(uintptr_t)addresses[i], size);
    }
}

static double bare_once(const int *fds, unsigned n, uint64_t size)
{
    uint64_t addresses[LAYERS];
    double start = bench_now();

    bare_map(fds, addresses, n, size);
    double seconds = bench_now() - start;
    bare_unmap(addresses, n, size);
    return seconds;
}

static double attach_once(hbm_session *session)
{
    hbm_lease *lease;
    double start = bench_now();

    bench_must(hbm_attach(session, "bench-attach", HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
    double seconds = bench_now() - start;
    bench_must(hbm_detach(lease), "hbm_detach");
    return seconds;
}

static double model_once(hbm_session *session)
{
    hbm_model *model;
    double start = bench_now();

    bench_must(hbm_model_attach(session, "bench-model", HBM_RO, 0, HBM_FOREVER, &model), "hbm_model_attach");
    double seconds = bench_now() - start;
    bench_must(hbm_model_detach(model), "hbm_model_detach");
    return seconds;
}

/* Each tensor by itself, through the same session: arenas are mapped once all the same. */
static double singles_once(hbm_session *session)
{
    static hbm_lease *leases[TENSORS];
    char name[64];
    double start = bench_now();

    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), "bench-model/t%u", i);
        bench_must(hbm_attach(session, name, HBM_RO, 0, HBM_FOREVER, &leases[i]), "hbm_attach");
    }
    double seconds = bench_now() - start;
    for (unsigned i = 0; i < TENSORS; i++)
        bench_must(hbm_detach(leases[i]), "hbm_detach");
    return seconds;
}

static void publish(hbm_session *session)
{
    static struct hbm_publish_buffer buffers[TENSORS];
    static char names[TENSORS][16], groups[LAYERS][16];
    struct hbm_publish spec = {
        .name = "bench-model", .device = HBM_DEVICE_ANY, .buffers = buffers, .n_buffers = TENSORS};
    hbm_model *model;
    int must_build;

    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        snprintf(groups[i % LAYERS], sizeof(groups[0]), "layer.%u", i % LAYERS);
        buffers[i] = (struct hbm_publish_buffer){names[i], groups[i % LAYERS], HBM_U8, 1, {TENSOR_BYTES}};
    }
    bench_must(hbm_publish_begin(session, &spec, HBM_FOREVER, &model, &must_build), "hbm_publish_begin");
    bench_must(hbm_publish_commit(model), "hbm_publish_commit");
}

static void one_gibibyte(hbm_session *session)
{
    double ours[BENCH_RUNS], beside[BENCH_RUNS];
    int fd = bare_make(ONE);
    struct bench_row row = {.what = "first attach of 1 GiB",
                            .unit = "us",
                            .beside_what = driver ? "import, reserve, map, set access" : "mmap",
                            .aim = driver ? BENCH_RATIO_AT_MOST : BENCH_NO_AIM,
                            .bound = 1.2};

    bench_make(session, "bench-attach", ONE);
    for (int i = -(int)BENCH_WARM; i < (int)BENCH_RUNS; i++) {
        double us = attach_once(session), bare = bare_once(&fd, 1, ONE);
        if (i >= 0)
            ours[i] = us, beside[i] = bare;
    }
    bench_take(&row, ours, BENCH_RUNS, 0.5, 1e6);
    row.beside = bench_quantile(beside, BENCH_RUNS, 0.5) * 1e6;
    bench_print(&row);
    bench_drop(session, "bench-attach");
    close(fd);
}

static void whole_model(hbm_session *session)
{
    double ours[BENCH_RUNS], singles[BENCH_RUNS], beside[BENCH_RUNS];
    int fds[LAYERS];
    uint64_t layer = driver ? (uint64_t)2 << 20 : (TENSORS / LAYERS + 1) * TENSOR_BYTES;
    struct bench_row row = {.what = "attach of a model, 1000 tensors in 80 layers",
                            .unit = "us",
                            .beside_what = driver ? "80 imports and maps" : "80 mmaps",
                            .aim = driver ? BENCH_RATIO_AT_MOST : BENCH_NO_AIM,
                            .bound = 1.2};

    publish(session);
    for (unsigned i = 0; i < LAYERS; i++)
        fds[i] = bare_make(layer);
    for (int i = -(int)BENCH_WARM; i < (int)BENCH_RUNS; i++) {
        double us = model_once(session), each = singles_once(session), bare = bare_once(fds, LAYERS, layer);
        if (i >= 0)
            ours[i] = us, singles[i] = each, beside[i] = bare;
    }
    bench_take(&row, ours, BENCH_RUNS, 0.5, 1e6);
    row.beside = bench_quantile(beside, BENCH_RUNS, 0.5) * 1e6;
    bench_print(&row);
    row.aim = BENCH_NO_AIM;
    row.beside_what = "1000 single attaches";
    row.beside = bench_quantile(singles, BENCH_RUNS, 0.5) * 1e6;
    bench_print(&row);
    for (unsigned i = 0; i < LAYERS; i++)
        close(fds[i]);
}

int main(void)
{
    start_maker();
    hbm_session *session = bench_open(0);

    if (bench_on_gpu(session))
        driver = driver_open();
    one_gibibyte(session);
    whole_model(session); /* run.sh removes the model */
    hbm_close(session);
    return 0;
}
