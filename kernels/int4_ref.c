/* int4 on the host. */
#include "kernels/int4.h"
#include "kernels/units_ref.h"

static float scale_of(float amax)
{
    return element_scale(amax, INT4_MOST);
}

static int code(float x, float scale, bool *clipped)
{
    (void)clipped; /* with the scale of its unit nothing is */
    return int4_code(x, scale);
}

static int get(const void *data, uint64_t index)
{
    return int4_signed((unsigned)((const uint8_t *)data)[index / 2] >> index % 2 * 4);
}

static void put(void *data, uint64_t index, int stored)
{
    uint8_t *byte = &((uint8_t *)data)[index / 2];

    *byte = (uint8_t)(index % 2 ? *byte | (stored & 15) << 4 : stored & 15);
}

static const struct unit_code int4 = {scale_of, code, int4_value, get, put};

UNITS_REFERENCE(int4);
