#include "daemon/base/traffic.h"

#define SECOND_NS 1000000000u
/* A sample is what so many bytes took. Fewer would measure the way to the worker and back. */
#define SAMPLE_BYTES ((uint64_t)64 << 20)
/* Each sample below the best takes so much of the difference away: what was once reached is forgotten. */
#define FORGET 32

static void count_time(struct traffic *traffic, uint64_t now_ns)
{
    uint64_t spent = traffic->jobs ? now_ns - traffic->counted_ns : 0;

    traffic->busy_ns += spent;
    traffic->sample_ns += spent;
    traffic->counted_ns = now_ns;
}

static void take_sample(struct traffic *traffic)
{
    double rate = traffic->sample_ns ? (double)traffic->sample_bytes * 1e9 / (double)traffic->sample_ns : 0;

    traffic->sample_bytes = traffic->sample_ns = 0;
    if (rate > traffic->measured)
        traffic->measured = rate;
    else if (!traffic->limit) /* a link that is held back says nothing of what it could */
        traffic->measured -= (traffic->measured - rate) / FORGET;
}

static void turn_second(struct traffic *traffic, uint64_t now_ns)
{
    uint64_t second = now_ns / SECOND_NS;

    if (second == traffic->second)
        return;
    traffic->last_bytes = second == traffic->second + 1 ? traffic->second_bytes : 0;
    traffic->second_bytes = 0;
    traffic->second = second;
}

void traffic_begin(struct traffic *traffic, uint64_t bytes, uint64_t now_ns)
{
    count_time(traffic, now_ns);
    traffic->jobs++;
    traffic->queued_bytes += bytes;
}

void traffic_move(struct traffic *traffic, uint64_t moved, uint64_t now_ns)
{
    count_time(traffic, now_ns);
    turn_second(traffic, now_ns);
    traffic->queued_bytes -= moved;
    traffic->moved_bytes += moved;
    traffic->second_bytes += moved;
    traffic->sample_bytes += moved;
    if (traffic->sample_bytes >= SAMPLE_BYTES)
        take_sample(traffic);
}

void traffic_end(struct traffic *traffic, uint64_t unmoved, uint64_t now_ns)
{
    count_time(traffic, now_ns);
    traffic->jobs--;
    traffic->queued_bytes -= unmoved;
}

double traffic_rate(const struct traffic *traffic, uint64_t now_ns)
{
    struct traffic now = *traffic;

    turn_second(&now, now_ns);
    return (double)(now.last_bytes + now.second_bytes) * 1e9 / (double)(SECOND_NS + now_ns % SECOND_NS);
}
