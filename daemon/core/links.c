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
    struct device *device; /* whose worker has it, or is to have it; NULL: it has ended */
    struct job job;
};

/* The last part is the own link's. It begins first, and the others once its memory is mapped: mapping a neighbour's memory
 * takes 10 ms (2 GiB on an H200, driver 580.159.04, 2026-11-30), and who maps at the same time waits for it. */
struct links {
    struct track *track;
    void (*done)(struct job *job);
    unsigned n, left;
    bool cancelled, all_begun;
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
        if (&links->parts[i] != but && links->parts[i].device && (links->all_begun || i + 1 == links->n))
            core->env.cancel(core->env.context, &links->parts[i].job);
}

void links_cancel(struct track *track)
{
    track->links->cancelled = true;
    cancel_parts(track->links, NULL);
}

static void begin_others(struct links *links)
{
    struct core *core = links->track->transition->core;

    if (links->all_begun || links->cancelled || links->error)
        return;
    links->all_begun = true;
    for (unsigned i = 0; i + 1 < links->n; i++)
        core->env.submit(core->env.context, &links->parts[i].job);
}

static void part_progress(struct job *job)
{
    struct part *part = container_of(job, struct part, job);
    struct track *track = part->links->track;

    begin_others(part->links);
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
        snprintf(links->detail, sizeof(links->detail), OWNER_OUT_OF_MEMORY);
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

static double speed_of(const struct part *part)
{
    return (double)part->job.request.copy.bytes / (double)part->job.reply.copy.nanoseconds;
}

/* So that all end at the same time, the next time. */
static void learn_shares(const struct links *links)
{
    const struct part *own = &links->parts[links->n - 1];
    struct core *core = links->track->transition->core;

    for (unsigned i = 0; i + 1 < links->n; i++) {
        const struct part *part = &links->parts[i];
        if (part->job.device == own->job.device || !part->job.reply.copy.nanoseconds || !own->job.reply.copy.nanoseconds)
            return;
    }
    for (unsigned i = 0; i + 1 < links->n; i++) {
        struct device *device = device_at(core, links->parts[i].job.device);
        double share = LINKS_SHARE * speed_of(&links->parts[i]) / speed_of(own);
        if (device)
            device->link_share = share > LINKS_SHARE ? LINKS_SHARE : share < LINKS_SHARE_MIN ? LINKS_SHARE_MIN : (unsigned)share;
    }
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
    if (!error)
        learn_shares(links);
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
static void engage(struct part *part)
{
    part->device->moves++;
    if (part->device != part->links->track->plan->home)
        part->device->used[HBM_TIER_DEVICE] += part->device->core->passing;
}

static void release(struct part *part)
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

/* The own part has come to nothing before the others began. */
static void drop_others(struct links *links)
{
    for (unsigned i = 0; i + 1 < links->n; i++)
        release(&links->parts[i]);
    links->left -= links->n - 1;
    links->all_begun = true;
    if (!links->error)
        links->error = HBM_E_CANCELLED;
}

static void part_done(struct job *job)
{
    struct part *part = container_of(job, struct part, job);
    struct links *links = part->links;
    struct core *core = links->track->transition->core;
    struct device *device = part->device, *home = links->track->plan->home;

    release(part);
    if (job->error && may_go_over_the_own(part, device)) {
        log_warning("%s cannot help with a copy of %s (%s: %s): its part goes over the own link", device->uuid, home->uuid,
                    hbm_error_what(job->error), job->detail);
        fd_close(job->reply_fd);
        describe_part(part, home, job->request.copy.source_offset, job->request.copy.bytes);
        engage(part);
        core->env.submit(core->env.context, job);
        return;
    }
    if (job->error && !links->error) {
        links->error = job->error;
        memcpy(links->detail, job->detail, sizeof(links->detail));
        cancel_parts(links, part);
    }
    links->track->job.at_large |= job->at_large;
    begin_others(links);
    if (!links->all_begun)
        drop_others(links);
    if (--links->left == 0)
        all_ended(links);
}

/* At most as much as the own link gets, of n. */
static uint64_t share_of(const struct device *device, const struct plan *plan, unsigned n)
{
    uint64_t grain = device->core->grain, share = device->link_share ? device->link_share : LINKS_SHARE;
    uint64_t grains = plan->size / grain * share / ((n - 1) * share + LINKS_SHARE);

    return (grains ? grains : 1) * grain;
}

bool links_start(struct track *track, void (*done)(struct job *job))
{
    struct core *core = track->transition->core;
    const struct plan *plan = track->plan;
    unsigned n = extent_is_made(plan->target) && plan->target->kind != JOB_EXTENT_CUDA_IPC ? links_for(core, plan) : 1, i = 0;
    struct links *links = n > 1 ? calloc(1, sizeof(*links)) : NULL;
    uint64_t offset = 0;

    if (!links)
        return false;
    *links = (struct links){.track = track, .done = done, .n = n, .left = n};
    for (unsigned j = 0; j < n; j++)
        links->parts[j].links = links;
    list_for_each (node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (i + 1 < n && helps(device, plan->home)) {
            uint64_t bytes = share_of(device, plan, n);
            describe_part(&links->parts[i++], device, offset, bytes);
            offset += bytes;
        }
    }
    describe_part(&links->parts[i], plan->home, offset, plan->size - offset);
    track->links = links;
    if (track->transition->links < n)
        track->transition->links = n;
    for (i = 0; i < n; i++)
        engage(&links->parts[i]);
    core->env.submit(core->env.context, &links->parts[n - 1].job);
    return true;
}
