#include "daemon/core/measure.h"

#include <string.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/hold.h"
#include "daemon/core/packing.h"
#include "daemon/core/table_fd.h"
#include "proto/memfd.h"

#define MEASURES_MAX ((size_t)1 << 30)

static bool is_due(const struct plan *plan)
{
    return plan->packing && plan->packing->unmeasured;
}

bool measure_is_due(const struct transition *transition)
{
    for (size_t i = 0; i < transition->n; i++)
        if (is_due(&transition->plans[i]))
            return true;
    return false;
}

bool measure_next(struct transition *transition, void (*done)(struct job *job), int *error)
{
    struct job *job = &transition->measuring;

    while (transition->at < transition->n && !is_due(&transition->plans[transition->at]))
        transition->at++;
    if (transition->at == transition->n)
        return false;
    const struct plan *plan = &transition->plans[transition->at];
    transition->measures = packing_table(plan->packing, false);
    if (transition->measures < 0) {
        *error = table_fd_refused(transition->measures, transition->detail);
        return false;
    }
    *job = (struct job){.opcode = JOB_MEASURE, .device = plan_worker(plan)->index, .done = done, .reply_fd = -1};
    extent_describe(plan->source, job, &job->request.measure.raw);
    job->fds[job->n_fds++] = transition->measures;
    job->request.measure.n_pieces = plan->packing->n_pieces;
    transition->core->env.submit(transition->core->env.context, job);
    return true;
}

static int lay_out(struct transition *transition, struct plan *plan, int fd)
{
    const struct arena *arena = arena_get(transition->core, plan->arena);
    size_t size = 0;
    void *measured = arena && fd >= 0 ? memfd_map_sealed(fd, MEASURES_MAX, &size) : NULL;

    if (!arena)
        return transition_refuse(transition, HBM_E_STALE, "an arena of the operation was freed meanwhile");
    if (!measured)
        return transition_refuse(transition, HBM_E_INTERNAL, "the worker sent no measures");
    int error = packing_lay_out(plan->packing, arena, measured, size);
    munmap(measured, size);
    if (error)
        return transition_refuse(transition, error, "%s",
                                 error == HBM_E_NO_MEMORY ? OWNER_OUT_OF_MEMORY
                                                          : "the worker's measures are not those of what it was asked");
    plan->size = plan->packing->bytes;
    return 0;
}

int measure_book(struct transition *transition)
{
    struct job *job = &transition->measuring;
    _cleanup_fd_ int measured = TAKE_FD(job->reply_fd);

    transition->measures = fd_close(transition->measures);
    if (job->error) {
        memcpy(transition->detail, job->detail, sizeof(transition->detail));
        return job->error;
    }
    transition->worked_ns += job->reply.measure.nanoseconds;
    return lay_out(transition, &transition->plans[transition->at], measured);
}
