#include "daemon/core/tier.h"

static uint64_t part(uint64_t whole, unsigned percent)
{
    return whole / 100 * percent + whole % 100 * percent / 100;
}

struct tier device_tier(const struct device *device, enum hbm_tier tier)
{
    const struct watermarks *marks = &device->core->limits.watermarks[tier];
    struct tier is = {.capacity = device->capacity[tier],
                      .used = device->used[tier],
                      .closing = device->closing[tier],
                      .pooled = tier == HBM_TIER_HOST ? device->pooled : 0,
                      .has_marks = marks->high && tier != HBM_TIER_DISK};

    is.high = is.has_marks ? part(is.capacity, marks->high) : is.capacity;
    is.low = is.has_marks && marks->low < marks->high ? part(is.capacity, marks->low) : is.high;
    return is;
}
