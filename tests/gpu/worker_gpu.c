/* The CUDA worker on a real GPU: its start, its context, what it holds and for how long (worker_test.h). */
#include <dirent.h>

#include "tests/gpu/worker_test.h"

static void starting_creates_no_context(void)
{
    union job_reply reply = {0};

    ask_start(&worker, program);
    bool good = is(ask_begin(&worker, "GPU-00000000-0000-0000-0000-000000000000", directory, IDLE_MS, &reply),
                   HBM_E_NO_DEVICE);
    ask_stop(&worker);
    ask_start(&worker, program);
    good = is(ask_begin(&worker, uuid, directory, IDLE_MS, &reply), 0) && good;
    printf("# %s, %.1f GiB, %.1f free, granularity %llu, rdma %u, /dev/nvidia%u\n", reply.start.name,
           (double)reply.start.total_bytes / 1073741824, (double)reply.start.free_bytes / 1073741824,
           (unsigned long long)reply.start.granularity, reply.start.rdma, reply.start.ordinal);
    ok(good && reply.start.total_bytes == total && reply.start.can_fd && reply.start.can_cuda_ipc,
       "START tells what the device is, and refuses a UUID that is not here");
    ok(query().has_context == 0, "START creates no context");
    struct ask_extent e = {.fd = -1};
    good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4, &e), 0);
    ok(good && query().has_context == 0, "creating and exporting device memory needs no context");
    ask_drop(&worker, &e);
}

/* Pinned ahead, it is what any other host extent is: a copy comes back from it. */
static void host_memory_is_made_ahead_without_a_context(void)
{
    uint64_t size = 64 * MIB, sum = 0;
    struct ask_extent ahead = {.fd = -1}, device = {.fd = -1};
    unsigned char *bytes = random_bytes(size, 78), *back = calloc(1, size);
    struct ask_range all = {0, 0, size};

    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    bool good = is(ask_create_with(&worker, JOB_EXTENT_HOST, size, JOB_AHEAD, &ahead), 0);
    ok(good && ahead.extent.size == size && query().has_context == 0, "host memory made ahead needs no context");
    ok(good && get(&ahead, 0, back, size) && !back[0] && !memcmp(back, back + 1, size - 1), "and holds zeros");
    good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &device), 0) && put(&device, 0, bytes, size) &&
           is(ask_copy(&worker, &device, &ahead, all, JOB_CHECKSUM, &sum), 0) && get(&ahead, 0, back, size);
    ok(good && !memcmp(bytes, back, size), "what is offloaded into it is there");
    ok(is(ask_create_with(&worker, JOB_EXTENT_HOST, UINT64_C(1) << 50, JOB_AHEAD, &(struct ask_extent){.fd = -1}),
          HBM_E_NO_MEMORY),
       "more than a quarter of what the machine has is refused");
    ask_drop(&worker, &device);
    ask_drop(&worker, &ahead);
    free(bytes), free(back);
}

/* Across what was registered at one go, from any byte to any byte. */
static void host_memory_pinned_in_pieces_is_like_any_other(void)
{
    static const struct ask_range ranges[] = {
        {0, 0, 150 * MIB}, {5, 64 * MIB - 3, 70 * MIB}, {64 * MIB - 1, 1, 2}, {60 * MIB, 62 * MIB, 80 * MIB}};
    uint64_t size = 150 * MIB;
    struct ask_extent host = {.fd = -1}, device = {.fd = -1};
    unsigned char *bytes = random_bytes(size, 79), *want = calloc(1, size), *back = calloc(1, size);
    bool good = is(ask_create_with(&worker, JOB_EXTENT_HOST, size, JOB_IN_PIECES, &host), 0) &&
                is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &device), 0) && put(&device, 0, bytes, size);

    for (unsigned i = 0; i < 4 && good; i++) {
        const struct ask_range *r = &ranges[i];
        uint64_t sum = 0;
        memcpy(want + r->target_offset, bytes + r->source_offset, r->bytes);
        good = is(ask_copy(&worker, &device, &host, *r, JOB_CHECKSUM, &sum), 0) && get(&host, 0, back, size);
        ok(good && !memcmp(want, back, size), "what is offloaded into host memory pinned in pieces is there");
        struct ask_range up = {r->target_offset, r->source_offset, r->bytes};
        good = good && is(ask_copy(&worker, &host, &device, up, JOB_VERIFY, &sum), 0) && get(&device, 0, back, size);
        ok(good && !memcmp(bytes, back, size), "and comes back from it");
    }
    ask_drop(&worker, &device);
    ask_drop(&worker, &host);
    free(bytes), free(want), free(back);
}

static void memory_outlives_the_worker(void)
{
    unsigned char *bytes = random_bytes(5 * MIB, 9);
    struct ask_extent e = {.fd = -1}, host = {.fd = -1};
    uint64_t hash = 0;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 5 * MIB, &e), 0) &&
                is(ask_create(&worker, JOB_EXTENT_HOST, 5 * MIB, &host), 0) && put(&e, 0, bytes, 5 * MIB) &&
                is(ask_copy(&worker, &e, &host, (struct ask_range){0, 0, 5 * MIB}, 0, NULL), 0);

    kill(worker.pid, SIGKILL);
    ask_stop(&worker);
    begin();
    good = good && is(ask_hash(&worker, &e, 0, 5 * MIB, &hash), 0) && hash == XXH3_64bits(bytes, 5 * MIB);
    good = good && is(ask_hash(&worker, &host, 0, 5 * MIB, &hash), 0) && hash == XXH3_64bits(bytes, 5 * MIB);
    ok(good, "device and host memory survive SIGKILL of the worker");
    ask_drop(&worker, &e), ask_drop(&worker, &host);
    free(bytes);
}

static void cuda_ipc_blocks_live_until_destroyed(void)
{
    struct job_create_request request = {.size = 5, .kind = JOB_EXTENT_CUDA_IPC};
    union job_reply reply = {0};
    static const uint8_t none[64];
    uint64_t hash;
    bool good = is(ask_job(&worker, JOB_CREATE, &request, NULL, 0, &reply, NULL), 0);
    struct ask_extent e = {
        .extent = {.kind = JOB_EXTENT_CUDA_IPC, .size = reply.create.size, .token = reply.create.token}, .fd = -1};

    ok(good && reply.create.size == 2 * MIB && memcmp(reply.create.ipc_handle, none, 64),
       "a cuda-ipc block has whole 2 MiB of its own and a handle");
    nap(4 * IDLE_MS);
    ok(query().has_context == 1, "a living cuda-ipc block keeps the context");
    e.extent.size = 4 * MIB;
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), HBM_E_BAD_REQUEST), "a block of the wrong size is refused");
    e.extent.size = 2 * MIB;
    ask_drop(&worker, &e);
    ask_drop(&worker, &e);
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), HBM_E_LOST),
       "a destroyed block is lost, destroying it twice is fine");
}

static void the_context_goes_when_idle_and_comes_back(void)
{
    struct ask_extent e = {.fd = -1};
    uint64_t hash, again = 1;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 40 * MIB, &e), 0) &&
                is(ask_hash(&worker, &e, 0, 40 * MIB, &hash), 0) && query().has_context == 1;

    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    ok(good && query().has_context == 0, "the context is dropped when the worker is idle");
    good = is(ask_hash(&worker, &e, 0, 40 * MIB, &again), 0);
    ok(good && again == hash && query().has_context == 1, "the next job makes a new one and finds its memory");
    ask_drop(&worker, &e);
}

static void what_is_no_memory_is_refused(void)
{
    struct ask_extent e = {.fd = -1}, wrong = {.fd = -1}, huge = {.fd = -1};
    uint64_t hash;
    int pipe_fds[2];
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &e), 0) && pipe(pipe_fds) == 0;

    wrong = e;
    wrong.fd = pipe_fds[0];
    int status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(good && status < 0, "a pipe for an extent is refused");
    wrong = e;
    wrong.extent.size = 8 * MIB;
    status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(status < 0, "an extent of another size is refused");
    wrong = e;
    wrong.extent.kind = JOB_EXTENT_HOST;
    status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(status < 0, "device memory called host memory is refused");
    ok(is(ask_create(&worker, JOB_EXTENT_DEVICE, total * 2, &huge), HBM_E_NO_MEMORY) &&
           is(ask_create(&worker, JOB_EXTENT_HOST, (uint64_t)1 << 50, &huge), HBM_E_NO_MEMORY) &&
           is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, UINT64_MAX, &huge), HBM_E_NO_MEMORY),
       "more memory than there is, is refused");
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), 0), "and none of that spoils the next job");
    close(pipe_fds[0]), close(pipe_fds[1]);
    ask_drop(&worker, &e);
}

/* Bytes that the worker's CPU side has mapped from the driver. */
static uint64_t mapped_by_worker(void)
{
    unsigned long long from, to;
    char path[40], line[512];
    uint64_t bytes = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", worker.pid);
    FILE *maps = fopen(path, "re");
    while (maps && fgets(line, sizeof(line), maps))
        if (strstr(line, "/dev/nvidia") && sscanf(line, "%llx-%llx", &from, &to) == 2)
            bytes += to - from;
    if (maps)
        fclose(maps);
    return bytes;
}

static void forget(uint64_t token)
{
    struct job_destroy_request request = {.token = token, .kind = JOB_EXTENT_HOST};

    is(ask_job(&worker, JOB_DESTROY, &request, NULL, 0, NULL, NULL), 0);
}

static void host_extents_with_a_token_stay_mapped(void)
{
    enum { N = 4 };
    uint64_t size = 64 * MIB, sum = 0, again;
    struct ask_extent device = {.fd = -1}, host[N];
    unsigned char *bytes = random_bytes(size, 77);
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &device), 0) && put(&device, 0, bytes, size);
    struct ask_range all = {0, 0, size};

    for (unsigned i = 0; i < N; i++) {
        good = is(ask_create(&worker, JOB_EXTENT_HOST, size, &host[i]), 0) && good;
        host[i].extent.token = 1 + i; /* the same numbers as cuda-ipc blocks have */
    }
    uint64_t before = mapped_by_worker();
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < N; i++) {
            good = good && is(ask_copy(&worker, &device, &host[i], all, JOB_CHECKSUM, &sum), 0);
            again = sum;
            good = good && is(ask_copy(&worker, &host[i], &device, all, JOB_VERIFY, &again), 0);
        }
    uint64_t kept = mapped_by_worker();
    printf("# mapped before %llu MiB, kept %llu MiB\n", (unsigned long long)(before / MIB),
           (unsigned long long)(kept / MIB));
    ok(good && kept >= before + N * size, "host extents with a token stay mapped");
    struct ask_extent wrong = host[0];
    wrong.extent.size = 32 * MIB;
    ok(is(ask_copy(&worker, &device, &wrong, (struct ask_range){0, 0, MIB}, 0, NULL), HBM_E_BAD_REQUEST),
       "at one size only");
    /* Forgotten while a job uses it: the job's bytes arrive all the same. */
    struct job_copy_request r = {
        .source = device.extent, .target = host[1].extent, .bytes = size, .flags = JOB_CHECKSUM};
    int fds[] = {device.fd, host[1].fd};
    union job_reply reply = {0};
    uint32_t serial = 0, copy = ask_send(&worker, JOB_COPY, &r, fds, 2);
    struct job_destroy_request destroy = {.token = host[1].extent.token, .kind = JOB_EXTENT_HOST};
    ask_send(&worker, JOB_DESTROY, &destroy, NULL, 0);
    for (unsigned i = 0; i < 2; i++) {
        union job_reply one = {0};
        good = is(ask_receive(&worker, &serial, &one, NULL), 0) && good;
        if (serial == copy)
            reply = one;
    }
    ok(good && reply.copy.checksum == sum, "one that is forgotten serves the job that uses it");
    for (unsigned i = 0; i < N; i++)
        forget(host[i].extent.token);
    forget(12345);
    ok(mapped_by_worker() < before + size, "forgotten, they are mapped no longer");
    good = good && is(ask_copy(&worker, &device, &host[2], all, JOB_CHECKSUM, &again), 0) && again == sum;
    ok(good && mapped_by_worker() >= before + size, "used again, one is mapped again");
    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    ok(mapped_by_worker() < before + size, "the context takes them along");
    good = good && is(ask_copy(&worker, &host[2], &device, all, JOB_VERIFY, &sum), 0);
    ok(good, "and the next context maps them again");
    for (unsigned i = 0; i < N; i++)
        ask_drop(&worker, &host[i]);
    ask_drop(&worker, &device);
    free(bytes);
}

static unsigned fds_of_worker(void)
{
    struct job_destroy_request nothing = {0};
    char path[40];
    unsigned n = 0;

    /* A reply's fd is closed after the reply; the answer to a next job of the same queue says that it is. */
    is(ask_job(&worker, JOB_DESTROY, &nothing, NULL, 0, NULL, NULL), 0);
    snprintf(path, sizeof(path), "/proc/%d/fd", worker.pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static void a_thousand_jobs_leave_memory_and_fds_as_they_were(void)
{
    struct ask_extent a = {.fd = -1}, b = {.fd = -1}, c = {.fd = -1};
    uint64_t sum;
    bool good =
        is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &b), 0) && is(ask_hash(&worker, &b, 0, 9, &sum), 0);
    unsigned before = fds_of_worker();
    uint64_t free_before = query().free_bytes;

    for (unsigned i = 0; good && i < 200; i++) {
        good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &a), 0) &&
               is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, 4 * MIB, &c), 0) &&
               is(ask_copy(&worker, &b, &a, (struct ask_range){0, 0, 4 * MIB}, 0, NULL), 0) &&
               is(ask_copy(&worker, &a, &c, (struct ask_range){0, 0, 4 * MIB}, JOB_CHECKSUM, &sum), 0);
        ask_drop(&worker, &a), ask_drop(&worker, &c);
    }
    uint64_t free_after = query().free_bytes;
    ok(good && fds_of_worker() == before, "a thousand jobs leave the worker's fds as they were");
    ok(good && free_after + 8 * MIB >= free_before, "and the device's free memory");
    ask_drop(&worker, &b);
}

static void clients_lists_who_has_a_context(void)
{
    struct job_clients_request request = {.n = 2, .pids = {(uint32_t)worker.pid, 1}};
    union job_reply reply = {0};
    struct ask_extent e = {.fd = -1};
    uint64_t hash;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4, &e), 0) && is(ask_hash(&worker, &e, 0, 4, &hash), 0) &&
                is(ask_job(&worker, JOB_CLIENTS, &request, NULL, 0, &reply, NULL), 0);

    if (good && reply.clients.n == 0)
        printf("# NVML does not list this process: another PID namespace?\n");
    ok(good && reply.clients.n <= 1 && (reply.clients.n == 0 || reply.clients.pids[0] == (uint32_t)worker.pid),
       "CLIENTS lists of the pids asked those with a context");
    ask_drop(&worker, &e);
}

/* What the books are made of; how the driver counts an exported extent is printed, not assumed. */
static void the_driver_names_the_worker_and_counts_what_it_made(void)
{
    struct ask_extent e = {.fd = -1}, block = {.fd = -1};
    uint64_t hash, before = query().used_bytes, context = 0, both = 0;
    const uint64_t size = 512 * MIB;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &e), 0);
    uint64_t with = query().used_bytes;

    printf("# used before %llu, with an extent of %llu: %llu\n", (unsigned long long)before,
           (unsigned long long)size, (unsigned long long)with);
    ok(good && with >= before + size && with < before + size + 64 * MIB,
       "an extent shows in what the driver counts as used");
    good = is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, size, &block), 0) &&
           is(ask_hash(&worker, &e, 0, 4, &hash), 0);
    struct job_query_reply said = query();
    for (uint32_t i = 0; i < said.n && i < 32; i++) {
        printf("# the driver counts %llu bytes of pid %u%s\n", (unsigned long long)said.holders[i].bytes,
               said.holders[i].pid, said.holders[i].pid == (uint32_t)worker.pid ? ", the worker" : "");
        if (said.holders[i].pid == (uint32_t)worker.pid)
            both = said.holders[i].bytes;
    }
    ask_drop(&worker, &block);
    said = query();
    for (uint32_t i = 0; i < said.n && i < 32; i++)
        if (said.holders[i].pid == (uint32_t)worker.pid)
            context = said.holders[i].bytes;
    printf("# the worker with %llu MiB exported, %llu MiB in a block: %llu; without the block: %llu\n",
           (unsigned long long)(size / MIB), (unsigned long long)(size / MIB), (unsigned long long)both,
           (unsigned long long)context);
    ok(good && said.tells_holders && said.n >= 1, "the driver tells who uses the device");
    ok(!both || both >= context + size, "and counts a cuda-ipc block as the worker's");
    ask_drop(&worker, &e);
    ok(query().used_bytes < with - size / 2, "until it is dropped");
}

int main(int argc, char **argv)
{
    worker_tests_begin(argc, argv);
    starting_creates_no_context();
    host_memory_is_made_ahead_without_a_context();
    host_memory_pinned_in_pieces_is_like_any_other();
    cuda_ipc_blocks_live_until_destroyed();
    memory_outlives_the_worker();
    the_context_goes_when_idle_and_comes_back();
    what_is_no_memory_is_refused();
    host_extents_with_a_token_stay_mapped();
    a_thousand_jobs_leave_memory_and_fds_as_they_were();
    clients_lists_who_has_a_context();
    the_driver_names_the_worker_and_counts_what_it_made();
    return worker_tests_end();
}
