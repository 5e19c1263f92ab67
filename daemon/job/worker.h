/* One worker as daemon/job's files share it. */
#pragma once

#include "daemon/job/workers.h"
#include "proto/errors.h"
#include "proto/packet.h"

#define WORKER_IN_FLIGHT 64
/* Of them for one share at most, and never more than half of what the others leave: whoever comes next finds room.
 * More would only wait inside the worker, in front of the others'. */
#define WORKER_SHARE 16u
#define WORKER_FILES_SHARE 2u /* of its files, apart from all else: of the threads for them it never has the last */
#define WORKER_RESERVE 4u /* for the daemon's own jobs */
#define WORKER_BACKOFF_MIN_MS 50u
#define WORKER_BACKOFF_MAX_MS 5000u
#define WORKER_STABLE_MS 10000u  /* a worker that served so long starts the pause over */
#define WORKER_BYTES_A_MS 50000u /* 50 MB/s: slower than any disk in order, unless a limit is lower */
#define WORKER_LONGEST_MS ((uint64_t)7 * 24 * 3600 * 1000) /* by such a limit, which asks for nothing useful */
#define WORKER_ENDING_MS 3000u   /* what a killed process has to end */
#define WORKER_GIVEN_UP_MAX 8    /* processes of one worker that the kernel holds, beside the one that serves */
/* Of them by one's files, and by those of a listener: the device is to be served however many more would not answer. */
#define WORKER_HELD_BY_SHARE 2u
#define WORKER_HELD_BY_LISTENER 3u

struct flight {
    struct job *job; /* NULL: free */
    enum job_link link;
    uint64_t bytes, told; /* told: of them, as done */
    uint64_t deadline_ms, takes_ms;
    bool late; /* a client's file, past its deadline: the worker goes as soon as nobody else has a job there */
};

/* A worker's process. One that was killed and does not end, since a driver or a client's file system does not
 * answer it, is given up on: another takes its place, and it stays here until the kernel lets go of it, or we end.
 */
struct process {
    uv_process_t handle;
    struct workers *workers;
    struct worker *worker; /* NULL: given up on, or the worker is closed */
    uint32_t index;        /* the worker's */
    uint64_t share;        /* whose file did not answer it; 0: another reason */
    struct list node;      /* workers->processes */
};

struct worker {
    struct workers *workers;
    uint32_t index;
    char program[4096];
    char uuid[HBM_UUID_MAX];
    char state_dir[256], peers[JOB_PEERS_TEXT];
    int spill_key; /* borrowed; -1: none */
    uint64_t pinned_bytes, idle_ms, patience_ms;
    bool gpudirect;

    enum { WORKER_DOWN, WORKER_STARTING, WORKER_READY } state;
    int fd;       /* our end of the socketpair; -1 when down */
    bool running; /* the process has not been reaped yet, nor given up on */
    bool eof;     /* it hung up: what is left is to reap it */
    bool closing; /* workers_free has begun */
    uint32_t serial;
    struct traffic *links;
    struct job start;              /* its first job */
    struct job limit;              /* tells it of new limits */
    bool limiting, limits_changed; /* that job is under way; once more */
    struct list queued; /* struct job, not sent yet: the first of each share, whose turns go round */
    struct flight flights[WORKER_IN_FLIGHT];
    unsigned n_flights;
    uint64_t ms_in_flight, ready_ms, backoff_ms;
    struct packet packet; /* the one being received */

    struct process *process; /* NULL: none is there */
    uv_poll_t poll;
    int polled; /* the events that it looks for */
    uv_timer_t restart, deadline;
    unsigned open_handles; /* of the three; once closing, the worker is freed with the last */
    bool poll_open;
};

struct workers {
    uv_loop_t *loop;
    struct workers_world world;
    struct worker **list;
    unsigned n;
    struct list processes; /* struct process: all whose handle is open */
    struct list failed;    /* struct job: to be ended from the loop */
    uv_timer_t failing;
    unsigned n_alive; /* workers and processes whose memory is still there */
    bool freed, failing_closed;
};

/* worker.c: the process. */
void worker_start_in(struct worker *worker, uint64_t pause_ms);
void worker_watch(struct worker *worker, int events);
void worker_poll(uv_poll_t *poll, int status, int events);
/* It is of no use any more: its jobs end, it is killed, the next one follows when it has been reaped. */
void worker_down(struct worker *worker, const char *why);
void worker_close(struct worker *worker);
/* Its handle is closed and its memory freed; a process that still runs is left to itself. */
void worker_forget(struct process *process);
/* worker_jobs.c: the conversation. */
/* A file of that share is not taken now: its others hold enough processes. */
bool worker_is_held_by(const struct worker *worker, uint64_t share);
void worker_queue(struct worker *worker, struct job *job);
void worker_unqueue(struct worker *worker, struct job *job);
void worker_flush(struct worker *worker);
void worker_readable(struct worker *worker);
void worker_end_jobs(struct worker *worker, int error, const char *why);
void worker_deadline(uv_timer_t *timer);
/* Jobs in flight have as long as the limits now ask for. */
void worker_put_off_deadlines(struct worker *worker);
void worker_watch_deadlines(struct worker *worker);
/* workers.c: as they are now, if it has heard of others. */
void worker_tell_limits(struct worker *worker);
/* Ends a job from the loop. */
void workers_fail_later(struct workers *workers, struct job *job, int error, const char *why);
void workers_one_less(struct workers *workers);
