/* The two fp8 on the host. */
#include "kernels/fp8.h"
#include "kernels/units_ref.h"

#define FP8(name, kind)                                                                                            \
    static float name##_scale(float amax)                                                                          \
    {                                                                                                              \
        return element_scale(amax, ((struct fp8_kind)kind).most);                                                  \
    }                                                                                                              \
    static int name##_code(float x, float scale, bool *clipped)                                                    \
    {                                                                                                              \
        *clipped = fp8_clips(x, scale, (struct fp8_kind)kind);                                                     \
        return fp8_code(x, scale, (struct fp8_kind)kind);                                                          \
    }                                                                                                              \
    static float name##_value(int code, float scale)                                                               \
    {                                                                                                              \
        return fp8_value((uint8_t)code, scale, (struct fp8_kind)kind);                                             \
    }                                                                                                              \
    static const struct unit_code name = {name##_scale, name##_code, name##_value, units_get_byte,                 \
                                          units_put_byte};                                                         \
    UNITS_REFERENCE(name)

FP8(fp8_e4m3, FP8_E4M3);
FP8(fp8_e5m2, FP8_E5M2);
