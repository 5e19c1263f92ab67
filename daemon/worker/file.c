/* FILE: ranges between a user's file and an extent, window by window through staging. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/worker/file_plan.h"
#include "daemon/worker/rights.h"
#include "daemon/worker/side.h"
#include "daemon/worker/staging.h"

/* Those that linux/magic.h leaves out. */
#define CONFIGFS_MAGIC 0x62656570
#define FUSE_CTL_SUPER_MAGIC 0x65735543
#define MQUEUE_MAGIC 0x19800202

struct filing {
    struct job *job;
    struct side side;
    struct io_file file;
    struct file_plan plan;
    struct kit kits[LANES_MAX];
};

/* The part of a range that lies in a window. */
struct part {
    uint64_t in_window, in_extent;
    size_t bytes;
};

static bool part_of(const struct job_range *r, const struct file_window *w, struct part *part)
{
    uint64_t from = r->file_offset > w->offset ? r->file_offset : w->offset;
    uint64_t to = r->file_offset + r->bytes, end = w->offset + w->bytes;

    if (to > end)
        to = end;
    if (from >= to)
        return false;
    *part = (struct part){from - w->offset, r->extent_offset + (from - r->file_offset), to - from};
    return true;
}

static int move_part(struct filing *f, struct kit *kit, const struct part *p, bool write, struct failure *failure)
{
    unsigned char *staged = kit->slot + p->in_window;
    unsigned char *there = f->side.view.bytes + p->in_extent;

    if (f->side.view.on_device)
        return device_copy(write ? DEVICE_DOWN : DEVICE_UP, write ? staged : there, write ? there : staged,
                           p->bytes, failure);
    memcpy(write ? staged : there, write ? there : staged, p->bytes);
    return 0;
}

/* Between the staged window and all ranges that reach into it. */
static int move_parts(struct filing *f, struct kit *kit, const struct file_window *w, bool write,
                      struct failure *failure)
{
    enum device_stream stream = write ? DEVICE_DOWN : DEVICE_UP;
    bool on_device = f->side.view.on_device;
    struct part part;

    if (on_device && !kit->mark.event && device_mark_new(&kit->mark, failure))
        return failure->error;
    for (uint64_t i = w->first; i < f->plan.n_ranges && f->plan.ranges[i].file_offset < w->offset + w->bytes; i++)
        if (part_of(&f->plan.ranges[i], w, &part) && move_part(f, kit, &part, write, failure)) {
            if (on_device)
                device_drain(stream);
            return failure->error;
        }
    if (!on_device)
        return 0;
    return device_mark(stream, &kit->mark, failure) ? failure->error : device_wait(&kit->mark, failure);
}

static int read_window(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct filing *f = context;
    struct kit *kit = &f->kits[lane];
    const struct file_window *w = &f->plan.windows[index];
    size_t got = 0;

    if (job_poll(f->job, failure) || kit_slot(kit, failure) ||
        io_read(&kit->io, &f->file, kit->slot, (w->bytes + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN, w->offset, &got,
                failure))
        return failure->error;
    if (got < w->bytes)
        return fail(failure, HBM_E_IO, "the file is shorter than %llu bytes",
                    (unsigned long long)(w->offset + w->bytes));
    if (move_parts(f, kit, w, false, failure))
        return failure->error;
    job_advance(f->job, w->bytes);
    return 0;
}

static int write_window(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct filing *f = context;
    struct kit *kit = &f->kits[lane];
    const struct file_window *w = &f->plan.windows[index];

    if (job_poll(f->job, failure) || kit_slot(kit, failure) || move_parts(f, kit, w, true, failure) ||
        io_write(&kit->io, &f->file, kit->slot, w->bytes, w->offset, failure))
        return failure->error;
    job_advance(f->job, w->bytes);
    return 0;
}

/* Files of the kernel's own are not written or read for others: what such a write does is up to who writes, and
 * that would be this process. */
static bool is_kernels_own(int fd)
{
    static const uint32_t types[] = {
        PROC_SUPER_MAGIC, SYSFS_MAGIC,      CGROUP_SUPER_MAGIC,   CGROUP2_SUPER_MAGIC,  DEBUGFS_MAGIC,
        TRACEFS_MAGIC,    SECURITYFS_MAGIC, CONFIGFS_MAGIC,       DEVPTS_SUPER_MAGIC,   BPF_FS_MAGIC,
        EFIVARFS_MAGIC,   PSTOREFS_MAGIC,   SELINUX_MAGIC,        SMACK_MAGIC,          AAFS_MAGIC,
        BINFMTFS_MAGIC,   NSFS_MAGIC,       RDTGROUP_SUPER_MAGIC, FUSE_CTL_SUPER_MAGIC, MQUEUE_MAGIC,
    };
    struct statfs status;

    if (fstatfs(fd, &status) < 0)
        return true; /* no disk is that mute */
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if ((uint32_t)status.f_type == types[i])
            return true;
    return false;
}

/* What the sender may not do with its fd stays forbidden. */
static int check_file(int fd, bool write, uint64_t end, struct failure *failure)
{
    struct stat status;
    int flags = fcntl(fd, F_GETFL), access = flags & O_ACCMODE;

    if (flags < 0 || fstat(fd, &status) < 0)
        return fail_errno(failure, HBM_E_SYSTEM, "fstat of the file", errno);
    if (!S_ISREG(status.st_mode) || is_kernels_own(fd))
        return fail(failure, HBM_E_INVALID, "it is no regular file on a disk or in memory");
    if ((flags & O_PATH) || access == (write ? O_RDONLY : O_WRONLY))
        return fail(failure, HBM_E_DENIED, "the file is not open for %s", write ? "writing" : "reading");
    if (write && (flags & O_APPEND))
        return fail(failure, HBM_E_INVALID, "the file is open for appending: every write would land at its end");
    if (!write && (uint64_t)status.st_size < end)
        return fail(failure, HBM_E_IO, "the file is shorter than %llu bytes: %llu", (unsigned long long)end,
                    (unsigned long long)status.st_size);
    return 0;
}

static int move_windows(struct filing *f, int fd, bool write, struct failure *failure)
{
    if (check_file(fd, write, f->plan.end, failure))
        return failure->error;
    if (write)
        f->file = (struct io_file){.fd = fd, .direct = -1};
    else
        io_file_open(&f->file, fd, false);
    lanes_run(staging_lanes(), f->plan.n_windows, write ? write_window : read_window, f, failure);
    kits_close(f->kits);
    io_file_close(&f->file);
    if (write && !failure->error && fdatasync(fd) < 0)
        fail_errno(failure, HBM_E_IO, "fdatasync", errno);
    return failure->error;
}

void job_file(struct job *job)
{
    const struct job_file_request *r = &job->request.file;
    struct filing f = {.job = job};
    uint64_t start = monotonic_ns();
    bool write = r->write != 0;
    int fd = job->fds[job->n_fds - 2], ranges = job->fds[job->n_fds - 1];

    if (file_plan_make(&f.plan, ranges, r->n_ranges, r->extent.size, write, &job->failure))
        return;
    if (!side_open(&f.side, &r->extent, job->n_fds == 3 ? job->fds[0] : -1, !write, &job->failure)) {
        rights_become(r->uid);
        move_windows(&f, fd, write, &job->failure);
        rights_return();
        side_close(&f.side);
    }
    job->reply.file.bytes = f.plan.bytes;
    job->reply.file.nanoseconds = monotonic_ns() - start;
    file_plan_free(&f.plan);
}
