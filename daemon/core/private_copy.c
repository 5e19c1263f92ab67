/* A reader that an arena does not trust gets its own copy: whoever holds an fd can raise its rights on the memory. */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/ledger.h"
#include "daemon/core/stage.h"
#include "daemon/core/verbs.h"

struct private_copy {
    struct core *core;
    uint64_t original; /* id */
    struct owner owner;
    struct extent *source;
    struct stage stage; /* of an original that lies packed */
    struct buffer form; /* of the original, as it was when its bytes began to be copied: nothing but plain fields is used */
    struct extent_create create;
    struct job job;
    void (*done)(void *context, uint64_t buffer, int error, const char *detail);
    void *context;
};

static void end(struct private_copy *copy, uint64_t buffer, int error, const char *detail)
{
    extent_unref(copy->source);
    stage_clear(&copy->stage);
    copy->done(copy->context, buffer, error, detail);
    free(copy);
}

static void copied(struct job *job)
{
    struct private_copy *copy = container_of(job, struct private_copy, job);
    struct buffer *original = buffer_get(copy->core, copy->original);
    struct extent *extent = copy->create.extent;
    char detail[HBM_DETAIL_MAX] = "it was freed meanwhile";
    int error = job->error ? job->error : original ? 0 : HBM_E_STALE;
    struct arena *arena = NULL;

    if (!error) {
        arena = arena_new(copy->core, copy->owner, false, 0600, HBM_HANDLE_FD, original->arena->group, extent);
        error = arena ? 0 : HBM_E_NO_MEMORY;
    }
    if (error) {
        extent_unref(extent);
        end(copy, 0, error, job->error ? job->detail : detail);
        return;
    }
    struct buffer_spec spec = {.dtype = copy->form.dtype, .rank = copy->form.rank, .dims = copy->form.dims, .size = copy->form.size};
    struct buffer *buffer = buffer_new(arena, &spec, &error, detail);
    if (!buffer) {
        arena_free(arena);
        end(copy, 0, error, detail);
        return;
    }
    buffer->encoding = copy->form.encoding;
    buffer->version = copy->form.version;
    ledger_put_arena(copy->core, arena);
    ledger_put_buffer(copy->core, buffer);
    end(copy, buffer->id, 0, "");
}

static void submit(struct private_copy *copy)
{
    struct extent_create *create = &copy->create;
    struct job_copy_request *request = &copy->job.request.copy;

    if (copy->source->tier == HBM_TIER_DEVICE && copy->source->device != create->device)
        request->flags |= JOB_FROM_PEER;
    extent_describe(copy->source, &copy->job, &request->source);
    extent_describe(create->extent, &copy->job, &request->target);
    request->source_offset = copy->form.offset;
    request->bytes = copy->form.size;
    copy->job.opcode = JOB_COPY;
    copy->job.device = create->device->index;
    copy->job.reply_fd = -1;
    copy->job.done = copied;
    copy->core->env.submit(copy->core->env.context, &copy->job);
}

static void staged(struct stage *stage)
{
    struct private_copy *copy = container_of(stage, struct private_copy, stage);

    if (stage->error) {
        char detail[HBM_DETAIL_MAX];
        memcpy(detail, stage->detail, sizeof(detail));
        extent_unref(copy->create.extent);
        end(copy, 0, stage->error, detail);
        return;
    }
    copy->source = extent_ref(stage->extent);
    submit(copy);
}

static void created(struct extent_create *create)
{
    struct private_copy *copy = container_of(create, struct private_copy, create);
    struct buffer *original = buffer_get(copy->core, copy->original);

    int error = create->error ? create->error : !original ? HBM_E_STALE : original->arena->extent->lost ? HBM_E_LOST : 0;
    if (error) {
        extent_unref(create->extent);
        end(copy, 0, error, create->error ? create->detail : "the original went meanwhile");
        return;
    }
    copy->form = *original;
    if (original->size > create->size) { /* it grew while there was no memory yet */
        extent_unref(create->extent);
        end(copy, 0, HBM_E_BUSY, "it took another form meanwhile");
        return;
    }
    if (original->arena->extent->packing) {
        copy->stage = (struct stage){.core = copy->core,
                                     .account = create->account,
                                     .arena = original->arena->id,
                                     .extent = extent_ref(original->arena->extent),
                                     .done = staged};
        stage_start(&copy->stage);
        return;
    }
    copy->source = extent_ref(original->arena->extent);
    submit(copy);
}

void private_copy_start(struct core *core, struct session *session, struct buffer *original,
                        void (*done)(void *context, uint64_t buffer, int error, const char *detail), void *context)
{
    struct private_copy *copy = calloc(1, sizeof(*copy));

    if (!copy) {
        done(context, 0, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    copy->core = core;
    copy->original = original->id;
    copy->owner = session->who.owner;
    copy->done = done;
    copy->context = context;
    copy->create = (struct extent_create){.core = core,
                                          .device = original->arena->device,
                                          .account = session->account,
                                          .tier = HBM_TIER_DEVICE,
                                          .kind = JOB_EXTENT_DEVICE,
                                          .size = original->size,
                                          .wait_ms = core->limits.memory_wait_ms,
                                          .done = created};
    extent_create_start(&copy->create);
}
