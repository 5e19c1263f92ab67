/* What plot.py draws: one JSON object a line, appended to the file that BENCH_TRACE names, if it names one. */
#pragma once

#include "tests/bench/bench.h"

static inline FILE *trace_open(void)
{
    const char *path = getenv("BENCH_TRACE");

    return path ? fopen(path, "ae") : NULL;
}

static inline void trace_close(FILE *trace)
{
    if (trace)
        fclose(trace);
}

/* So many bytes of that move have arrived, so many seconds after it was asked for. */
static inline void trace_bytes(FILE *trace, const char *move, double seconds, double bytes)
{
    if (trace)
        fprintf(trace, "{\"move\": \"%s\", \"seconds\": %.6f, \"bytes\": %.0f}\n", move, seconds, bytes);
}

/* What a line beside the moves stands for. */
static inline void trace_level(FILE *trace, const char *level, double gb_s)
{
    if (trace)
        fprintf(trace, "{\"level\": \"%s\", \"gb_s\": %.3f}\n", level, gb_s);
}

/* That layer took a lane from then to then, in seconds. */
static inline void trace_lane(FILE *trace, const char *lane, unsigned layer, double from, double to)
{
    if (trace)
        fprintf(trace, "{\"lane\": \"%s\", \"layer\": %u, \"from\": %.6f, \"to\": %.6f}\n", lane, layer, from, to);
}
