#include "daemon/worker/file_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/checksum.h"
#include "daemon/worker/io.h"
#include "proto/memfd.h"

#define GAP ((uint64_t)128 << 10)                           /* reading this much is no slower than asking twice */
#define FILE_END_MAX ((uint64_t)INT64_MAX - CHECKSUM_CHUNK) /* rounding an end up stays a file offset */

static int by_file_offset(const void *a, const void *b)
{
    const struct job_range *x = a, *y = b;

    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

static void load(struct file_plan *plan, int fd, uint64_t n, struct failure *failure)
{
    size_t size = n * sizeof(struct job_range);
    void *bytes = memfd_map_exact(fd, size);

    if (!bytes) {
        fail(failure, HBM_E_BAD_REQUEST, "the ranges are no sealed memfd of %llu ranges: %s",
             (unsigned long long)n, strerror(errno));
        return;
    }
    plan->ranges = malloc(size);
    if (plan->ranges)
        memcpy(plan->ranges, bytes, size);
    munmap(bytes, size);
    if (!plan->ranges)
        fail(failure, HBM_E_SYSTEM, "out of memory for %llu ranges", (unsigned long long)n);
}

static int check(struct file_plan *plan, uint64_t n, uint64_t extent_size, struct failure *failure)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct job_range *r = &plan->ranges[i];

        if (r->extent_offset > extent_size || r->bytes > extent_size - r->extent_offset ||
            r->file_offset > FILE_END_MAX || r->bytes > FILE_END_MAX - r->file_offset)
            return fail(failure, HBM_E_BAD_REQUEST, "range %llu reaches beyond the extent or any file",
                        (unsigned long long)i);
        if (__builtin_add_overflow(plan->bytes, r->bytes, &plan->bytes))
            return fail(failure, HBM_E_BAD_REQUEST, "the ranges overflow");
    }
    return 0;
}

/* Tensors that lie side by side in both places are one range. */
static void merge(struct file_plan *plan, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct job_range *r = &plan->ranges[i];
        struct job_range *last = plan->n_ranges ? &plan->ranges[plan->n_ranges - 1] : NULL;

        if (!r->bytes)
            continue;
        if (r->file_offset + r->bytes > plan->end)
            plan->end = r->file_offset + r->bytes;
        if (last && last->file_offset + last->bytes == r->file_offset &&
            last->extent_offset + last->bytes == r->extent_offset)
            last->bytes += r->bytes;
        else
            plan->ranges[plan->n_ranges++] = *r;
    }
}

/* Calls with windows == NULL count. */
static uint64_t cut(const struct file_plan *plan, struct file_window *windows, bool write)
{
    uint64_t n = 0, gap = write ? 0 : GAP, align = write ? 1 : IO_ALIGN, start = 0, end = 0;

    for (uint64_t i = 0, first = 0; i < plan->n_ranges; i++) {
        uint64_t from = plan->ranges[i].file_offset, to = from + plan->ranges[i].bytes;

        if (from < end)
            from = end; /* an earlier range asked for these bytes already */
        while (from < to) {
            if (!n || from - end > gap || from - start >= CHECKSUM_CHUNK) {
                start = from / align * align;
                while (first < i && plan->ranges[first].file_offset + plan->ranges[first].bytes <= start)
                    first++;
                if (windows)
                    windows[n] = (struct file_window){.offset = start, .first = first};
                n++;
            }
            end = to - start > CHECKSUM_CHUNK ? start + CHECKSUM_CHUNK : to;
            if (windows)
                windows[n - 1].bytes = end - start;
            from = end;
        }
    }
    return n;
}

int file_plan_make(struct file_plan *plan, int ranges_fd, uint64_t n_ranges, uint64_t extent_size, bool write,
                   struct failure *failure)
{
    *plan = (struct file_plan){0};
    load(plan, ranges_fd, n_ranges, failure);
    if (!plan->ranges || check(plan, n_ranges, extent_size, failure)) {
        file_plan_free(plan);
        return failure->error;
    }
    qsort(plan->ranges, n_ranges, sizeof(*plan->ranges), by_file_offset);
    merge(plan, n_ranges);
    plan->n_windows = cut(plan, NULL, write);
    plan->windows = calloc(plan->n_windows + 1, sizeof(*plan->windows));
    if (!plan->windows) {
        file_plan_free(plan);
        return fail(failure, HBM_E_SYSTEM, "out of memory for %llu windows", (unsigned long long)plan->n_windows);
    }
    cut(plan, plan->windows, write);
    return 0;
}

void file_plan_free(struct file_plan *plan)
{
    free(plan->ranges);
    free(plan->windows);
    *plan = (struct file_plan){0};
}
