#include "daemon/core/farewell.h"

#include <stdlib.h>

bool farewells_add(struct list *farewells, const struct device *device)
{
    struct job *job = farewells_reach(farewells, device->index) ? NULL : calloc(1, sizeof(*job));

    if (!job)
        return farewells_reach(farewells, device->index);
    job->device = device->index;
    list_append(farewells, &job->node);
    return true;
}

bool farewells_reach(const struct list *farewells, uint32_t device)
{
    list_for_each (node, farewells)
        if (list_entry(node, struct job, node)->device == device)
            return true;
    return false;
}

static void told(struct job *job)
{
    free(job);
}

/* Nobody waits for the answer: should it fail, the worker is dead and all that it held with it. */
void farewells_say(struct core *core, struct list *farewells, enum job_extent_kind kind, uint64_t token)
{
    struct list *node;

    while ((node = list_first(farewells))) {
        struct job *job = list_entry(node, struct job, node);
        const struct device *device = device_at(core, job->device);

        list_unlink(node);
        if (!device || !device->worker_pid) {
            free(job);
            continue;
        }
        *job = (struct job){.opcode = JOB_DESTROY, .device = device->index, .done = told, .reply_fd = -1};
        job->request.destroy.token = token;
        job->request.destroy.kind = kind;
        core->env.submit(core->env.context, job);
    }
}

void farewells_clear(struct list *farewells)
{
    struct list *node;

    while ((node = list_first(farewells))) {
        list_unlink(node);
        free(list_entry(node, struct job, node));
    }
}
