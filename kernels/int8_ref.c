/* int8 on the host. */
#include "kernels/units_ref.h"

static int get(const void *data, uint64_t index)
{
    return ((const int8_t *)data)[index];
}

static const struct unit_code int8 = {int8_scale, int8_code, int8_value, get, units_put_byte};

UNITS_REFERENCE(int8);
