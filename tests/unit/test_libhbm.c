/* libhbm against a daemon that speaks the protocol with memfds, and misbehaves when told to: sessions, calls, models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/unit/libhbm_test.h"

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
    assert_non_null(strstr(hbm_last_error_detail(), "name is longer than 255 bytes: xxx"));
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
        TEST(without_a_thread_the_callers_loop_lets_go),
        TEST(a_process_out_of_descriptors_gives_the_lease_back),
        TEST(two_thousand_cycles_leave_the_descriptors_as_they_were),
        TEST(an_idle_session_wakes_no_thread),
        TEST(an_op_is_waited_for_or_polled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
