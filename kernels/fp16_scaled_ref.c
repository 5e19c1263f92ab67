/* fp16-scaled on the host. */
#include "kernels/fp16_scaled.h"
#include "kernels/units_ref.h"

static int code(float x, float scale, bool *clipped)
{
    (void)clipped; /* the scale leaves room */
    return fp16_scaled_code(x, scale);
}

static float value(int stored, float scale)
{
    return fp16_scaled_value((uint16_t)stored, scale);
}

static int get(const void *data, uint64_t index)
{
    return ((const uint16_t *)data)[index];
}

static void put(void *data, uint64_t index, int stored)
{
    ((uint16_t *)data)[index] = (uint16_t)stored;
}

static const struct unit_code fp16_scaled = {fp16_scaled_scale, code, value, get, put};

UNITS_REFERENCE(fp16_scaled);
