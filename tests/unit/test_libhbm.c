/* libhbm against a daemon that speaks the protocol with memfds, and misbehaves when told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/fake_daemon.h"

static void opening_learns_the_devices(void **state)
{
    struct hbm_device_info device;
    hbm_session *session = open_with(0);

    (void)state;
    assert_int_equal(hbm_device_count(session), 1);
    assert_int_equal(hbm_device_get(session, 0, &device), 0);
    assert_string_equal(device.uuid, "host");
    assert_int_equal(hbm_device_get(session, 1, &device), HBM_E_NO_DEVICE);
    assert_int_equal(hbm_event_fd(session), HBM_E_INVALID);
    hbm_close(session);
    hbm_close(NULL);
}

static void without_a_daemon_the_error_names_the_path(void **state)
{
    hbm_session *session;

    (void)state;
    assert_int_equal(hbm_open(&(struct hbm_options){.runtime_dir = "/nonexistent"}, &session), HBM_E_NO_DAEMON);
    assert_non_null(strstr(hbm_last_error_detail(), "/nonexistent/hbmd.sock"));
    assert_null(session);
    assert_string_equal(hbm_strerror(HBM_E_FORKED),
                        "the session belongs to the parent process; open a new session after fork");
}

static void another_protocol_version_is_named_when_opening(void **state)
{
    hbm_session *session;

    (void)state;
    fake.refuse_hello = true;
    assert_int_equal(hbm_open(&(struct hbm_options){.runtime_dir = fake.dir}, &session), HBM_E_BAD_VERSION);
    assert_string_equal(hbm_last_error_detail(),
                        "the peer speaks another protocol version: this daemon speaks version 2, you speak 1; "
                        "install daemon and library of the same release");
}

static void a_socket_planted_by_another_user_is_refused(void **state)
{
    char path[128];
    hbm_session *session;
    int ready[2], end = 0;

    (void)state;
    if (geteuid() != 0)
        skip();
    snprintf(path, sizeof(path), "%s/planted", fake.dir);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(chmod(fake.dir, 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        if (setuid(65534) < 0)
            _exit(1);
        listen_at(path);
        end = (int)write(ready[1], "x", 1);
        pause();
        _exit(end);
    }
    assert_int_equal(read(ready[0], &end, 1), 1);
    assert_int_equal(hbm_open(&(struct hbm_options){.socket = path}, &session), HBM_E_DENIED);
    assert_non_null(strstr(hbm_last_error_detail(), "uid 65534"));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    unlink(path);
    close(ready[0]);
    close(ready[1]);
}

static void a_daemon_of_another_user_than_wanted_is_refused(void **state)
{
    struct hbm_options options = {.runtime_dir = fake.dir, .server_uid = geteuid() + 1};
    hbm_session *session;
    char own[16];

    (void)state;
    assert_int_equal(hbm_open(&options, &session), HBM_E_DENIED);
    options.server_uid = 0;
    setenv("HBM_SERVER_UID", "4294967", 1);
    assert_int_equal(hbm_open(&options, &session), HBM_E_DENIED);
    assert_non_null(strstr(hbm_last_error_detail(), "4294967"));
    setenv("HBM_SERVER_UID", "root", 1);
    assert_int_equal(hbm_open(&options, &session), HBM_E_INVALID);
    snprintf(own, sizeof(own), "%u", geteuid());
    setenv("HBM_SERVER_UID", own, 1);
    assert_int_equal(hbm_open(&options, &session), HBM_OK);
    hbm_close(session);
    unsetenv("HBM_SERVER_UID");
}

static void bad_arguments_are_refused_before_anything_is_sent(void **state)
{
    char long_name[300];
    hbm_lease *lease = NULL;
    hbm_session *session = open_with(0);
    unsigned before = fake.requests;

    (void)state;
    memset(long_name, 'x', sizeof(long_name));
    long_name[299] = 0;
    assert_int_equal(hbm_attach(session, long_name, HBM_RO, 0, 0, &lease), HBM_E_INVALID);
    assert_non_null(strstr(hbm_last_error_detail(), "name is longer than 255 bytes"));
    assert_int_equal(hbm_attach(session, NULL, HBM_RO, 0, 0, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_attach(session, "b0", 7, 0, 0, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_attach(session, "b0", HBM_RO, 64, 0, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_attach(session, "b0", HBM_RO, 0, 0, NULL), HBM_E_INVALID);
    assert_int_equal(hbm_attach(NULL, "b0", HBM_RO, 0, 0, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_alloc(session, &(struct hbm_spec){.size = 1, .dtype = 99}, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_alloc(session, &(struct hbm_spec){0}, &lease), HBM_E_INVALID);
    assert_int_equal(hbm_detach(NULL), HBM_E_INVALID);
    assert_int_equal(hbm_lock(NULL, 0), HBM_E_INVALID);
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_DEVICE, 0, NULL), HBM_E_INVALID);
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_DISK, HBM_LIVE, NULL), HBM_E_INVALID);
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, HBM_IN_PLACE, NULL), HBM_E_INVALID);
    assert_int_equal(hbm_fill(session, -1, NULL, 0, NULL), HBM_E_INVALID);
    assert_null(lease);
    assert_int_equal(fake.requests, before);
    hbm_close(session);
}

static void *attach_and_detach(void *argument)
{
    hbm_session *session = argument;
    static _Atomic unsigned next;
    char name[] = "b0";

    for (unsigned i = 0; i < 200; i++) {
        name[1] = (char)('0' + next++ % ARENAS);
        hbm_lease *lease = attach(session, name);
        MUST(is_mapped(hbm_pointer(lease)));
        MUST(hbm_unlock(lease, NULL, 0) == 0);
        if (i % 16 == 0)
            ask_back((unsigned)(name[1] - '0'));
        MUST(hbm_lock(lease, 1000) == 0);
        MUST(is_mapped(hbm_pointer(lease)));
        MUST(hbm_detach(lease) == 0);
        if (i % 32 == 0)
            MUST(hbm_safepoint(session, NULL, 0, 1000) == 0);
    }
    return NULL;
}

static void threads_share_a_session_while_arenas_are_asked_back(void **state)
{
    hbm_session *session = open_with(0);
    pthread_t threads[8];

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, attach_and_detach, session);
    for (unsigned i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(fake.detached, 8 * 200);
    hbm_close(session);
}

static void *attach_b0(void *session)
{
    return attach(session, "b0");
}

static void replies_may_come_in_another_order_than_requests(void **state)
{
    hbm_session *session = open_with(0);
    struct hbm_info first, second;
    pthread_t thread;
    void *lease;

    (void)state;
    fake.defer = true;
    pthread_create(&thread, NULL, attach_b0, session);
    EVENTUALLY(!fake.defer);
    hbm_lease_info(attach(session, "b1"), &second);
    pthread_join(thread, &lease);
    hbm_lease_info(lease, &first);
    assert_string_equal(first.name, "b0");
    assert_string_equal(second.name, "b1");
    hbm_close(session);
}

static void events_between_replies_disturb_no_call(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags <= HBM_NO_THREAD; flags++) {
        fake.event_first = true;
        hbm_session *session = open_with(flags);
        for (unsigned i = 0; i < 50; i++)
            assert_int_equal(hbm_detach(attach(session, "b2")), 0);
        hbm_close(session);
    }
}

static void a_model_comes_in_one_reply_of_several_packets(void **state)
{
    hbm_session *session = open_with(0);
    struct hbm_info info;
    hbm_model *model;
    hbm_lease *lease;
    size_t size;

    (void)state;
    assert_int_equal(pwrite(fake.fds[6], "six", 3, 0), 3);
    assert_int_equal(hbm_model_attach(session, "model", HBM_RW, HBM_WAIT, 1000, &model), 0);
    assert_int_equal(hbm_model_count(model), ARENAS);
    assert_int_equal(hbm_model_find(model, "t6"), 6);
    assert_int_equal(hbm_model_find(model, "t66"), HBM_E_NOT_FOUND);
    assert_memory_equal(hbm_model_metadata(model, &size), "{\"k\":1}", 7);
    hbm_model_buffer(model, 6, &info);
    assert_string_equal(info.group, "g6");
    assert_memory_equal(info.pointer, "six", 3);

    lease = attach(session, "b6");
    assert_ptr_equal((char *)hbm_pointer(lease), (char *)info.pointer + 256);
    assert_int_equal(word_of(6) & LOCKWORD_COUNT, 2);
    assert_int_equal(hbm_model_unlock(model, "g6", NULL, 0), 0);
    assert_int_equal(hbm_model_unlock(model, "g6", NULL, 0), HBM_E_INVALID);
    assert_int_equal(hbm_model_unlock(model, "none", NULL, 0), HBM_E_NOT_FOUND);
    assert_int_equal(word_of(6) & LOCKWORD_COUNT, 1);
    assert_int_equal(hbm_model_lock(model, NULL, 0), 0);
    assert_int_equal(word_of(0) & LOCKWORD_COUNT, 2);
    assert_int_equal(hbm_model_detach(model), 0);
    assert_int_equal(word_of(6) & LOCKWORD_COUNT, 1);
    assert_memory_equal((char *)hbm_pointer(lease) - 256, "six", 3);
    assert_false(word_of(0) & LOCKWORD_COUNT);
    hbm_close(session);
}

static void publishing_gives_memory_to_fill_and_ends_with_a_commit(void **state)
{
    struct hbm_publish_buffer buffers[] = {
        {.name = "t0", .group = "g0", .rank = 1, .dims = {4096}},
        {.name = "t1", .group = "g1", .rank = 1, .dims = {4096}},
        {.name = "t0", .group = "g1", .rank = 1, .dims = {4096}},
    };
    struct hbm_publish spec = {.name = "m", .buffers = buffers, .n_buffers = 3};
    hbm_session *session = open_with(0);
    struct hbm_info info;
    hbm_model *model;
    int must_build = 0;

    (void)state;
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), HBM_E_INVALID);
    assert_non_null(strstr(hbm_last_error_detail(), "t0 is listed twice"));
    spec.n_buffers = 2;
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), 0);
    assert_int_equal(must_build, 1);
    hbm_model_buffer(model, 1, &info);
    memset(info.pointer, 9, info.size);
    assert_int_equal(hbm_publish_commit(model), 0);
    assert_int_equal(fake.commits, 1);
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), 0);
    assert_int_equal(hbm_model_detach(model), 0); /* of a half-built model: an abort */
    assert_int_equal(fake.commits, 2);
    hbm_close(session);
}

static void *attach_and_expect_the_end(void *session)
{
    hbm_lease *lease;

    MUST(hbm_attach(session, "b0", HBM_RW, 0, 0, &lease) == HBM_E_DISCONNECTED);
    MUST(strstr(hbm_last_error_detail(), "a limit of this account is reached: you ask too much"));
    return NULL;
}

static void a_disconnect_ends_all_calls_with_its_reason_and_memory_stays(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");
    pthread_t threads[4];

    (void)state;
    fake.vanish = true;
    for (unsigned i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, attach_and_expect_the_end, session);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    memset(hbm_pointer(lease), 1, 4096);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    assert_int_equal(hbm_lock(lease, 0), 0);
    assert_int_equal(hbm_free(session, 1), HBM_E_DISCONNECTED);
    assert_int_equal(hbm_dispatch(session), HBM_E_DISCONNECTED);
    assert_int_equal(hbm_detach(lease), HBM_E_DISCONNECTED);
    hbm_close(session);
}

static void a_forked_childs_copy_is_inert_and_the_parents_lives(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");
    unsigned fds = count_fds();
    int status;

    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct hbm_info info;
        bool good = hbm_lock(lease, 0) == HBM_E_FORKED && hbm_detach(lease) == HBM_E_FORKED &&
                    hbm_device_count(session) == HBM_E_FORKED && count_fds() == fds - 4;
        hbm_lease_info(lease, &info);
        good = good && !info.pointer && !is_mapped(hbm_pointer(lease));
        hbm_close(session);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memset(hbm_pointer(lease), 1, 4096);
    assert_int_equal(hbm_detach(lease), 0);
    hbm_close(session);
}

static void attaching_twice_gives_one_pointer_unmapped_with_the_last_lease(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *first = attach(session, "b3"), *second = attach(session, "b3");
    void *pointer = hbm_pointer(first);

    (void)state;
    assert_ptr_equal(pointer, hbm_pointer(second));
    assert_int_equal(word_of(3) & LOCKWORD_COUNT, 2);
    assert_int_equal(hbm_detach(first), 0);
    assert_true(is_mapped(pointer));
    assert_int_equal(word_of(3) & LOCKWORD_COUNT, 1);
    assert_int_equal(hbm_detach(second), 0);
    assert_false(is_mapped(pointer));
    assert_int_equal(fake.detached, 2);
    hbm_close(session);
}

static void an_unlocked_arena_asked_back_is_let_go_by_the_thread(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4");
    char *pointer = hbm_pointer(lease);
    struct hbm_info info;

    (void)state;
    strcpy(pointer, "kept");
    hbm_unlock(lease, NULL, 0);
    ask_back(4);
    EVENTUALLY(fake.released == 1);
    hbm_lease_info(lease, &info);
    assert_null(info.pointer);
    assert_ptr_equal(hbm_pointer(lease), pointer);
    assert_int_equal(hbm_lock(lease, 1000), 0);
    assert_ptr_equal(hbm_pointer(lease), pointer);
    assert_string_equal(pointer, "kept");
    assert_int_equal(word_of(4) & LOCKWORD_COUNT, 1);
    hbm_close(session);
}

static void a_locked_arena_asked_back_is_let_go_by_the_last_unlock(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4");

    (void)state;
    ask_back(4);
    usleep(50000);
    assert_int_equal(hbm_lock(lease, 0), 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    assert_int_equal(fake.released, 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    EVENTUALLY(fake.released == 1);
    assert_true(word_of(4) & LOCKWORD_AWAY);
    hbm_close(session);
}

static void a_lock_on_an_arena_asked_back_lets_go_first(void **state)
{
    hbm_session *session = open_with(HBM_NO_THREAD);
    hbm_lease *lease = attach(session, "b4");

    (void)state;
    hbm_unlock(lease, NULL, 0);
    lockword_request(&fake.words[SLOT(4)]);
    assert_int_equal(hbm_lock(lease, 1000), 0);
    assert_int_equal(fake.released, 1);
    assert_int_equal(fake.locks, 1);
    hbm_close(session);
}

static void a_safe_point_gives_back_and_retakes_what_is_locked(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *one = attach(session, "b1"), *again = attach(session, "b1"), *two = attach(session, "b2");
    char *pointer = hbm_pointer(one);

    (void)state;
    strcpy(pointer, "kept");
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
    assert_int_equal(fake.released, 0);
    ask_back(1);
    ask_back(2);
    assert_int_equal(hbm_unlock(two, NULL, 0), 0);
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
    assert_int_equal(fake.released, 2);
    assert_int_equal(fake.locks, 1);
    assert_int_equal(word_of(1) & LOCKWORD_COUNT, 2);
    assert_true(word_of(2) & LOCKWORD_AWAY);
    assert_string_equal(pointer, "kept");
    assert_int_equal(hbm_unlock(again, NULL, 0), 0);

    fake.refuse_lock = HBM_E_NO_MEMORY;
    ask_back(1);
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), HBM_E_NO_MEMORY);
    assert_int_equal(hbm_unlock(one, NULL, 0), HBM_E_INVALID);
    fake.refuse_lock = 0;
    assert_int_equal(hbm_lock(one, 1000), 0);
    assert_string_equal(pointer, "kept");
    hbm_close(session);
}

/* Same address, same locks, and where it lies is told; a safe point of nobody who is asked changes nothing. */
static void what_is_mapped_says_whether_it_is_host_memory(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = NULL;
    struct hbm_info info;

    (void)state;
    assert_int_equal(hbm_attach(session, "b1", HBM_RW, HBM_IN_PLACE, 1000, &lease), 0);
    assert_int_equal(fake.attach_flags, WIRE_IN_PLACE);
    char *pointer = hbm_pointer(lease);
    strcpy(pointer, "kept");
    for (unsigned i = 0; i < 6; i++) {
        enum hbm_tier tier = i % 2 ? HBM_TIER_DEVICE : HBM_TIER_HOST;
        lockword_place(&fake.words[SLOT(1)], tier == HBM_TIER_HOST);
        ask_back(1);
        assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
        assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
        hbm_lease_info(lease, &info);
        assert_int_equal(info.tier, tier);
        assert_ptr_equal(info.pointer, pointer);
        assert_string_equal(pointer, "kept");
        assert_int_equal(fake.released, i + 1);
        assert_int_equal(word_of(1) & LOCKWORD_COUNT, 1);
        assert_int_equal(hbm_lock(lease, 0), 0); /* resident, wherever it is */
        assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    }
    assert_int_equal(fake.locks, 6);
    hbm_close(session);
}

static void locking_many_is_all_or_nothing(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *leases[] = {attach(session, "b5"), attach(session, "b6"), attach(session, "b7"), NULL};

    (void)state;
    leases[3] = leases[1];
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(hbm_unlock(leases[i], NULL, 0), 0);
    ask_back(6);
    ask_back(7);
    EVENTUALLY(fake.released == 2);
    fake.refuse_lock = HBM_E_NO_MEMORY;
    assert_int_equal(hbm_lock_many(leases, 4, 10), HBM_E_NO_MEMORY);
    assert_non_null(strstr(hbm_last_error_detail(), "the device is full of locked memory"));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(word_of(5 + i) & LOCKWORD_COUNT, 0);
        assert_int_equal(hbm_unlock(leases[i], NULL, 0), HBM_E_INVALID);
    }
    fake.refuse_lock = 0;
    assert_int_equal(hbm_lock_many(leases, 4, 1000), 0);
    assert_int_equal(fake.locks, 2);
    assert_int_equal(word_of(5) & LOCKWORD_COUNT, 1);
    assert_int_equal(word_of(6) & LOCKWORD_COUNT, 2);
    hbm_close(session);
}

static void unlocking_what_is_not_locked_is_refused(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *one = attach(session, "b1"), *other = attach(session, "b1");

    (void)state;
    assert_int_equal(hbm_unlock(one, NULL, 0), 0);
    assert_int_equal(hbm_unlock(one, NULL, 0), HBM_E_INVALID);
    assert_int_equal(word_of(1) & LOCKWORD_COUNT, 1);
    assert_int_equal(hbm_unlock(other, NULL, 2), HBM_E_INVALID);
    hbm_close(session);
}

static void an_unlocked_attach_maps_at_the_first_lock(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease;

    (void)state;
    fake.away[5] = true;
    assert_int_equal(hbm_attach(session, "b5", HBM_RW, HBM_UNLOCKED, 0, &lease), 0);
    assert_true(word_of(5) & LOCKWORD_AWAY);
    assert_non_null(hbm_pointer(lease));
    assert_int_equal(hbm_lock(lease, 1000), 0);
    memset(hbm_pointer(lease), 3, 4096);
    hbm_close(session);
}

static void a_grant_of_memory_that_the_arena_has_left_is_not_mapped(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *first = attach(session, "b2"), *second;

    (void)state;
    hbm_unlock(first, NULL, 0);
    fake.move_in_attach = true;
    second = attach(session, "b2");
    assert_int_equal(fake.locks, 1);
    strcpy(hbm_pointer(second), "new home");
    char bytes[9];
    assert_int_equal(pread(fake.fds[2], bytes, 9, 256), 9);
    assert_string_equal(bytes, "new home");
    hbm_close(session);
}

static void without_a_thread_the_callers_loop_lets_go(void **state)
{
    hbm_session *session = open_with(HBM_NO_THREAD);
    hbm_lease *one = attach(session, "b1"), *two = attach(session, "b2");
    struct pollfd event = {.fd = hbm_event_fd(session), .events = POLLIN};

    (void)state;
    assert_int_equal(poll(&event, 1, 0), 0);
    hbm_unlock(one, NULL, 0);
    ask_back(1);
    assert_int_equal(poll(&event, 1, 2000), 1);
    assert_int_equal(hbm_dispatch(session), 0);
    EVENTUALLY(fake.released == 1);
    assert_int_equal(poll(&event, 1, 0), 0);

    /* What a LOCK waits for may be in this very session. */
    hbm_unlock(two, NULL, 0);
    fake.ask_during_lock = 2;
    assert_int_equal(hbm_lock(one, 1000), 0);
    assert_int_equal(fake.released, 2);
    hbm_close(session);
}

static void a_process_out_of_descriptors_gives_the_lease_back(void **state)
{
    hbm_session *session = open_with(0);
    struct rlimit limit, none;
    hbm_lease *lease;

    (void)state;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    int error = hbm_attach(session, "b0", HBM_RW, 0, 0, &lease);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(error, HBM_E_SYSTEM);
    assert_non_null(strstr(hbm_last_error_detail(), "RLIMIT_NOFILE"));
    assert_int_equal(fake.detached, 1);
    assert_int_equal(hbm_detach(attach(session, "b0")), 0);
    hbm_close(session);
}

static void two_thousand_cycles_leave_the_descriptors_as_they_were(void **state)
{
    hbm_session *session = open_with(0);
    unsigned before = count_fds();

    (void)state;
    for (unsigned i = 0; i < 2000; i++)
        assert_int_equal(hbm_detach(attach(session, "b0")), 0);
    assert_int_equal(count_fds(), before);
    assert_int_equal(fake.detached, 2000);
    hbm_close(session);
}

static _Atomic unsigned trapped;

static void count_trap(int signal)
{
    (void)signal;
    trapped++;
}

/* Every system call but those that end a thread or a signal handler is trapped and counted. */
static bool trap_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *lock_under_seccomp(void *lease)
{
    if (!trap_calls())
        return (void *)-1;
    for (unsigned i = 0; i < 10000; i++)
        if (hbm_lock(lease, 0) || hbm_unlock(lease, NULL, 0))
            return (void *)-2;
    return (void *)(intptr_t)trapped;
}

/* A decode loop with a declared order. */
static void *go_round_under_seccomp(void *model)
{
    char group[] = "g0";

    if (!trap_calls())
        return (void *)-1;
    for (unsigned i = 0; i < 10000; i++) {
        group[1] = (char)('0' + i % ARENAS);
        if (hbm_model_lock(model, group, 0) || hbm_model_unlock(model, group, NULL, 0))
            return (void *)-2;
    }
    return (void *)(intptr_t)trapped;
}

static void enters_no_system_call(void *(*run)(void *), void *argument)
{
    struct sigaction action = {.sa_handler = count_trap}, old;
    pthread_t thread;
    void *result;

    trapped = 0;
    sigaction(SIGSYS, &action, &old);
    pthread_create(&thread, NULL, run, argument);
    pthread_join(thread, &result);
    sigaction(SIGSYS, &old, NULL);
    if (result == (void *)-1)
        skip();
    assert_null(result);
}

static void locking_resident_memory_enters_no_system_call(void **state)
{
    hbm_session *session = open_with(0);

    (void)state;
    enters_no_system_call(lock_under_seccomp, attach(session, "b0"));
    hbm_close(session);
}

static int ask_device(hbm_session *session)
{
    struct hbm_device_info info;

    return hbm_device_get(session, 0, &info);
}

static hbm_model *ordered_model(hbm_session *session, const char *const *groups, unsigned n, unsigned depth)
{
    hbm_model *model;

    assert_int_equal(hbm_model_attach(session, "model", HBM_RO, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    assert_int_equal(hbm_model_order(model, groups, n, depth), 0);
    return model;
}

static void an_order_costs_no_system_call_while_all_is_resident(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, NULL, 0, 3);

    (void)state;
    enters_no_system_call(go_round_under_seccomp, model);
    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    assert_int_equal(fake.aheads, 0);
    hbm_close(session);
}

static void goes_away(unsigned arena)
{
    ask_back(arena);
    EVENTUALLY(fake.away[arena]);
}

/* Locks it for a moment; the groups that were asked for with it, as "23". */
static const char *asked_with(hbm_session *session, hbm_model *model, unsigned arena)
{
    static char text[ARENAS + 1];
    char group[] = {'g', (char)('0' + arena), 0};
    unsigned before = fake.aheads;

    assert_int_equal(hbm_model_lock(model, group, 1000), 0);
    assert_int_equal(hbm_model_unlock(model, group, NULL, 0), 0);
    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    uint32_t n = fake.aheads == before ? 0 : fake.ahead.n;
    for (uint32_t i = 0; i < n; i++)
        text[i] = (char)('0' + (fake.ahead.slots[i] - SLOT(0)));
    text[n] = 0;
    return text;
}

static void a_lock_asks_for_the_next_groups_that_are_away_once(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, NULL, 0, 3);

    (void)state;
    goes_away(2);
    goes_away(4);
    goes_away(5);
    assert_string_equal(asked_with(session, model, 1), "24");
    assert_string_equal(asked_with(session, model, 1), "");
    assert_string_equal(asked_with(session, model, 2), "5"); /* and that one is here now */
    goes_away(2);
    assert_string_equal(asked_with(session, model, 1), "2"); /* away anew */
    goes_away(0);
    goes_away(1);
    assert_string_equal(asked_with(session, model, 7), "01"); /* after the last comes the first */
    assert_int_equal(hbm_model_lock(model, NULL, 1000), 0); /* all at once: nothing is next */
    assert_int_equal(fake.aheads, 4);
    assert_int_equal(hbm_model_detach(model), 0);
    hbm_close(session);
}

static void an_order_may_be_another_than_the_published_one(void **state)
{
    static const char *const order[] = {"g6", "g1", "g4"}, *const twice[] = {"g6", "g1", "g6"}, *const none[] = {"g1", "no"};
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, order, 3, 100);

    (void)state;
    for (unsigned i = 0; i < ARENAS; i++)
        goes_away(i);
    assert_string_equal(asked_with(session, model, 0), ""); /* has no turn */
    assert_string_equal(asked_with(session, model, 1), "46");
    assert_int_equal(hbm_model_order(model, twice, 3, 1), HBM_E_INVALID);
    assert_non_null(strstr(hbm_last_error_detail(), "g6"));
    assert_int_equal(hbm_model_order(model, none, 2, 1), HBM_E_NOT_FOUND);
    assert_int_equal(hbm_model_order(model, order, 0, 1), HBM_E_INVALID);
    assert_int_equal(hbm_model_order(model, NULL, 2, 1), HBM_E_INVALID);
    assert_int_equal(hbm_model_order(model, order, 3, 0), 0); /* no more */
    goes_away(1);
    assert_string_equal(asked_with(session, model, 6), "");
    hbm_close(session);
}

static hbm_model *windowed_model(hbm_session *session, unsigned depth, unsigned behind)
{
    hbm_model *model = ordered_model(session, NULL, 0, depth);

    assert_int_equal(hbm_model_window(model, behind, 0), 0);
    memset(fake.behind, 0, sizeof(fake.behind));
    return model;
}

/* The groups that were let go of since, as "23". */
static const char *left(hbm_session *session)
{
    static char text[sizeof(fake.behind)];

    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    strcpy(text, fake.behind);
    memset(fake.behind, 0, sizeof(fake.behind));
    return text;
}

static const char *left_with(hbm_session *session, hbm_model *model, unsigned arena)
{
    char group[] = {'g', (char)('0' + arena), 0};

    assert_int_equal(hbm_model_lock(model, group, 1000), 0);
    assert_int_equal(hbm_model_unlock(model, group, NULL, 0), 0);
    return left(session);
}

static bool is_wanted(unsigned arena)
{
    return fake.words[SLOT(arena)] & LOCKWORD_WANTED;
}

static void what_leaves_the_window_is_said_once(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 2, 1);

    (void)state;
    assert_string_equal(left_with(session, model, 3), "0167"); /* 2 to 5 stay */
    assert_true(is_wanted(2) && is_wanted(5) && !is_wanted(1) && !is_wanted(6));
    assert_string_equal(left_with(session, model, 3), "");
    assert_string_equal(left_with(session, model, 4), "2");
    goes_away(2);
    assert_string_equal(left_with(session, model, 5), "3");
    assert_string_equal(left_with(session, model, 7), "45"); /* 6 to 1: after the last comes the first */
    assert_true(is_wanted(6) && is_wanted(7) && is_wanted(0) && is_wanted(1) && !is_wanted(2));
    assert_string_equal(left_with(session, model, 2), "067"); /* and on: 1 to 4 */
    assert_int_equal(hbm_model_lock(model, NULL, 1000), 0); /* all at once: it moves nowhere */
    assert_string_equal(left(session), "");
    assert_int_equal(hbm_model_detach(model), 0);
    for (unsigned i = 0; i < ARENAS; i++)
        assert_false(is_wanted(i));
    hbm_close(session);
}

static void what_is_locked_leaves_when_it_is_unlocked(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 0);

    (void)state;
    assert_int_equal(hbm_model_lock(model, "g0", 1000), 0);
    assert_string_equal(left(session), "234567");
    assert_int_equal(hbm_model_lock(model, "g1", 1000), 0);
    assert_string_equal(left(session), "");
    assert_int_equal(hbm_model_unlock(model, "g0", NULL, 0), 0);
    assert_string_equal(left(session), "0");
    assert_int_equal(hbm_model_unlock(model, "g1", NULL, 0), 0);
    assert_string_equal(left(session), "");
    hbm_close(session);
}

static void what_came_for_a_window_that_jumped_leaves_again(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 0);

    (void)state;
    goes_away(1);
    assert_string_equal(left_with(session, model, 0), "234567");
    assert_int_equal(fake.ahead.n, 1); /* 1 was asked for, and is never locked */
    assert_string_equal(left_with(session, model, 5), "01");
    assert_string_equal(left_with(session, model, 0), "56");
    assert_int_equal(fake.aheads, 2); /* it was asked for again */
    hbm_close(session);
}

static void a_ring_of_batches_has_one_arriving_and_one_leaving(void **state)
{
    static const char *const seen[] = {"23456", "7", "0", "1", "2", "3", "4", "5", "6", "7", "0"};
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 1);

    (void)state;
    for (unsigned i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
        assert_string_equal(left_with(session, model, i % ARENAS), seen[i]);
    hbm_close(session);
}

static void a_window_is_off_until_it_is_asked_for_and_the_daemon_may_refuse_it(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model;

    (void)state;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RO, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    assert_int_equal(hbm_model_window(model, 1, 0), HBM_E_INVALID); /* of no order */
    assert_int_equal(hbm_model_order(model, NULL, 0, 1), 0);
    assert_int_equal(ask_device(session), 0);
    assert_string_equal(fake.order, "01234567");
    assert_int_equal(hbm_model_window(model, 1, HBM_WAIT), HBM_E_INVALID);
    memset(fake.behind, 0, sizeof(fake.behind));
    assert_string_equal(left_with(session, model, 3), "");
    fake.refuse_window = HBM_E_OFFLOAD_LIMIT;
    assert_int_equal(hbm_model_window(model, 1, 0), HBM_E_OFFLOAD_LIMIT);
    fake.refuse_window = 0;
    assert_string_equal(left_with(session, model, 4), "");
    assert_int_equal(hbm_model_window(model, 1, 0), 0);
    assert_string_equal(left_with(session, model, 4), "01267");
    assert_int_equal(hbm_model_window(model, HBM_FOREVER, 0), 0);
    assert_false(is_wanted(4));
    assert_string_equal(left_with(session, model, 0), "");
    assert_int_equal(hbm_model_window(model, 6, 0), 0); /* all of it */
    assert_string_equal(left_with(session, model, 0), "");
    assert_int_equal(hbm_model_window(NULL, 6, 0), HBM_E_INVALID);
    hbm_close(session);
}

static void a_window_costs_no_system_call_while_all_is_inside(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 3, 4);

    (void)state;
    enters_no_system_call(go_round_under_seccomp, model);
    assert_string_equal(left(session), "");
    hbm_close(session);
}

static long switches_of_the_event_thread(void)
{
    char path[64], line[128];
    long switches = -1;
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");

    while ((entry = readdir(dir))) {
        bool ours = false;
        snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file)) {
            ours = ours || !strcmp(line, "Name:\thbm-events\n");
            if (ours && sscanf(line, "voluntary_ctxt_switches: %ld", &switches) == 1)
                ours = false;
        }
        if (file)
            fclose(file);
    }
    closedir(dir);
    return switches;
}

static void an_idle_session_wakes_no_thread(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b0");

    (void)state;
    usleep(50000);
    long before = switches_of_the_event_thread();
    assert_true(before >= 0);
    usleep(300000);
    assert_int_equal(switches_of_the_event_thread(), before);
    /* Neither do calls: the caller reads its own reply. */
    for (unsigned i = 0; i < 100; i++)
        hbm_free(session, 1);
    assert_true(switches_of_the_event_thread() <= before + 5);
    assert_int_equal(hbm_detach(lease), 0);
    hbm_close(session);
}

static void an_op_is_waited_for_or_polled(void **state)
{
    hbm_session *session = open_with(0);
    struct hbm_op_status status;
    hbm_op *op;

    (void)state;
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, 0, NULL), 0);
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, 0, &op), 0);
    assert_int_equal(hbm_op_id(op), 77);
    assert_int_equal(hbm_op_wait(op, 0, &status), HBM_E_TIMEOUT);
    assert_false(status.done);
    assert_int_equal(hbm_op_wait(op, 5, &status), 0);
    assert_true(status.done);
    assert_null(hbm_op_free(op));
    assert_int_equal(hbm_fill(session, 0, &(struct hbm_range){.bytes = 1}, 1, NULL), 0);
    hbm_close(session);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_fake, stop_fake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(opening_learns_the_devices),
        TEST(without_a_daemon_the_error_names_the_path),
        TEST(another_protocol_version_is_named_when_opening),
        TEST(a_socket_planted_by_another_user_is_refused),
        TEST(a_daemon_of_another_user_than_wanted_is_refused),
        TEST(bad_arguments_are_refused_before_anything_is_sent),
        TEST(threads_share_a_session_while_arenas_are_asked_back),
        TEST(replies_may_come_in_another_order_than_requests),
        TEST(events_between_replies_disturb_no_call),
        TEST(a_model_comes_in_one_reply_of_several_packets),
        TEST(publishing_gives_memory_to_fill_and_ends_with_a_commit),
        TEST(a_disconnect_ends_all_calls_with_its_reason_and_memory_stays),
        TEST(a_forked_childs_copy_is_inert_and_the_parents_lives),
        TEST(attaching_twice_gives_one_pointer_unmapped_with_the_last_lease),
        TEST(an_unlocked_arena_asked_back_is_let_go_by_the_thread),
        TEST(a_locked_arena_asked_back_is_let_go_by_the_last_unlock),
        TEST(a_lock_on_an_arena_asked_back_lets_go_first),
        TEST(a_safe_point_gives_back_and_retakes_what_is_locked),
        TEST(what_is_mapped_says_whether_it_is_host_memory),
        TEST(locking_many_is_all_or_nothing),
        TEST(unlocking_what_is_not_locked_is_refused),
        TEST(an_unlocked_attach_maps_at_the_first_lock),
        TEST(a_grant_of_memory_that_the_arena_has_left_is_not_mapped),
        TEST(without_a_thread_the_callers_loop_lets_go),
        TEST(a_process_out_of_descriptors_gives_the_lease_back),
        TEST(two_thousand_cycles_leave_the_descriptors_as_they_were),
        TEST(locking_resident_memory_enters_no_system_call),
        TEST(an_order_costs_no_system_call_while_all_is_resident),
        TEST(a_lock_asks_for_the_next_groups_that_are_away_once),
        TEST(an_order_may_be_another_than_the_published_one),
        TEST(what_leaves_the_window_is_said_once),
        TEST(what_is_locked_leaves_when_it_is_unlocked),
        TEST(what_came_for_a_window_that_jumped_leaves_again),
        TEST(a_ring_of_batches_has_one_arriving_and_one_leaving),
        TEST(a_window_is_off_until_it_is_asked_for_and_the_daemon_may_refuse_it),
        TEST(a_window_costs_no_system_call_while_all_is_inside),
        TEST(an_idle_session_wakes_no_thread),
        TEST(an_op_is_waited_for_or_polled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
