#include "daemon/core/books.h"

#include "daemon/core/extent.h"

static void wake_waiters(struct core *core)
{
    struct list *node, woken;

    list_move_all(&woken, &core->books_waiters); /* as arena_settled does */
    while ((node = list_first(&woken))) {
        list_unlink(node);
        struct books_wait *wait = list_entry(node, struct books_wait, node);
        wait->ready(wait);
    }
}

static void told(struct job *job)
{
    struct books *books = container_of(job, struct books, job);
    struct device *device = container_of(books, struct device, books);
    struct core *core = device->core;

    books->asked = false;
    if (!job->error) {
        books->at_ms = core_now(core);
        books->said = job->reply.query;
    }
    if (--core->books_asked == 0)
        wake_waiters(core);
}

void books_ask(struct core *core, struct device *device)
{
    struct books *books = &device->books;

    if (books->asked)
        return;
    books->job = (struct job){.opcode = JOB_QUERY, .device = device->index, .reply_fd = -1, .done = told};
    books->asked = true;
    core->books_asked++;
    core->env.submit(core->env.context, &books->job);
}

void books_await(struct core *core, struct device *device, struct books_wait *wait)
{
    list_append(&core->books_waiters, &wait->node);
    list_for_each (node, &core->devices) {
        struct device *one = list_entry(node, struct device, node);
        if (one->worker_pid && (!device || one == device))
            books_ask(core, one);
    }
    if (!core->books_asked)
        wake_waiters(core);
}

/* Of what the driver counts as the worker's: not the blocks in it that are in the ledger. */
static uint64_t worker_bytes(const struct core *core, const struct device *device)
{
    const struct job_query_reply *said = &device->books.said;
    uint64_t bytes = 0, blocks = 0;

    for (uint32_t i = 0; i < said->n && i < sizeof(said->holders) / sizeof(said->holders[0]); i++)
        if (said->holders[i].pid == (uint32_t)device->worker_pid && said->holders[i].bytes != UINT64_MAX)
            bytes = said->holders[i].bytes;
    list_for_each (node, &core->extents) {
        const struct extent *extent = list_entry(node, struct extent, node);
        if (extent->device == device && extent->kind == JOB_EXTENT_CUDA_IPC && !extent->lost)
            blocks += extent->size;
    }
    return bytes > blocks ? bytes - blocks : 0;
}

bool books_unaccounted(const struct core *core, const struct device *device, uint64_t *bytes)
{
    uint64_t used = device->books.said.used_bytes;

    if (!device->is_cuda || !device->books.at_ms)
        return false;
    uint64_t known = device->used[HBM_TIER_DEVICE] + worker_bytes(core, device);
    *bytes = used > known ? used - known : 0;
    return true;
}
