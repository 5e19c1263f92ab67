#include "daemon/worker/gds.h"

#include <inttypes.h>
#include <pthread.h>

#include "daemon/base/log.h"
#include "daemon/worker/job.h"

static struct {
    pthread_mutex_t mutex;
    enum job_gpudirect state;
    uint64_t staged_rates[2], straight_rates[2]; /* bytes a second; 0: not measured yet */
} gds = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void gds_start(bool allowed, bool reachable)
{
    bool there = allowed && cufile_find(reachable);

    pthread_mutex_lock(&gds.mutex);
    gds.state = there ? JOB_GPUDIRECT_THERE : allowed ? JOB_GPUDIRECT_ABSENT : JOB_GPUDIRECT_OFF;
    pthread_mutex_unlock(&gds.mutex);
}

enum gds_way gds_way(enum gds_direction direction)
{
    pthread_mutex_lock(&gds.mutex);
    uint64_t staged = gds.staged_rates[direction], straight = gds.straight_rates[direction];
    enum gds_way way = gds.state != JOB_GPUDIRECT_THERE ? GDS_STAGED
                       : !straight                      ? GDS_UNMEASURED
                       : straight > staged              ? GDS_STRAIGHT
                                                        : GDS_STAGED;
    pthread_mutex_unlock(&gds.mutex);
    return way;
}

static uint64_t rate(uint64_t bytes, uint64_t ns)
{
    return (uint64_t)((double)bytes * 1e9 / (double)(ns ? ns : 1));
}

void gds_measured(enum gds_direction direction, uint64_t bytes, uint64_t staged_ns, uint64_t straight_ns)
{
    uint64_t staged = rate(bytes, staged_ns), straight = rate(bytes, straight_ns);

    pthread_mutex_lock(&gds.mutex);
    gds.staged_rates[direction] = staged;
    gds.straight_rates[direction] = straight;
    pthread_mutex_unlock(&gds.mutex);
    log_info("disk %s %s: %.2f GB/s so, %.2f GB/s staged", direction == GDS_READ ? "reads" : "writes",
             straight > staged ? "go by GPUDirect Storage" : "do not go by GPUDirect Storage",
             (double)straight / 1e9, (double)staged / 1e9);
}

void gds_failed(const struct failure *failure)
{
    pthread_mutex_lock(&gds.mutex);
    bool first = gds.state == JOB_GPUDIRECT_THERE;
    gds.state = first ? JOB_GPUDIRECT_FAILED : gds.state;
    pthread_mutex_unlock(&gds.mutex);
    if (first)
        log_warning("GPUDirect Storage is not used any more, disks are read and written by staging: %s; "
                    "gpudirect_storage = off keeps it from being tried",
                    failure->detail);
}

void gds_report(struct job_query_reply *reply)
{
    pthread_mutex_lock(&gds.mutex);
    reply->gpudirect = gds.state;
    for (unsigned i = 0; i < 2; i++) {
        reply->staged_rates[i] = gds.staged_rates[i];
        reply->straight_rates[i] = gds.straight_rates[i];
    }
    pthread_mutex_unlock(&gds.mutex);
}

static bool is_wanted(enum gds_direction direction, uint64_t chunks)
{
    switch (gds_way(direction)) {
    case GDS_UNMEASURED:
        return chunks >= GDS_MEASURED_FROM;
    case GDS_STAGED:
        return false;
    case GDS_STRAIGHT:
        return true;
    }
    return false;
}

bool gds_open(struct gds *copy, const struct side *source, const struct side *target, uint64_t chunks)
{
    const struct side *disk = source->is_disk ? source : target, *memory = source->is_disk ? target : source;
    struct failure failure = {0};

    *copy = (struct gds){.direction = source->is_disk ? GDS_READ : GDS_WRITE};
    /* The cipher is the CPU's. */
    if (!disk->is_disk || disk->encrypted || disk->file.direct < 0 || memory->is_disk || !memory->view.on_device ||
        !is_wanted(copy->direction, chunks))
        return false;
    int error = cufile_begin(&failure);
    uint64_t start = monotonic_ns();
    error = error ? error
                  : cufile_open(&copy->file, disk->file.direct, memory->view.bytes, memory->view.size, &failure);
    if (error)
        gds_failed(&failure);
    copy->open_ns = monotonic_ns() - start;
    copy->bytes = memory->view.size;
    return !error;
}

uint64_t gds_open_share(const struct gds *copy, uint64_t bytes)
{
    return (uint64_t)((double)copy->open_ns * (double)bytes / (double)copy->bytes);
}

void gds_close(struct gds *copy)
{
    cufile_close(&copy->file);
}

bool gds_move(const struct gds *copy, uint64_t source_offset, uint64_t target_offset, size_t bytes)
{
    struct failure failure = {0};

    if (source_offset % CUFILE_ALIGN || target_offset % CUFILE_ALIGN || bytes % CUFILE_ALIGN ||
        gds_way(copy->direction) == GDS_STAGED)
        return false;
    int error = copy->direction == GDS_READ
                    ? cufile_read(&copy->file, target_offset, bytes, source_offset, &failure)
                    : cufile_write(&copy->file, source_offset, bytes, target_offset, &failure);
    if (error)
        gds_failed(&failure);
    return !error;
}
