/* The queue before a worker: each share's jobs in turn, and none takes all the room. The worker is this program
 * again, which answers what it is meant to, in the order in which it hears of it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/job/worker.h"

/* ---- As the worker: DESTROY is answered, a token that is 0 never; a COPY once the DESTROY of token 2 is. ---- */

static int serve(int fd)
{
    static struct packet packet;
    struct packet_header copy = {0};
    union job_reply reply = {0};
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    for (;;) {
        int error = packet_receive(fd, &packet);
        if (error == -EAGAIN)
            poll(&poll_fd, 1, -1);
        else if (error)
            return 0;
        else if (packet.header.opcode == JOB_COPY)
            copy = packet.header;
        else if (packet.header.opcode == JOB_START || packet.header.opcode == JOB_LIMIT ||
                 (packet.header.opcode == JOB_DESTROY && ((struct job_destroy_request *)packet.body)->token))
            packet_send(fd, &packet.header, &reply, job_row(packet.header.opcode)->reply_size, NULL, 0);
        if (!error && packet.header.opcode == JOB_DESTROY && ((struct job_destroy_request *)packet.body)->token == 2)
            packet_send(fd, &copy, &reply, job_row(JOB_COPY)->reply_size, NULL, 0);
    }
}

/* ---- As the owner. ---- */

#define JOBS_MAX 256

static uv_loop_t loop;
static struct workers *workers;
static struct job jobs[JOBS_MAX];
static struct traffic links[JOB_LINKS];
static uint64_t ended[JOBS_MAX]; /* shares, as their jobs end without error */
static unsigned n_jobs, n_ended, n_failed;

static void spawned(void *context, uint32_t index, int32_t pid)
{
    (void)context, (void)index, (void)pid;
}

static void ready(void *context, uint32_t index, const struct job_start_reply *reply)
{
    (void)context, (void)index, (void)reply;
}

static void gone(void *context, uint32_t index, const char *why)
{
    (void)context, (void)index, (void)why;
}

static void done(struct job *job)
{
    if (job->error)
        n_failed++;
    else
        ended[n_ended++] = job->share;
}

static int set_up(void **state)
{
    static const struct workers_world world = {.spawned = spawned, .ready = ready, .gone = gone};
    static const struct worker_spec spec = {.program = "/proc/self/exe",
                                            .uuid = "host",
                                            .peers = "",
                                            .state_dir = "",
                                            .spill_key = -1,
                                            .patience_ms = 60000,
                                            .links = links};

    (void)state;
    n_jobs = n_ended = n_failed = 0;
    memset(jobs, 0, sizeof(jobs));
    memset(links, 0, sizeof(links));
    uv_loop_init(&loop);
    return workers_new(&loop, &world, &workers) || workers_add(workers, &spec);
}

static int tear_down(void **state)
{
    (void)state;
    workers = workers_free(workers);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(n_ended + n_failed, n_jobs); /* each ended once */
    return uv_loop_close(&loop);
}

static struct job *submit(uint64_t share, unsigned answered)
{
    struct job *job = &jobs[n_jobs++];

    *job = (struct job){.opcode = JOB_DESTROY, .share = share, .done = done};
    job->request.destroy.token = answered;
    workers_submit(workers, job);
    return job;
}

static void wait_for(unsigned n)
{
    while (n_ended < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static unsigned in_flight(uint64_t share)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_jobs; i++)
        n += jobs[i].sent && jobs[i].share == share;
    return n;
}

static void jobs_that_hang_keep_nobody_elses_waiting(void **state)
{
    (void)state;
    workers_start(workers);
    for (unsigned i = 0; i < 100; i++)
        submit(1, false);
    submit(2, true);
    submit(0, true);
    wait_for(2);
    assert_int_equal(in_flight(1), WORKER_SHARE);
}

/* Whoever comes next finds room, though all before hang as much as they can. */
static void many_who_hang_leave_room_for_one_more(void **state)
{
    (void)state;
    workers_start(workers);
    for (uint64_t share = 1; share <= 8; share++)
        for (unsigned i = 0; i < 20; i++)
            submit(share, false);
    submit(9, true);
    submit(0, true);
    wait_for(2);
    for (uint64_t share = 1; share <= 8; share++)
        assert_true(in_flight(share) >= 1);
}

static void the_shares_take_turns_in_the_order_of_each(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 40; i++)
        submit(1, true);
    for (unsigned i = 0; i < 4; i++)
        submit(2, true);
    workers_start(workers);
    wait_for(44);
    unsigned last = 0;
    for (unsigned i = 0; i < 44; i++)
        last = ended[i] == 2 ? i : last;
    assert_true(last < 10); /* not behind the forty */
    for (unsigned i = 1; i < 40; i++)
        assert_true(jobs[i - 1].serial < jobs[i].serial);
}

/* Not answered of itself: a copy of so many bytes from host memory to the device. */
static struct flight *copy_up(uint64_t bytes)
{
    struct job *job = &jobs[n_jobs++];

    *job = (struct job){.opcode = JOB_COPY, .share = 1, .done = done};
    job->request.copy.source.kind = JOB_EXTENT_HOST;
    job->request.copy.bytes = bytes;
    workers_submit(workers, job);
    while (!job->sent)
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++)
        if (workers->list[0]->flights[i].job == job)
            return &workers->list[0]->flights[i];
    return NULL;
}

#define MB ((uint64_t)1000000)

static struct job *submit_file(uint64_t share)
{
    struct job *job = &jobs[n_jobs++];

    *job = (struct job){.opcode = JOB_FILE, .share = share, .done = done};
    for (unsigned i = 0; i < 2; i++)
        job->fds[job->n_fds++] = STDIN_FILENO;
    workers_submit(workers, job);
    return job;
}

/* FAULTS 24: they may lie where nobody answers; the threads for them are three. */
static void files_of_one_leave_room_for_anothers_and_for_all_else_of_his_own(void **state)
{
    (void)state;
    workers_start(workers);
    for (unsigned i = 0; i < 5; i++)
        submit_file(1);
    submit(1, true);
    struct job *other = submit_file(2);
    wait_for(1);
    while (!other->sent)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(in_flight(1) - jobs[5].sent, 2);
}

/* FAULTS 24: the worker goes once nobody else has a job there. */
static void a_file_that_does_not_answer_takes_nobody_elses_job_along(void **state)
{
    struct worker *worker = workers->list[0];

    (void)state;
    worker->patience_ms = 200;
    workers_start(workers);
    struct job *file = submit_file(1), *copy = &jobs[n_jobs];
    copy_up(500 * MB)->deadline_ms += 60000;
    while (!file->late)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(worker->state, WORKER_READY);
    assert_int_equal(n_failed, 0);
    submit(2, 2);
    while (n_ended + n_failed < 3)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(copy->error, 0);
    assert_int_equal(file->error, HBM_E_WORKER_DIED);
    assert_int_equal(n_failed, 1);
}

/* FAULTS 24: a process in a file system that does not answer cannot be killed, and only so many more can be started. */
static void who_holds_processes_by_files_gets_no_more_of_them(void **state)
{
    uint64_t pod = (uint64_t)7 << 32 | 1; /* another listener's */
    struct process held[] = {{.share = 1}, {.share = 1}, {.share = pod}, {.share = pod + 1}, {.share = pod + 2}};
    struct job *files[] = {NULL, NULL, NULL};

    (void)state;
    workers_start(workers);
    while (workers->list[0]->state != WORKER_READY)
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < 5; i++)
        list_append(&workers->processes, &held[i].node);
    files[0] = submit_file(1);
    files[1] = submit_file(2);
    files[2] = submit_file(pod + 3);
    for (unsigned i = 0; i < 5; i++)
        list_unlink(&held[i].node);
    while (n_failed < 2)
        uv_run(&loop, UV_RUN_NOWAIT); /* a timer of theirs ends them: after it, once would wait for the third's deadline */
    assert_int_equal(files[0]->error, HBM_E_IO);
    assert_true(files[1]->sent);
    assert_int_equal(files[2]->error, HBM_E_IO);
}

/* But it does go. */
static void a_file_that_does_not_answer_is_not_waited_for_beside_one_job_after_the_other(void **state)
{
    (void)state;
    workers->list[0]->patience_ms = 200;
    workers_start(workers);
    struct job *file = submit_file(1);
    copy_up(500 * MB)->deadline_ms += 60000;
    while (n_failed < 2)
        uv_run(&loop, UV_RUN_ONCE);
    assert_true(file->late);
    assert_int_equal(file->error, HBM_E_WORKER_DIED);
}

static void a_job_that_is_cancelled_in_the_queue_leaves_those_behind_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 6; i++)
        submit(1, true);
    workers_cancel(workers, &jobs[0]);
    workers_cancel(workers, &jobs[3]);
    workers_start(workers);
    wait_for(4);
    assert_int_equal(jobs[0].error, HBM_E_CANCELLED);
    assert_int_equal(jobs[3].error, HBM_E_CANCELLED);
    assert_int_equal(n_failed, 2);
}

static const uint64_t slow_up[JOB_LINKS] = {[JOB_LINK_HOST_TO_DEVICE] = 2 * MB};
static const uint64_t slower_up[JOB_LINKS] = {[JOB_LINK_HOST_TO_DEVICE] = MB};
static const uint64_t unlimited[JOB_LINKS];

static void a_job_has_as_long_as_the_limit_of_its_link_asks_for(void **state)
{
    (void)state;
    workers_limit(workers, 0, slow_up);
    workers_start(workers);
    const struct flight *flight = copy_up(100 * MB);
    assert_int_equal(flight->takes_ms, 50000);
    assert_true(flight->deadline_ms >= uv_now(&loop) + 50000);
    assert_int_equal(copy_up(100 * MB)->deadline_ms - flight->deadline_ms >= 50000, 1); /* behind the other */
    assert_int_equal(links[JOB_LINK_HOST_TO_DEVICE].jobs, 2);
    assert_int_equal(links[JOB_LINK_HOST_TO_DEVICE].queued_bytes, 200 * MB);
}

static void a_job_under_way_has_longer_once_its_link_is_slowed_down_and_never_less(void **state)
{
    (void)state;
    workers_start(workers);
    const struct flight *flight = copy_up(100 * MB);
    assert_int_equal(flight->takes_ms, 2000); /* 50 MB/s */
    workers_limit(workers, 0, slower_up);
    assert_int_equal(flight->takes_ms, 100000);
    uint64_t deadline = flight->deadline_ms;
    assert_true(deadline >= uv_now(&loop) + 100000);
    workers_limit(workers, 0, unlimited);
    assert_int_equal(flight->deadline_ms, deadline);
    assert_int_equal(flight->takes_ms, 2000);
}

static void limits_that_change_while_a_worker_starts_reach_it(void **state)
{
    struct worker *worker = workers->list[0];

    (void)state;
    workers_start(workers);
    while (worker->state == WORKER_DOWN)
        uv_run(&loop, UV_RUN_NOWAIT);
    workers_limit(workers, 0, slow_up);
    assert_true(worker->limits_changed || worker->limiting);
    while (worker->state != WORKER_READY || worker->limiting)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(worker->limit.request.limit.limits[JOB_LINK_HOST_TO_DEVICE], 2 * MB);
    workers_limit(workers, 0, slower_up);
    workers_limit(workers, 0, unlimited); /* while it is being told: once more */
    assert_true(worker->limiting && worker->limits_changed);
    while (worker->limiting)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(worker->limit.request.limit.limits[JOB_LINK_HOST_TO_DEVICE], 0);
    assert_int_equal(worker->limit.error, 0);
}

static void a_limit_that_asks_for_years_has_a_deadline_all_the_same(void **state)
{
    static const uint64_t crawl[JOB_LINKS] = {1, 1, 1, 1};

    (void)state;
    workers_limit(workers, 0, crawl);
    workers_start(workers);
    assert_true(copy_up(UINT64_MAX)->takes_ms == WORKER_LONGEST_MS);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(jobs_that_hang_keep_nobody_elses_waiting),
        CASE(many_who_hang_leave_room_for_one_more),
        CASE(the_shares_take_turns_in_the_order_of_each),
        CASE(files_of_one_leave_room_for_anothers_and_for_all_else_of_his_own),
        CASE(a_file_that_does_not_answer_takes_nobody_elses_job_along),
        CASE(who_holds_processes_by_files_gets_no_more_of_them),
        CASE(a_file_that_does_not_answer_is_not_waited_for_beside_one_job_after_the_other),
        CASE(a_job_that_is_cancelled_in_the_queue_leaves_those_behind_it),
        CASE(a_job_has_as_long_as_the_limit_of_its_link_asks_for),
        CASE(a_job_under_way_has_longer_once_its_link_is_slowed_down_and_never_less),
        CASE(limits_that_change_while_a_worker_starts_reach_it),
        CASE(a_limit_that_asks_for_years_has_a_deadline_all_the_same),
    };

    if (argc == 3 && !strcmp(argv[1], "--fd"))
        return serve(atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
