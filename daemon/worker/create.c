/* CREATE: disk extents are the same on every device, all others are the device's own. */
#include "daemon/worker/device.h"
#include "daemon/worker/disk.h"
#include "daemon/worker/job.h"
#include "daemon/worker/meminfo.h"

/* Of what the machine has available: nobody has asked for it yet. */
#define AHEAD_PART 4

void job_create(struct job *job, const char *state_dir)
{
    const struct job_create_request *r = &job->request.create;

    if (r->flags & JOB_AHEAD && r->size > meminfo_bytes("MemAvailable") / AHEAD_PART) {
        fail(&job->failure, HBM_E_NO_MEMORY, "%llu bytes are more than a quarter of the memory that this machine has available",
             (unsigned long long)r->size);
        return;
    }
    if (r->kind != JOB_EXTENT_DISK) {
        device_create(r, &job->reply.create, &job->reply_fd, &job->failure);
        return;
    }
    if (r->size > INT64_MAX - DISK_ALIGN) {
        fail(&job->failure, HBM_E_TOO_LARGE, "no file can have %llu bytes", (unsigned long long)r->size);
        return;
    }
    uint64_t size = (r->size + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    bool direct = false;
    if (!disk_create(state_dir, size, &job->reply_fd, &direct, &job->failure))
        job->reply.create.size = size;
    job->reply.create.disk_direct = direct;
}
