/* A tier of a device, all that is known of it in one place. */
#pragma once

#include "daemon/core/device.h"

struct tier {
    uint64_t capacity; /* 0: it is not there */
    uint64_t used;
    uint64_t closing;   /* of used: being given back (daemon/core/room.h) */
    uint64_t pooled;    /* of used: nobody's now (daemon/core/host_pool.h) */
    bool has_marks;     /* false: nothing is moved out of it for want of room */
    uint64_t high, low; /* bytes; the capacity where there are no marks */
};

struct tier device_tier(const struct device *device, enum hbm_tier tier);
/* Of used: what does not go by itself. */
static inline uint64_t tier_occupied(const struct tier *tier)
{
    uint64_t goes = tier->closing + tier->pooled;

    return tier->used > goes ? tier->used - goes : 0;
}
