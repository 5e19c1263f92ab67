/* One job from the packet that asked for it to the packet that answers. */
#pragma once

#include <stdatomic.h>

#include "daemon/base/list.h"
#include "daemon/worker/failure.h"
#include "proto/jobs.h"
#include "proto/packet.h"

#define JOB_FDS_MAX 3

struct channel;

struct job {
    struct list queued; /* for its engine, until a thread takes it */
    struct list alive;  /* in the control's list, until it is answered */
    struct channel *channel;
    uint32_t opcode, serial;
    union job_request request;
    int fds[JOB_FDS_MAX];
    unsigned n_fds;
    atomic_bool cancelled;
    atomic_uint_fast64_t done_bytes, told_bytes, told_ns;
    unsigned fault;     /* fault.c's, for one of its chunks; 0: none */
    atomic_uint chunks; /* that have begun, where there is one */
    union job_reply reply;
    int reply_fd;
    struct failure failure;
    bool answered; /* before it has ended: control_answer() */
};

/* Takes the packet's fds, whatever it returns. NULL: out of memory. */
struct job *job_new(struct channel *channel, struct packet *packet);
struct job *job_free(struct job *job);
/* Those that came with it; of a failed one, also what would have gone out. */
void job_close_fds(struct job *job);
/* HBM_E_CANCELLED once the owner has asked for it; long jobs look between chunks. */
int job_poll(struct job *job, struct failure *failure);
/* So many bytes more are done, or 0: tells the owner now and then, if there is news. Any thread. */
void job_advance(struct job *job, uint64_t bytes);
/* Tells how far it is now: an owner that sleeps is awake when the answer comes. */
void job_tell(struct job *job);
uint64_t monotonic_ns(void);

/* The jobs, each in one thread. They leave the outcome in job->reply and job->failure. */
void job_copy(struct job *job);
void job_hash(struct job *job);
void job_file(struct job *job);
void job_pack(struct job *job);
void job_unpack(struct job *job);
void job_measure(struct job *job);
void job_observe(struct job *job);
void job_encode(struct job *job);
void job_decode(struct job *job);
void job_create(struct job *job, const char *state_dir);
