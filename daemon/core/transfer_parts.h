/* A transfer's ranges, checked and sorted into parts: what one FILE job does, in one arena. */
#pragma once

#include "daemon/core/recode.h"
#include "proto/messages.h"

struct transfer_part {
    uint64_t arena;        /* id */
    struct extent *extent; /* one ref: as it was when the transfer was asked for */
    struct plan decode; /* encoded buffers are written out as their logical dtype: into a temporary extent first */
    struct job_range *ranges;
    uint32_t n;
    uint64_t bytes;
    bool hold; /* filled from the file: nobody may move it meanwhile */
};

struct transfer_parts {
    struct transfer_part *at;
    size_t n;
};

/* 0, or an error with detail: NOT_FOUND, STALE, DENIED, NOT_READY, INVALID, UNSUPPORTED, NO_MEMORY. */
int transfer_parts_make(struct core *core, const struct call *call, const struct wire_range *ranges, uint32_t n,
                        bool write, struct transfer_parts *parts, char *detail);
void transfer_part_clear(struct transfer_part *part);
void transfer_parts_clear(struct transfer_parts *parts);
