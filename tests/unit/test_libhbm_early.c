/* hbm_lock_on, against the daemon that speaks the protocol with memfds, and a driver whose streams are lists of what they wait
 * for: a stream has come so far as its words are open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>

#include "client/lib/cuda_driver.h"
#include "client/lib/error.h"
#include "tests/unit/libhbm_test.h"

/* ---- A driver ---- */

#define GATES 256

static struct {
    const _Atomic uint32_t *words[GATES];
    uint32_t values[GATES];
    _Atomic unsigned n; /* waits queued on the only stream */
    CUresult refuses_waits;
    int capturing;
    _Atomic unsigned mapped, synchronized;
} gpu;

static bool gate_is_open(unsigned i)
{
    return (int32_t)(*gpu.words[i] - gpu.values[i]) >= 0;
}

static bool stream_has_come_to(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!gate_is_open(i))
            return false;
    return true;
}

struct CUevent_st {
    unsigned at;
};

static CUresult zero_device_count(int *n) { return *n = 1, 0; }
static CUresult zero_device_get(CUdevice *device, int i) { return *device = i, 0; }
static CUresult zero_uuid(CUuuid *uuid, CUdevice device) { return memset(uuid, device, sizeof(*uuid)), 0; }
static CUresult zero_peer(int *can, CUdevice a, CUdevice b) { return (void)a, (void)b, *can = 0, 0; }
static CUresult zero_retain(CUcontext *context, CUdevice device) { return (void)device, *context = (CUcontext)&gpu, 0; }
static CUresult zero_current(CUcontext *context) { return *context = (CUcontext)&gpu, 0; }
static CUresult zero_set(CUcontext context) { return (void)context, 0; }
static CUresult zero_of_context(CUdevice *device) { return *device = 0, 0; }
static CUresult zero_free(CUdeviceptr at, size_t size) { return munmap((void *)(uintptr_t)at, size); }
static CUresult zero_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t n)
{
    return (void)at, (void)size, (void)access, (void)n, 0;
}

static CUresult zero_import(CUmemGenericAllocationHandle *handle, void *fd, int type)
{
    (void)type;
    *handle = (CUmemGenericAllocationHandle)dup((int)(intptr_t)fd);
    return 0;
}

static CUresult zero_release(CUmemGenericAllocationHandle handle)
{
    return close((int)handle);
}

static CUresult zero_reserve(CUdeviceptr *at, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags)
{
    (void)align, (void)hint, (void)flags;
    *at = (uintptr_t)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return 0;
}

static CUresult zero_map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    (void)offset, (void)flags;
    MUST(mmap((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle, 0) != MAP_FAILED);
    gpu.mapped++;
    return 0;
}

/* What is queued on the stream uses what is mapped. */
static CUresult zero_unmap(CUdeviceptr at, size_t size)
{
    MUST(stream_has_come_to(gpu.n));
    MUST(mmap((void *)(uintptr_t)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    gpu.mapped--;
    return 0;
}

static CUresult zero_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(**event));
    return 0;
}

static CUresult zero_event_record(CUevent event, CUstream stream)
{
    (void)stream;
    event->at = gpu.n;
    return 0;
}

static CUresult zero_event_query(CUevent event)
{
    return stream_has_come_to(event->at) ? 0 : 600;
}

static CUresult zero_event_synchronize(CUevent event)
{
    while (!stream_has_come_to(event->at))
        sched_yield();
    return 0;
}

static CUresult zero_event_destroy(CUevent event)
{
    free(event);
    return 0;
}

static CUresult zero_stream_synchronize(CUstream stream)
{
    MUST(stream == (CUstream)&gpu && gpu.mapped);
    gpu.synchronized++;
    return 0;
}

static CUresult zero_capturing(CUstream stream, int *status)
{
    (void)stream;
    *status = gpu.capturing;
    return 0;
}

static CUresult zero_wait_value(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
    MUST(!stream && !flags && gpu.n < GATES);
    if (gpu.refuses_waits)
        return gpu.refuses_waits;
    gpu.words[gpu.n] = (const _Atomic uint32_t *)(uintptr_t)at;
    gpu.values[gpu.n] = value;
    gpu.n++;
    return 0;
}

static CUresult zero_register(void *at, size_t size, unsigned flags)
{
    return (void)at, (void)size, (void)flags, 0;
}

static CUresult zero_host_address(CUdeviceptr *at, void *there, unsigned flags)
{
    return (void)flags, *at = (uintptr_t)there, 0;
}

const struct cuda_driver *__wrap_cuda_driver(void);
const struct cuda_driver *__wrap_cuda_driver(void)
{
    static const struct cuda_driver driver = {
        .device_count = zero_device_count,
        .device_get = zero_device_get,
        .device_uuid = zero_uuid,
        .can_access_peer = zero_peer,
        .primary_retain = zero_retain,
        .context_current = zero_current,
        .context_set = zero_set,
        .context_device = zero_of_context,
        .import = zero_import,
        .reserve = zero_reserve,
        .address_free = zero_free,
        .map = zero_map,
        .unmap = zero_unmap,
        .set_access = zero_access,
        .release = zero_release,
        .event_create = zero_event_create,
        .event_record = zero_event_record,
        .event_query = zero_event_query,
        .event_synchronize = zero_event_synchronize,
        .event_destroy = zero_event_destroy,
        .stream_synchronize = zero_stream_synchronize,
        .stream_is_capturing = zero_capturing,
        .stream_wait_value = zero_wait_value,
        .host_register = zero_register,
        .host_address = zero_host_address,
    };

    return &driver;
}

int __wrap_set_cuda_error(const char *call, CUresult result);
int __wrap_set_cuda_error(const char *call, CUresult result)
{
    return set_error(HBM_E_CUDA, "%s: %d", call, result);
}

/* ---- Tests ---- */

static int start(void **state)
{
    memset(&gpu, 0, sizeof(gpu));
    int error = start_fake(state);
    fake.cuda = true;
    return error;
}

/* "bN", away, with the first bytes of its buffer set, as they will come. */
static hbm_lease *attach_away(hbm_session *session, unsigned arena, const char *bytes)
{
    char name[] = {'b', (char)('0' + arena), 0};
    hbm_lease *lease;

    MUST(pwrite(fake.fds[arena], bytes, strlen(bytes) + 1, 256) > 0);
    fake.away[arena] = true;
    MUST(hbm_attach(session, name, HBM_RW, HBM_UNLOCKED, 0, &lease) == 0);
    fake.comes = true;
    return lease;
}

static void a_stream_waits_for_the_bytes_and_the_call_does_not(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was");
    struct hbm_info info;

    (void)state;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    assert_int_equal(gpu.n, 1);
    assert_false(stream_has_come_to(1));
    assert_true(word_of(2) & LOCKWORD_AWAY);
    hbm_lease_info(lease, &info);
    assert_ptr_equal(info.pointer, hbm_pointer(lease));
    assert_int_equal(info.tier, HBM_TIER_DEVICE);
    EVENTUALLY(fake.arriving);
    fake_arrive(0);
    EVENTUALLY(stream_has_come_to(1));
    assert_string_equal(hbm_pointer(lease), "as it was");
    assert_int_equal(hbm_unlock(lease, (void *[]){NULL}, 1), 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), HBM_E_INVALID); /* once */
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    assert_int_equal(gpu.n, 1);
    assert_int_equal(fake.locks, 1);
    hbm_close(session);
    assert_int_equal(gpu.mapped, 0);
}

static void what_is_back_already_keeps_no_stream_waiting(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 1, "here");

    (void)state;
    fake.comes = false;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    assert_int_equal(gpu.n, 0);
    assert_string_equal(hbm_pointer(lease), "here");
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    hbm_close(session);
}

/* FAULTS 21, 24 */
static void what_did_not_come_is_said_by_the_next_call_and_can_be_had_again(void **state)
{
    static const int errors[] = {HBM_E_CHECKSUM, HBM_E_WORKER_DIED, HBM_E_CANCELLED};
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was"), *other;

    (void)state;
    assert_int_equal(hbm_attach(session, "b2", HBM_RW, HBM_UNLOCKED, 0, &other), 0);
    for (unsigned i = 0; i < 3; i++) {
        unsigned released = fake.released;
        fake.comes = true;
        assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
        EVENTUALLY(fake.arriving);
        fake_arrive(errors[i]);
        EVENTUALLY(stream_has_come_to(i + 1)); /* it goes on, in memory that is mapped */
        assert_int_equal(gpu.mapped, 1);
        assert_int_equal(hbm_lock(other, 1000), errors[i]);
        assert_int_equal(hbm_lock_on(lease, NULL, 1000), errors[i]);
        assert_int_equal(hbm_unlock(lease, (void *[]){NULL}, 1), errors[i]);
        assert_non_null(strstr(hbm_last_error_detail(), "it did not come"));
        assert_int_equal(gpu.mapped, 0);
        EVENTUALLY(fake.released == released + 1);
        fake.comes = false;
        assert_int_equal(hbm_unlock(lease, NULL, 0), HBM_E_INVALID);
        assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
        assert_string_equal(hbm_pointer(lease), "as it was");
        assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
        ask_back(2);
        EVENTUALLY(fake.released == released + 2);
        EVENTUALLY(word_of(2) & LOCKWORD_AWAY);
    }
    hbm_close(session);
    assert_int_equal(gpu.mapped, 0);
}

/* FAULTS 26 */
static void a_daemon_that_dies_leaves_no_stream_waiting(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was");

    (void)state;
    fake.cut_at = WIRE_ARRIVED;
    assert_int_equal(hbm_lock_on(lease, NULL, 60000), 0);
    EVENTUALLY(stream_has_come_to(1));
    assert_int_equal(hbm_unlock(lease, (void *[]){NULL}, 1), HBM_E_RETRY);
    EVENTUALLY(fake.resumes == 1);
    fake.comes = false;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    assert_string_equal(hbm_pointer(lease), "as it was");
    hbm_close(session);
    close(fake.early_fd);
}

static void a_daemon_that_does_not_answer_leaves_no_stream_waiting(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was");

    (void)state;
    assert_int_equal(hbm_lock_on(lease, NULL, 1), 0);
    EVENTUALLY(stream_has_come_to(1));
    assert_int_equal(hbm_unlock(lease, (void *[]){NULL}, 1), HBM_E_TIMEOUT);
    assert_non_null(strstr(hbm_last_error_detail(), "does not answer"));
    fake_arrive(0); /* nobody listens any more */
    fake.comes = false;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    hbm_close(session);
}

static void *arrive_soon(void *unused)
{
    (void)unused;
    while (!fake.arriving)
        usleep(1000);
    usleep(20000);
    fake_arrive(0);
    return NULL;
}

/* What is unlocked is fenced behind what the stream waits for, and the session's thread waits for that fence: while it does,
 * somebody else has to hear that the bytes have come. */
static void an_arena_asked_back_behind_the_same_stream_keeps_nobody_waiting(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *resident = attach(session, "b1"), *lease = attach_away(session, 2, "as it was");

    (void)state;
    assert_int_equal(hbm_lock_on(lease, NULL, 10000), 0);
    assert_int_equal(hbm_unlock(resident, (void *[]){NULL}, 1), 0);
    ask_back(1);
    EVENTUALLY(word_of(1) & LOCKWORD_AWAY); /* the thread is at it */
    EVENTUALLY(fake.arriving);
    assert_int_equal(fake.released, 0);
    fake_arrive(0);
    EVENTUALLY(fake.released == 1);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    hbm_close(session);
}

static void whoever_unlocks_detaches_or_locks_it_waits_for_the_bytes(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        hbm_session *session = open_with(0);
        hbm_lease *lease = attach_away(session, 2, "as it was"), *other = NULL;
        pthread_t thread;
        assert_int_equal(hbm_lock_on(lease, NULL, 10000), 0);
        assert_int_equal(pthread_create(&thread, NULL, arrive_soon, NULL), 0);
        if (how == 0) {
            assert_int_equal(hbm_unlock(lease, (void *[]){NULL}, 1), 0);
        } else if (how == 1) {
            assert_int_equal(hbm_lock(lease, 1000), 0);
            assert_string_equal(hbm_pointer(lease), "as it was");
        } else if (how == 2) {
            assert_int_equal(hbm_attach(session, "b2", HBM_RW, HBM_UNLOCKED, 0, &other), 0);
            assert_int_equal(hbm_lock(other, 1000), 0);
        } else {
            assert_int_equal(hbm_detach(lease), 0);
        }
        pthread_join(thread, NULL);
        hbm_close(session);
        assert_int_equal(gpu.mapped, 0);
        EVENTUALLY(fake.socket == -1);
    }
}

static void a_lease_that_goes_takes_along_what_did_not_come(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was"), *other;

    (void)state;
    assert_int_equal(hbm_attach(session, "b2", HBM_RW, HBM_UNLOCKED, 0, &other), 0);
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), 0);
    EVENTUALLY(fake.arriving);
    fake_arrive(HBM_E_IO);
    assert_int_equal(hbm_detach(lease), 0);
    assert_int_equal(gpu.mapped, 0);
    fake.comes = false;
    assert_int_equal(hbm_lock(other, 1000), 0);
    assert_string_equal(hbm_pointer(other), "as it was");
    hbm_close(session);
}

static void where_no_stream_can_wait_the_cpu_does(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        bool fails = i & 1, alone = i & 2;
        hbm_session *session = open_with(alone ? HBM_NO_THREAD : 0);
        hbm_lease *lease = attach_away(session, 2, "as it was");
        pthread_t thread;
        gpu.refuses_waits = 801;
        fake.refuse_lock = alone && fails ? HBM_E_IO : 0;
        if (!alone && !fails)
            assert_int_equal(pthread_create(&thread, NULL, arrive_soon, NULL), 0);
        if (!alone && fails)
            fake.cut_at = WIRE_ARRIVED;
        assert_int_equal(hbm_lock_on(lease, NULL, 1000), fails ? (alone ? HBM_E_IO : HBM_E_RETRY) : 0);
        assert_int_equal(gpu.n, 0);
        assert_int_equal(gpu.mapped, !fails);
        if (!fails)
            assert_string_equal(hbm_pointer(lease), "as it was");
        assert_int_equal(hbm_unlock(lease, NULL, 0), fails ? HBM_E_INVALID : 0);
        if (!alone && !fails)
            pthread_join(thread, NULL);
        if (!alone && fails)
            close(fake.early_fd);
        fake.refuse_lock = 0;
        hbm_close(session);
        EVENTUALLY(fake.socket == -1);
    }
}

static void what_cannot_be_is_refused_and_nothing_is_asked(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach_away(session, 2, "as it was");

    (void)state;
    assert_int_equal(hbm_lock_on(lease, NULL, HBM_FOREVER), HBM_E_INVALID);
    gpu.capturing = 1;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), HBM_E_INVALID);
    assert_int_equal(fake.locks, 0);
    gpu.capturing = 0;
    fake.refuse_lock = HBM_E_NO_MEMORY;
    assert_int_equal(hbm_lock_on(lease, NULL, 1000), HBM_E_NO_MEMORY);
    assert_int_equal(gpu.n + gpu.mapped, 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), HBM_E_INVALID);
    fake.refuse_lock = 0;
    hbm_close(session);
}

static void a_models_groups_can_be_locked_so(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model;

    (void)state;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RW, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    ask_back(3);
    EVENTUALLY(fake.released == 1);
    fake.comes = true;
    assert_int_equal(hbm_model_lock_on(model, "g3", NULL, 1000), 0);
    assert_int_equal(hbm_model_lock_on(model, "g4", NULL, 1000), 0);
    assert_int_equal(gpu.n, 1);
    EVENTUALLY(fake.arriving);
    fake_arrive(0);
    assert_int_equal(hbm_model_unlock(model, "g3", (void *[]){NULL}, 1), 0);
    assert_int_equal(hbm_model_unlock(model, "g4", (void *[]){NULL}, 1), 0);

    /* All of them, or none. */
    ask_back(3);
    EVENTUALLY(fake.released == 2);
    fake.refuse_lock = HBM_E_NO_MEMORY;
    assert_int_equal(hbm_model_lock_on(model, NULL, NULL, 1000), HBM_E_NO_MEMORY);
    assert_int_equal(hbm_model_unlock(model, "g0", NULL, 0), HBM_E_INVALID);
    assert_int_equal(hbm_model_lock_on(model, "g9", NULL, 1000), HBM_E_NOT_FOUND);
    hbm_close(session);
}

/* By the symbols that torch's pluggable allocator takes. */
static void torch_has_the_gpu_of_its_number_and_gives_back_when_the_streams_work_is_done(void **state)
{
    hbm_session *session = open_with(0);
    hbm_claim *claim;

    (void)state;
    assert_int_equal(hbm_claim_session(session, &claim), 0);
    assert_int_equal(hbm_torch_use(claim, "g"), 0);
    assert_null(hbm_torch_alloc(BYTES, 1, &gpu));
    assert_non_null(strstr(hbm_last_error_detail(), "device 1 of this process is none"));
    void *pointer = hbm_torch_alloc(BYTES, 0, &gpu);
    assert_non_null(pointer);
    assert_int_equal(gpu.mapped, 1);
    assert_int_equal(hbm_torch_use(NULL, NULL), 0);
    hbm_claim_unref(claim); /* the memory keeps its session */
    assert_int_equal(hbm_torch_unlock("g", (void *[]){NULL}, 1), 0);
    assert_int_equal(hbm_torch_unlock("g", NULL, 0), HBM_E_INVALID);
    assert_int_equal(hbm_torch_lock("another", 0), 0);
    assert_int_equal(hbm_torch_lock("g", 0), 0);
    hbm_torch_free(pointer, BYTES, 0, &gpu);
    assert_int_equal(gpu.synchronized, 1);
    assert_int_equal(gpu.mapped, 0);
    assert_int_equal(fake.detached, 1);
    assert_int_equal(fake.byes, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop_fake)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_stream_waits_for_the_bytes_and_the_call_does_not),
        CASE(what_is_back_already_keeps_no_stream_waiting),
        CASE(what_did_not_come_is_said_by_the_next_call_and_can_be_had_again),
        CASE(a_daemon_that_dies_leaves_no_stream_waiting),
        CASE(a_daemon_that_does_not_answer_leaves_no_stream_waiting),
        CASE(an_arena_asked_back_behind_the_same_stream_keeps_nobody_waiting),
        CASE(whoever_unlocks_detaches_or_locks_it_waits_for_the_bytes),
        CASE(a_lease_that_goes_takes_along_what_did_not_come),
        CASE(where_no_stream_can_wait_the_cpu_does),
        CASE(what_cannot_be_is_refused_and_nothing_is_asked),
        CASE(a_models_groups_can_be_locked_so),
        CASE(torch_has_the_gpu_of_its_number_and_gives_back_when_the_streams_work_is_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
