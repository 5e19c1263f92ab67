/* A job as core sees it: asked of a device's worker, ended exactly once. daemon/job carries it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "proto/jobs.h"

#define JOB_FDS_MAX 3

struct job {
    unsigned opcode; /* enum job_opcode */
    uint32_t device; /* index */
    uint64_t share;  /* whose it is: one's jobs never keep all others' waiting; 0: the daemon's own */
    union job_request request;
    int fds[JOB_FDS_MAX]; /* borrowed: what they belong to lives until done */
    unsigned n_fds;
    /* Called as the worker reports; may be NULL. */
    void (*progress)(struct job *job);
    /* Called exactly once, never from within submit. The job is the caller's again: it may be freed here. */
    void (*done)(struct job *job);

    /* Result. */
    int error; /* 0 or a negative hbm_error */
    char detail[HBM_DETAIL_MAX];
    bool at_large; /* the process that had it was killed and has not ended yet: what it was to write, it may still write */
    union job_reply reply;
    int reply_fd;        /* CREATE: owned by the job until taken with TAKE_FD; -1 if none */
    uint64_t bytes_done; /* as last reported */
    bool late;           /* FILE: it was this one that did not end, and the worker went for it */

    /* daemon/job's own. */
    struct list node;
    struct list behind; /* those of its share that were submitted after it */
    uint32_t serial;
    bool sent;
};
