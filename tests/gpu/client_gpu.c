/* libhbm on a real GPU: `client_gpu RUNTIME_DIR` against a running daemon. Prints a line a check; 77: no GPU here.
 */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/hbm.h"
#include "client/lib/cuda_driver.h"

#define WAIVED 77
#define BYTES (3u << 20) /* no multiple of the 2 MiB granule */
#define ROWS 256
#define COLUMNS 1024

static unsigned passed, failed;
static const struct cuda_driver *cuda;
static const char *self, *dir;

__attribute__((format(printf, 2, 3))) static bool check(bool good, const char *sentence, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, sentence);
    vsnprintf(text, sizeof(text), sentence, arguments);
    va_end(arguments);
    if (good)
        printf("ok - %s\n", text);
    else
        printf("FAIL - %s (last error: %s)\n", text, hbm_last_error_detail());
    fflush(stdout);
    *(good ? &passed : &failed) += 1;
    return good;
}

static CUdeviceptr device_pointer(const hbm_lease *lease)
{
    return (CUdeviceptr)(uintptr_t)hbm_pointer(lease);
}

static bool holds(const hbm_lease *lease, const void *bytes, size_t size)
{
    void *copy = malloc(size);
    CUresult result = cuda->copy_from_device(copy, device_pointer(lease), size);
    bool same = result == 0 && !memcmp(copy, bytes, size);

    if (result)
        printf("# cuMemcpyDtoH: error %d\n", (int)result);
    free(copy);
    return same;
}

static bool use_gpu(void)
{
    CUcontext context;
    CUdevice device;
    int count = 0;

    cuda = cuda_driver();
    return cuda && !cuda->device_count(&count) && count && !cuda->device_get(&device, 0) &&
           !cuda->primary_retain(&context, device) && !cuda->context_set(context);
}

static int find_cuda_device(hbm_session *session)
{
    struct hbm_device_info info;

    for (int i = 0; i < hbm_device_count(session); i++)
        if (!hbm_device_get(session, (unsigned)i, &info) && info.is_cuda)
            return i;
    return -1;
}

/* The second process: sees the pattern, and adds to it. */
static int attach_in_child(const char *name)
{
    static unsigned char expected[BYTES];
    hbm_session *session;
    hbm_lease *lease;

    memset(expected, 0x5a, sizeof(expected));
    if (!use_gpu() || hbm_open(&(struct hbm_options){.runtime_dir = dir}, &session) ||
        hbm_attach(session, name, HBM_RW, 0, 10000, &lease)) {
        fprintf(stderr, "child: %s\n", hbm_last_error_detail());
        return 1;
    }
    bool same = holds(lease, expected, BYTES);
    bool written = cuda->memset_d8(device_pointer(lease) + BYTES - 16, 0xc3, 16) == 0;
    cuda->stream_synchronize(NULL);
    written = written && hbm_detach(lease) == 0;
    hbm_close(session);
    return same && written ? 0 : 1;
}

static bool run_child(const char *name)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        execl(self, self, dir, name, NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return status == 0;
}

static void share(hbm_session *session, unsigned device, unsigned handle)
{
    const char *kind = hbm_handle_name(handle);
    struct hbm_spec spec = {.size = BYTES, .device = device, .handle = handle, .name = "client_gpu.share"};
    static unsigned char zeros[BYTES], tail[16];
    hbm_lease *lease, *again;

    if (!check(hbm_alloc(session, &spec, &lease) == 0, "%s: allocates 3 MiB", kind))
        return;
    check(holds(lease, zeros, BYTES), "%s: new memory is zero", kind);
    cuda->memset_d8(device_pointer(lease), 0x5a, BYTES);
    cuda->stream_synchronize(NULL);
    check(run_child(spec.name), "%s: another process sees the same bytes", kind);
    cuda->copy_from_device(tail, device_pointer(lease) + BYTES - 16, 16);
    check(tail[0] == 0xc3 && tail[15] == 0xc3, "%s: what it writes is seen here", kind);
    if (check(hbm_attach(session, spec.name, HBM_RW, 0, 1000, &again) == 0, "%s: attaches twice", kind)) {
        check(hbm_pointer(again) == hbm_pointer(lease), "%s: the second attach has the same pointer", kind);
        /* Waited for: the next detach unmaps, and would take the memory from under a running memset. */
        check(hbm_detach(again) == 0 && cuda->memset_d8(device_pointer(lease), 1, BYTES) == 0 &&
                  cuda->stream_synchronize(NULL) == 0,
              "%s: the memory outlives the first detach", kind);
    }
    check(hbm_detach(lease) == 0, "%s: detaches", kind);
    check(hbm_attach(session, spec.name, HBM_RO, 0, 0, &lease) == HBM_E_NOT_FOUND,
          "%s: it is freed with its last lease", kind);
}

static void move(hbm_session *session, unsigned device)
{
    struct hbm_spec spec = {.size = BYTES, .device = device, .name = "client_gpu.move", .flags = HBM_KEEP};
    static unsigned char bytes[BYTES];
    void *legacy_stream = NULL;
    struct hbm_info info;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0, "allocates a buffer to move"))
        return;
    for (unsigned i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    cuda->copy_to_device(device_pointer(lease), bytes, BYTES);
    void *before = hbm_pointer(lease);
    check(hbm_unlock(lease, &legacy_stream, 1) == 0, "unlocks behind the work queued on a stream");
    check(hbm_offload(session, spec.name, HBM_TIER_HOST, 0, NULL) == 0, "offloads what is unlocked");
    hbm_lease_info(lease, &info);
    check(!info.pointer, "an offloaded buffer is not mapped");
    check(hbm_lock(lease, 10000) == 0, "a lock brings it back");
    check(hbm_pointer(lease) == before, "at the same address");
    check(holds(lease, bytes, BYTES), "with the same bytes");
    check(hbm_unlock(lease, NULL, 0) == 0 && hbm_lock(lease, 0) == 0, "locks resident memory without waiting");
    check(hbm_offload(session, spec.name, HBM_TIER_HOST, 0, NULL) != 0, "what is locked is not taken away");
    check(hbm_safepoint(session, &legacy_stream, 1, 10000) == 0 && holds(lease, bytes, BYTES),
          "a safe point leaves it locked and whole");
    hbm_lease_info(lease, &info);
    check(hbm_detach(lease) == 0 && hbm_free(session, info.id) == 0, "detaches and frees it");
}

static void compress(hbm_session *session, unsigned device)
{
    struct hbm_spec spec = {.device = device,
                            .dtype = HBM_F32,
                            .rank = 2,
                            .dims = {ROWS, COLUMNS},
                            .name = "client_gpu.compress",
                            .flags = HBM_KEEP};
    struct hbm_compress how = {.sel = spec.name, .codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL};
    static float values[ROWS * COLUMNS];
    struct hbm_receipt receipt;
    struct hbm_info info;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0, "allocates a tensor to compress"))
        return;
    for (unsigned i = 0; i < ROWS * COLUMNS; i++)
        values[i] = sinf((float)i) * (float)(1 + i / COLUMNS);
    cuda->copy_to_device(device_pointer(lease), values, sizeof(values));
    hbm_detach(lease);
    if (!check(hbm_compress(session, &how, &receipt, NULL) == 0, "compresses to int8 per channel"))
        return;
    check(receipt.bytes_before == sizeof(values) && receipt.bytes_after < sizeof(values) / 3,
          "to less than a third");
    check(receipt.sqnr_db > 35 && receipt.elements == ROWS * COLUMNS, "at %.1f dB", receipt.sqnr_db);
    if (!check(hbm_attach(session, spec.name, HBM_RO, 0, 10000, &lease) == 0, "attaches the compressed tensor"))
        return;
    hbm_lease_info(lease, &info);
    check(info.encoding.codec == HBM_CODEC_INT8 && info.dtype == HBM_F32 && info.rank == 2,
          "its logical form stays, its stored form is described");
    check(hbm_detach(lease) == 0 && hbm_free(session, info.id) == 0, "detaches and frees the tensor");
}

int main(int argc, char **argv)
{
    hbm_session *session;

    if (argc < 2) {
        fprintf(stderr, "usage: client_gpu RUNTIME_DIR\n");
        return 2;
    }
    self = argv[0];
    dir = argv[1];
    if (argc == 3)
        return attach_in_child(argv[2]);
    if (!use_gpu()) {
        printf("waived: %s\n", hbm_last_error_detail());
        return WAIVED;
    }
    int device = -1;
    if (check(hbm_open(&(struct hbm_options){.runtime_dir = dir}, &session) == 0, "opens a session")) {
        device = find_cuda_device(session);
        if (check(device >= 0, "the daemon serves a GPU")) {
            share(session, (unsigned)device, HBM_HANDLE_FD);
            share(session, (unsigned)device, HBM_HANDLE_CUDA_IPC);
            move(session, (unsigned)device);
            compress(session, (unsigned)device);
        }
        hbm_close(session);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
