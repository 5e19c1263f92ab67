#include "daemon/rpc/links.h"

#include <math.h>
#include <string.h>
#include <uv.h>

static void write_link(struct writer *writer, const char *name, const struct traffic *link, uint64_t now_ns)
{
    write_open(writer, NULL, '{');
    write_string(writer, "link", name);
    write_number(writer, "jobs", link->jobs);
    write_number(writer, "bytes_queued", link->queued_bytes);
    write_number(writer, "bytes_moved", link->moved_bytes);
    write_real(writer, "busy_seconds", (double)link->busy_ns / 1e9);
    write_real(writer, "gb_per_s", traffic_rate(link, now_ns) / 1e9);
    write_real(writer, "gb_per_s_measured", link->measured > 0 ? link->measured / 1e9 : (double)NAN);
    write_real(writer, "gb_per_s_limit", link->limit ? (double)link->limit / 1e9 : (double)NAN);
    write_close(writer, '}');
}

static void write_gpudirect(struct writer *writer, const struct job_query_reply *said)
{
    static const char *const states[] = {
        [JOB_GPUDIRECT_OFF] = "off",
        [JOB_GPUDIRECT_ABSENT] = "absent",
        [JOB_GPUDIRECT_THERE] = "there",
        [JOB_GPUDIRECT_FAILED] = "failed",
    };
    static const char *const names[] = {"read", "write"};

    write_open(writer, "gpudirect", '{');
    write_string(writer, "state", states[said->gpudirect % 4]);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t staged = said->staged_rates[i], straight = said->straight_rates[i];
        write_open(writer, names[i], '{');
        write_bool(writer, "chosen", said->gpudirect == JOB_GPUDIRECT_THERE && straight > staged);
        write_real(writer, "gb_per_s", straight ? (double)straight / 1e9 : (double)NAN);
        write_real(writer, "gb_per_s_staged", straight ? (double)staged / 1e9 : (double)NAN);
        write_close(writer, '}');
    }
    write_close(writer, '}');
}

static void write_disk(struct writer *writer, const struct disk_access *disk, const struct books *books)
{
    static const char *const ways[] = {NULL, "io_uring", "threads"};

    write_open(writer, "disk_io", '{');
    write_string(writer, "by", ways[disk->by]);
    write_string(writer, "why",
                 disk->by != DISK_BY_THREADS ? NULL
                 : disk->refused             ? strerror(disk->refused)
                                             : "not asked for");
    if (disk->cache == DISK_UNTRIED)
        write_null(writer, "past_page_cache");
    else
        write_bool(writer, "past_page_cache", disk->cache == DISK_PAST_CACHE);
    if (books->at_ms)
        write_gpudirect(writer, &books->said);
    else
        write_null(writer, "gpudirect");
    write_close(writer, '}');
}

void write_links(struct writer *writer, const struct device *device)
{
    static const char *const names[JOB_LINKS] = {
        [JOB_LINK_DEVICE_TO_HOST] = "device_to_host",
        [JOB_LINK_HOST_TO_DEVICE] = "host_to_device",
        [JOB_LINK_DISK_WRITE] = "disk_write",
        [JOB_LINK_DISK_READ] = "disk_read",
    };
    uint64_t now_ns = uv_hrtime();

    write_open(writer, "links", '[');
    for (unsigned i = 0; i < JOB_LINKS; i++)
        write_link(writer, names[i], &device->links[i], now_ns);
    write_close(writer, ']');
    write_disk(writer, &device->disk, &device->books);
}
