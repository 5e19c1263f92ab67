/* A client that outlives its daemon: holds a model and a locked buffer, and has threads that call without a pause
 * while test_resume.py kills the owner. A command a line on standard input, a line of JSON for each. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/hbm.h"
#include "client/lib/cuda_driver.h"

#define TENSORS 4
#define BYTES (256 * 1024)

static const char *prefix = ""; /* of its names: several may run as one user */
static hbm_session *session;
static hbm_model *model;
static hbm_lease *mine, *roving;
static uint64_t kept_sum, roving_sum;
static _Atomic bool stop, no_safe_points;
static _Atomic unsigned calls, errors;
static char first_error[512];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* A safe point lets go of what is held, in every thread: nobody may be reading it then. */
static pthread_rwlock_t step = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static const char *full(const char *name)
{
    static _Thread_local char text[64];

    snprintf(text, sizeof(text), "%s%s", prefix, name);
    return text;
}

static double now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void note(const char *what, int error)
{
    calls++;
    if (!error)
        return;
    pthread_mutex_lock(&mutex);
    if (!errors++)
        snprintf(first_error, sizeof(first_error), "%s: %d %.400s", what, error, hbm_last_error_detail());
    pthread_mutex_unlock(&mutex);
}

static void must(const char *what, int error)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s\n", what, hbm_last_error_detail());
    exit(1);
}

/* ---- Memory: where it is a GPU's, this process has no other way to it than the driver's copies. ---- */

static CUcontext context; /* NULL: the memory is mapped for the processor */

static void driver_must(const char *what, CUresult result)
{
    const char *name = "an unknown error";

    if (!result)
        return;
    cuda_driver()->error_name(result, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}

/* In each thread, before it reads or writes. */
static void enter_device(void)
{
    if (context)
        driver_must("cuCtxSetCurrent", cuda_driver()->context_set(context));
}

static void find_device(void)
{
    struct hbm_device_info info;

    must("device", hbm_device_get(session, 0, &info));
    if (info.is_cuda && !cuda_driver())
        must("the driver", HBM_E_NO_CUDA);
    if (info.is_cuda)
        driver_must("cuDevicePrimaryCtxRetain", cuda_primary(cuda_driver(), 0, &context));
    enter_device();
}

static void read_bytes(void *to, const void *from, uint64_t size)
{
    if (context)
        driver_must("cuMemcpyDtoH", cuda_driver()->copy_from_device(to, (CUdeviceptr)(uintptr_t)from, size));
    else
        memcpy(to, from, size);
}

static void fill(void *memory, int value, uint64_t size)
{
    if (!context) {
        memset(memory, value, size);
        return;
    }
    driver_must("cuMemsetD8", cuda_driver()->memset_d8((CUdeviceptr)(uintptr_t)memory, (unsigned char)value, size));
    driver_must("cuStreamSynchronize", cuda_driver()->stream_synchronize(NULL)); /* a memset does not wait */
}

static uint64_t sum(const void *memory, uint64_t size)
{
    unsigned char *bytes = malloc(size);
    uint64_t hash = 0xcbf29ce484222325u;

    if (!bytes)
        abort();
    read_bytes(bytes, memory, size);
    for (uint64_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    free(bytes);
    return hash;
}

/* ---- Threads ---- */

static void *attach_and_detach(void *unused)
{
    enter_device();
    while (!stop) {
        hbm_lease *lease = NULL;
        struct hbm_info info;
        int error = hbm_attach(session, full("kept"), HBM_RO, 0, 20000, &lease);
        note("attach", error);
        if (error)
            continue;
        pthread_rwlock_rdlock(&step);
        hbm_lease_info(lease, &info);
        if (sum(info.pointer, info.size) != kept_sum)
            note("the bytes of kept", HBM_E_CHECKSUM);
        pthread_rwlock_unlock(&step);
        note("detach", hbm_detach(lease));
    }
    return unused;
}

static void *lock_and_unlock(void *unused)
{
    enter_device();
    while (!stop) {
        int error = hbm_lock(roving, 20000);
        note("lock", error);
        if (error)
            continue;
        pthread_rwlock_rdlock(&step);
        if (sum(hbm_pointer(roving), BYTES) != roving_sum)
            note("the bytes of roving", HBM_E_CHECKSUM);
        pthread_rwlock_unlock(&step);
        note("unlock", hbm_unlock(roving, NULL, 0));
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return unused;
}

static void *look_and_lock(void *unused)
{
    enter_device();
    while (!stop) {
        struct hbm_device_info info;
        note("device", hbm_device_get(session, 0, &info));
        note("lock of what is resident", hbm_lock(mine, 0));
        note("unlock of what is resident", hbm_unlock(mine, NULL, 0));
        pthread_rwlock_wrlock(&step);
        if (!no_safe_points)
            note("safe point", hbm_safepoint(session, NULL, 0, 20000));
        pthread_rwlock_unlock(&step);
    }
    return unused;
}

static void publish(void)
{
    struct hbm_publish_buffer rows[TENSORS];
    char names[TENSORS][8];
    int must_build;
    hbm_model *building;

    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        rows[i] = (struct hbm_publish_buffer){
            .name = names[i], .group = names[i], .dtype = HBM_U8, .rank = 1, .dims = {BYTES}};
    }
    must("publish",
         hbm_publish_begin(session, &(struct hbm_publish){.name = full("m"), .buffers = rows, .n_buffers = TENSORS},
                           1000, &building, &must_build));
    for (unsigned i = 0; i < TENSORS; i++) {
        struct hbm_info info;
        hbm_model_buffer(building, i, &info);
        fill(info.pointer, (int)i + 1, info.size);
    }
    must("commit", hbm_publish_commit(building));
    must("attach the model", hbm_model_attach(session, full("m"), HBM_RO, 0, 1000, &model));
}

static hbm_lease *alloc(const char *name, int value, uint32_t flags)
{
    hbm_lease *lease;

    must(name,
         hbm_alloc(session, &(struct hbm_spec){.size = BYTES, .dtype = HBM_U8, .name = full(name), .flags = flags},
                   &lease));
    fill(hbm_pointer(lease), value, BYTES);
    return lease;
}

static void show(void)
{
    struct hbm_info info;

    pthread_rwlock_rdlock(&step);
    hbm_lease_info(mine, &info);
    printf("{\"calls\": %u, \"errors\": %u, \"first_error\": \"%s\", \"mine\": [\"0x%016" PRIx64
           "\", \"%p\", \"%016" PRIx64 "\"], \"model\": [",
           calls, errors, first_error, info.id, info.pointer, sum(info.pointer, info.size));
    for (unsigned i = 0; i < TENSORS; i++) {
        hbm_model_buffer(model, i, &info);
        printf("%s[\"0x%016" PRIx64 "\", \"%p\", \"%016" PRIx64 "\"]", i ? ", " : "", info.id, info.pointer,
               sum(info.pointer, info.size));
    }
    puts("]}");
    pthread_rwlock_unlock(&step);
}

static void ping(void)
{
    struct hbm_device_info info;
    int error = hbm_device_get(session, 0, &info);

    printf("{\"error\": %d, \"at\": %.6f}\n", error, now());
}

/* No safe point from here on: what is locked stays. */
static void stay(void)
{
    pthread_rwlock_wrlock(&step);
    no_safe_points = true;
    pthread_rwlock_unlock(&step);
    puts("{}");
}

/* Something that can't be asked twice: what it comes to when the daemon goes is told, not hidden. */
static void offload(const char *sel)
{
    no_safe_points = true; /* so that what is locked stays */
    int error = hbm_offload(session, sel, HBM_TIER_HOST, HBM_FORCE, NULL);

    printf("{\"error\": %d}\n", error);
}

static int fill_from_file(hbm_model *building)
{
    struct hbm_info info;
    FILE *file = tmpfile();

    hbm_model_buffer(building, 0, &info);
    int error = file ? hbm_fill(session, fileno(file), &(struct hbm_range){info.id, 0, 0, BYTES}, 1, NULL) : HBM_E_SYSTEM;
    if (file)
        fclose(file);
    return error;
}

static void build_half(void)
{
    static hbm_model *half;
    struct hbm_publish_buffer row = {.name = "t", .dtype = HBM_U8, .rank = 1, .dims = {BYTES}};
    int error, must_build, filled = 0;

    if (half) {
        filled = fill_from_file(half);
        error = hbm_publish_commit(half);
        half = NULL;
    } else {
        error =
            hbm_publish_begin(session, &(struct hbm_publish){.name = full("half"), .buffers = &row, .n_buffers = 1},
                              1000, &half, &must_build);
    }
    printf("{\"error\": %d, \"filled\": %d}\n", error, filled);
}

int main(int argc, char **argv)
{
    void *(*const work[])(void *) = {attach_and_detach, attach_and_detach, lock_and_unlock, look_and_lock};
    pthread_t threads[sizeof(work) / sizeof(work[0])];
    char line[256], *rest;

    if (argc < 2)
        return 2;
    if (argc > 2)
        prefix = argv[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    must("open", hbm_open(&(struct hbm_options){.runtime_dir = argv[1], .reconnect_ms = 20000}, &session));
    find_device();
    hbm_lease *kept = alloc("kept", 42, HBM_KEEP);
    kept_sum = sum(hbm_pointer(kept), BYTES);
    must("detach", hbm_detach(kept));
    mine = alloc("mine", 7, 0);
    roving = alloc("roving", 9, 0);
    roving_sum = sum(hbm_pointer(roving), BYTES);
    must("unlock", hbm_unlock(roving, NULL, 0));
    publish();
    for (unsigned i = 0; i < sizeof(work) / sizeof(work[0]); i++)
        pthread_create(&threads[i], NULL, work[i], NULL);
    show();
    while (fgets(line, sizeof(line), stdin)) {
        const char *word = strtok_r(line, " \n", &rest);
        if (!strcmp(word, "show"))
            show();
        else if (!strcmp(word, "ping"))
            ping();
        else if (!strcmp(word, "stay"))
            stay();
        else if (!strcmp(word, "offload"))
            offload(strtok_r(NULL, " \n", &rest));
        else if (!strcmp(word, "half"))
            build_half();
    }
    stop = true;
    for (unsigned i = 0; i < sizeof(work) / sizeof(work[0]); i++)
        pthread_join(threads[i], NULL);
    hbm_close(session);
    return errors ? 1 : 0;
}
