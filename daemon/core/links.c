#include "daemon/core/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/core/farewell.h"
#include "daemon/core/peer.h"
#include "daemon/core/room.h"
#include "daemon/core/tier.h"
#include "proto/memfd.h"

struct part {
    struct links *links;
    struct device *device;
    struct job job;
};

struct links {
    struct track *track;
    void (*done)(struct job *job);
    unsigned n, left;
    bool cancelled;
    int error; /* the first */
    char detail[HBM_DETAIL_MAX];
    struct part parts[LINKS_MAX];
};

/* ---- Which ---- */

/* Below the mark: nothing has to leave for it. */
static bool helps(const struct device *device, const struct device *home)
{
    struct tier tier = device_tier(device, HBM_TIER_DEVICE);

    return device != home && device->state == DEVICE_READY && device->worker_pid && !device->moves && peer_reaches(device, home) &&
           tier.used <= tier.high && tier.high - tier.used >= device->core->passing;
}

static bool is_between(const struct plan *plan)
{
    bool comes = plan->source->tier == HBM_TIER_HOST && plan->tier == HBM_TIER_DEVICE;
    bool goes = plan->source->kind == JOB_EXTENT_DEVICE && plan->tier == HBM_TIER_HOST;

    return (comes || goes) && plan->home && plan_device(plan) == plan->home && plan->source->device == plan->home &&
           plan->n_steps == 1 && plan->steps[0].kind == STEP_COPY && plan->steps[0].bytes == plan->size;
}

unsigned links_for(const struct core *core, const struct plan *plan)
{
    uint64_t least = core->limits.split_bytes, grains = plan->size / core->grain;
    unsigned n = 1;

    if (!least || plan->size < least || !is_between(plan))
        return 1;
    list_for_each (node, &core->devices)
        n += n < LINKS_MAX && n < grains && helps(list_entry(node, struct device, node), plan->home);
    return n;
}

/* ---- The parts ---- */

static void cancel_parts(struct links *links, const struct part *but)
{
    struct core *core = links->track->transition->core;

    for (unsigned i = 0; i < links->n; i++)
        if (&links->parts[i] != but && links->parts[i].device)
            core->env.cancel(core->env.context, &links->parts[i].job);
}

void links_cancel(struct track *track)
{
    track->links->cancelled = true;
    cancel_parts(track->links, NULL);
}

static void part_progress(struct job *job)
{
    struct part *part = container_of(job, struct part, job);
    struct track *track = part->links->track;

    track->bytes = 0;
    for (unsigned i = 0; i < part->links->n; i++)
        track->bytes += part->links->parts[i].job.bytes_done;
    if (track->transition->progress)
        track->transition->progress(track->transition);
}

/* The hashes of all grains, in order, as if one worker had copied them. 0 or an error with a sentence. */
static int combine(struct links *links, uint64_t *checksum)
{
    uint64_t bytes = links->track->job.request.copy.bytes, grain = links->track->transition->core->grain;
    uint64_t grains = bytes / grain + (bytes % grain != 0), at = 0;
    _cleanup_free_ uint64_t *hashes = calloc(grains, sizeof(*hashes));

    if (!hashes) {
        snprintf(links->detail, sizeof(links->detail), "the owner is out of memory for its own tables");
        return HBM_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < links->n; i++) {
        size_t size = 0;
        void *some = memfd_map_sealed(links->parts[i].job.reply_fd, grains * sizeof(*hashes), &size);
        if (some && size / sizeof(*hashes) <= grains - at) {
            memcpy(hashes + at, some, size);
            at += size / sizeof(*hashes);
        }
        if (some)
            munmap(some, size);
    }
    if (at != grains) {
        snprintf(links->detail, sizeof(links->detail), "the hashes of %u parts are not all there", links->n);
        return HBM_E_INTERNAL;
    }
    *checksum = XXH3_64bits(hashes, grains * sizeof(*hashes));
    return 0;
}

struct links *links_free(struct links *links)
{
    for (unsigned i = 0; links && i < links->n; i++)
        fd_close(links->parts[i].job.reply_fd);
    free(links);
    return NULL;
}

static void all_ended(struct links *links)
{
    struct track *track = links->track;
    struct job *whole = &track->job;
    const struct job_copy_request *request = &whole->request.copy;
    void (*done)(struct job *job) = links->done;
    uint64_t checksum = 0;

    for (unsigned i = 0; i < links->n; i++) {
        uint64_t ns = links->parts[i].job.reply.copy.nanoseconds;
        if (whole->reply.copy.nanoseconds < ns)
            whole->reply.copy.nanoseconds = ns;
    }
    int error = links->error ? links->error : combine(links, &checksum);
    if (!error && (request->flags & JOB_VERIFY) && checksum != request->expected) {
        error = HBM_E_CHECKSUM;
        snprintf(links->detail, sizeof(links->detail), "%u parts have another checksum than was stored", links->n);
    }
    whole->error = error;
    whole->reply.copy.checksum = checksum;
    memcpy(whole->detail, links->detail, sizeof(whole->detail));
    track->links = links_free(links);
    done(whole);
}

static void part_done(struct job *job);

static void describe_part(struct part *part, struct device *device, uint64_t offset, uint64_t bytes)
{
    const struct plan *plan = part->links->track->plan;
    struct job *job = &part->job;
    struct job_copy_request *copy = &job->request.copy;

    part->device = device;
    if (device->is_cuda) /* mapping it takes longer than the copy: it stays mapped there, too */
        farewells_add(plan->tier == HBM_TIER_DEVICE ? &plan->source->farewells : &plan->target->farewells, device);
    *job = (struct job){.opcode = JOB_COPY, .device = device->index, .progress = part_progress, .done = part_done, .reply_fd = -1};
    extent_describe(plan->source, job, &copy->source);
    extent_describe(plan->target, job, &copy->target);
    copy->source_offset = copy->target_offset = offset;
    copy->bytes = bytes;
    copy->flags = JOB_HASHES;
    if (device != plan->home)
        copy->flags |= plan->tier == HBM_TIER_DEVICE ? JOB_TO_PEER : JOB_FROM_PEER;
}

/* What it passes through on a neighbour has its room there meanwhile. */
static void begin(struct part *part)
{
    struct core *core = part->device->core;

    part->device->moves++;
    if (part->device != part->links->track->plan->home)
        part->device->used[HBM_TIER_DEVICE] += core->passing;
    core->env.submit(core->env.context, &part->job);
}

static void end(struct part *part)
{
    struct device *device = TAKE_PTR(part->device);
    struct room room = {.core = device->core, .device = device, .tier = HBM_TIER_DEVICE, .size = device->core->passing};

    device->moves--;
    if (device != part->links->track->plan->home)
        room_release(&room);
}

/* Not what a process that is still there may write once more when somebody has the memory. */
static bool may_go_over_the_own(const struct part *part, const struct device *device)
{
    return device != part->links->track->plan->home && !part->links->error && !part->links->cancelled && !part->job.at_large &&
           part->job.error != HBM_E_CANCELLED;
}

static void part_done(struct job *job)
{
    struct part *part = container_of(job, struct part, job);
    struct links *links = part->links;
    struct device *device = part->device, *home = links->track->plan->home;

    end(part);
    if (job->error && may_go_over_the_own(part, device)) {
        log_warning("%s cannot help with a copy of %s (%s: %s): its part goes over the own link", device->uuid, home->uuid,
                    hbm_error_what(job->error), job->detail);
        fd_close(job->reply_fd);
        describe_part(part, home, job->request.copy.source_offset, job->request.copy.bytes);
        begin(part);
        return;
    }
    if (job->error && !links->error) {
        links->error = job->error;
        memcpy(links->detail, job->detail, sizeof(links->detail));
        cancel_parts(links, part);
    }
    links->track->job.at_large |= job->at_large;
    if (--links->left == 0)
        all_ended(links);
}

bool links_start(struct track *track, void (*done)(struct job *job))
{
    struct core *core = track->transition->core;
    const struct plan *plan = track->plan;
    unsigned n = extent_is_made(plan->target) && plan->target->kind != JOB_EXTENT_CUDA_IPC ? links_for(core, plan) : 1, i = 0;
    struct links *links = n > 1 ? calloc(1, sizeof(*links)) : NULL;
    uint64_t share = plan->size / core->grain / n * core->grain, offset = 0;

    if (!links)
        return false;
    *links = (struct links){.track = track, .done = done, .n = n, .left = n};
    for (unsigned j = 0; j < n; j++)
        links->parts[j].links = links;
    list_for_each (node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (i + 1 < n && helps(device, plan->home)) {
            describe_part(&links->parts[i++], device, offset, share);
            offset += share;
        }
    }
    describe_part(&links->parts[i], plan->home, offset, plan->size - offset);
    track->links = links;
    if (track->transition->links < n)
        track->transition->links = n;
    for (i = 0; i < n; i++)
        begin(&links->parts[i]);
    return true;
}
