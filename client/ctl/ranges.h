/* Calibrated ranges as other programs write them.
 * TENSORRT: the text of a calibration cache (TensorRT 7 to 10): TRT-VERSION-ALGORITHM, then a line a tensor, NAME: SCALE, the scale
 * being the pattern of a binary32 in hexadecimal digits, of which 127 are the range.
 * ONNXRUNTIME: calibration.json of onnxruntime.quantization.write_calibration_table, and what its save_tensors_data writes: a
 * TensorsData, as of 1.32, or {NAME: [lowest, highest]}, as of 1.14 to 1.16. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define RANGES_WHY 256

enum ranges_format { RANGES_TENSORRT, RANGES_ONNXRUNTIME };

struct range {
    char *name;
    float lo, hi; /* finite, lo <= hi */
};

struct ranges {
    struct range *at; /* by name, each once */
    size_t n;
};

/* -1: none of that name. */
int ranges_format_by_name(const char *name);
/* False with a sentence in why, and nothing in *ret. */
bool ranges_parse(enum ranges_format format, const char *text, size_t size, struct ranges *ret, char why[RANGES_WHY]);
/* The caller's to free. NULL with a sentence in why: a name or a range that the format has no way to say. */
char *ranges_print(enum ranges_format format, const struct ranges *ranges, char why[RANGES_WHY]);
/* Takes the name (which may be NULL: memory is out). False: memory is out. */
bool ranges_add(struct ranges *ranges, char *name, double lo, double hi);
/* Sorts; false if a name is there twice, which then is *twice. */
bool ranges_sort(struct ranges *ranges, const char **twice);
const struct range *ranges_find(const struct ranges *ranges, const char *name);
void ranges_clear(struct ranges *ranges);
