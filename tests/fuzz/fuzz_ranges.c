/* Calibrations of other programs: what is taken is a range each, of names that are there once. The input's first byte says whose. */
#include <float.h>

#include "client/ctl/ranges.h"
#include "tests/fuzz/input.h"

/* A copy of just its size, so that one byte read beyond it is seen. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    enum ranges_format format = take_byte(&in) & 1 ? RANGES_ONNXRUNTIME : RANGES_TENSORRT;
    char *copy = malloc(in.left ? in.left : 1), why[RANGES_WHY] = "";
    struct ranges ranges = {0};

    CHECK(copy);
    memcpy(copy, in.at, in.left);
    if (!ranges_parse(format, copy, in.left, &ranges, why))
        CHECK(*why && memchr(why, 0, sizeof(why)) && !ranges.n);
    for (size_t i = 0; i < ranges.n; i++) {
        const struct range *range = &ranges.at[i];
        CHECK(range->lo >= -FLT_MAX && range->lo <= range->hi && range->hi <= FLT_MAX);
        CHECK(ranges_find(&ranges, range->name) == range);
    }
    ranges_clear(&ranges);
    free(copy);
    return 0;
}
