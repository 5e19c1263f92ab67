/* The worker processes, one a device: started, given jobs, started again when they die. Jobs go over a socketpair
 * with their fds; a job ends exactly once and never from within submit. A worker that dies or does not answer in
 * time ends all of its jobs with HBM_E_WORKER_DIED; the next one starts after a pause that grows while workers keep
 * dying. */
#pragma once

#include <uv.h>

#include "daemon/job/job.h"
#include "daemon/base/traffic.h"

struct workers;

struct worker_spec {
    const char *program;   /* path of hbm-worker or hbm-worker-cuda */
    const char *uuid;      /* HBM_UUID_MAX with the NUL */
    const char *state_dir; /* for disk extents */
    const char *peers;     /* JOB_PEERS_TEXT with the NUL */
    int spill_key;         /* memfd of a struct job_spill_key, borrowed for good; -1: none */
    uint64_t pinned_bytes, idle_ms;
    bool gpudirect;       /* GPUDirect Storage may be used */
    uint64_t patience_ms; /* a job's least time; what jobs wait for a worker to start */
    struct traffic *links; /* JOB_LINKS of them, borrowed for good */
};

/* What the devices' owner hears; index is the order of adding. */
struct workers_world {
    void *context;
    void (*spawned)(void *context, uint32_t index, int32_t pid);
    void (*ready)(void *context, uint32_t index, const struct job_start_reply *reply);
    /* The process ended, or could not be started. Its jobs end right after this. */
    void (*gone)(void *context, uint32_t index, const char *why);
};

int workers_new(uv_loop_t *loop, const struct workers_world *world, struct workers **ret);
/* Adds a device's worker, not yet started. 0 or -errno. */
int workers_add(struct workers *workers, const struct worker_spec *spec);
/* Bytes a second by enum job_link that a device's worker, and each that follows it, lets over; 0: no limit. Before
 * the start too. */
void workers_limit(struct workers *workers, uint32_t index, const uint64_t limits[JOB_LINKS]);
void workers_start(struct workers *workers);
void workers_submit(struct workers *workers, struct job *job);
/* job->done still follows. */
void workers_cancel(struct workers *workers, struct job *job);
/* Ends the processes, and every job with HBM_E_SHUTTING_DOWN before this returns; so ends what is submitted
 * meanwhile. The memory goes with the loop's close callbacks. Returns NULL. */
struct workers *workers_free(struct workers *workers);

/* Which GPUs are there: runs `PROGRAM --probe`, off the loop's path. */
#define PROBE_DEVICES_MAX 64
struct probe_device {
    char uuid[HBM_UUID_MAX];
    char name[64];
    uint64_t total_bytes;
};
/* n devices; 0: there are none; -1: the probe failed, which says nothing about the GPUs. why: NULL, or a sentence
 * about why there are none. Called once, never from within probe_start. */
typedef void (*probe_done)(void *context, const struct probe_device *devices, int n, const char *why);
struct probe;
int probe_start(uv_loop_t *loop, const char *program, probe_done done, void *context, struct probe **ret);
/* Before done was called: it will not be. Returns NULL; NULL is fine. */
struct probe *probe_cancel(struct probe *probe);

/* Writes the path of a worker program: dir if it is not empty, else beside this program, else /usr/lib/hbmd.
 * False: none is there, and path is where it would have been. */
bool worker_program_path(const char *dir, const char *name, char *path, size_t size);
