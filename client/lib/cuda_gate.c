/* Gates: words of host memory that streams wait for. Whoever opens one stores a number and calls no driver, whose locks another
 * thread may hold while it waits for that very stream. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "client/lib/cuda_place.h"
#include "client/lib/error.h"

#define WORDS 1024

/* Each counts up for ever: a stream that comes by late finds what it waits for, or more. */
static struct {
    pthread_mutex_t mutex;
    _Atomic uint32_t *words; /* NULL until the first is wanted; never given back */
    CUdeviceptr address;     /* the same, for devices */
    uint64_t used[WORDS / 64];
    uint32_t last[WORDS];
} gates = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Locked. Not in a forked child: the parent must not be left with a copy of what the device looks at. */
static int make_words(const struct cuda_driver *cuda)
{
    size_t bytes = WORDS * sizeof(uint32_t);
    void *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (words == MAP_FAILED)
        return set_system_error("mmap", errno);
    madvise(words, bytes, MADV_DONTFORK);
    CUresult result = cuda->host_register(words, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (!result)
        result = cuda->host_address(&gates.address, words, 0);
    if (result) {
        munmap(words, bytes);
        return set_cuda_error("cuMemHostRegister", result);
    }
    gates.words = words;
    return 0;
}

static int take_gate(const struct cuda_driver *cuda, struct gate *gate)
{
    int error = 0;

    pthread_mutex_lock(&gates.mutex);
    if (!gates.words)
        error = make_words(cuda);
    unsigned i = 0;
    while (i < WORDS && gates.used[i / 64] >> (i % 64) & 1)
        i++;
    if (!error && i == WORDS)
        error = set_error(HBM_E_LIMIT, "%u streams wait for memory already", WORDS);
    if (!error) {
        gates.used[i / 64] |= (uint64_t)1 << (i % 64);
        *gate = (struct gate){.index = i, .value = ++gates.last[i]};
    }
    pthread_mutex_unlock(&gates.mutex);
    return error;
}

void gate_open(const struct gate *gate)
{
    atomic_store_explicit(&gates.words[gate->index], gate->value, memory_order_release);
    pthread_mutex_lock(&gates.mutex);
    gates.used[gate->index / 64] &= ~((uint64_t)1 << (gate->index % 64));
    pthread_mutex_unlock(&gates.mutex);
}

/* In the context that a fence of the same stream is made in. */
static CUcontext enter(const struct cuda_driver *cuda, const struct place *place)
{
    CUcontext old = NULL;

    cuda->context_current(&old);
    cuda_enter(cuda, old ? old : place->cuda->context);
    return old;
}

int cuda_check_stream(void *stream)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext context = NULL;
    int status = 0;

    if (!cuda)
        return HBM_E_NO_CUDA;
    if (cuda->context_current(&context) || !context) /* it has no stream that could be */
        return 0;
    CUresult result = cuda->stream_is_capturing(stream, &status);
    if (result)
        return set_cuda_error("cuStreamIsCapturing", result);
    return status ? set_error(HBM_E_INVALID, "the stream is being captured: lock before, with hbm_lock") : 0;
}

int cuda_hold_back(struct place *place, void *stream, struct gate *gate)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext old = enter(cuda, place);
    int error = take_gate(cuda, gate);

    if (!error) {
        CUresult result = cuda->stream_wait_value(stream, gates.address + gate->index * sizeof(uint32_t), gate->value,
                                                  CU_STREAM_WAIT_VALUE_GEQ);
        if (result) {
            gate_open(gate);
            error = set_cuda_error("cuStreamWaitValue32", result);
        }
    }
    cuda_enter(cuda, old);
    return error;
}
