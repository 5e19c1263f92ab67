#include "client/ctl/ranges.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/json_text.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

#define STEPS 127.0f

__attribute__((format(printf, 2, 3))) static bool refuse(char why[RANGES_WHY], const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, RANGES_WHY, format, arguments);
    va_end(arguments);
    return false;
}

int ranges_format_by_name(const char *name)
{
    return !strcmp(name, "tensorrt") ? RANGES_TENSORRT : !strcmp(name, "onnxruntime") ? RANGES_ONNXRUNTIME : -1;
}

/* ---- The list ---- */

bool ranges_add(struct ranges *ranges, char *name, double lo, double hi)
{
    struct range *more = name && !(ranges->n & (ranges->n - 1))
                             ? realloc(ranges->at, (ranges->n ? 2 * ranges->n : 1) * sizeof(*more))
                             : ranges->at;

    if (!name || !more) {
        free(name);
        return false;
    }
    ranges->at = more;
    ranges->at[ranges->n++] = (struct range){name, (float)lo, (float)hi};
    return true;
}

static int compare(const void *left, const void *right)
{
    return strcmp(((const struct range *)left)->name, ((const struct range *)right)->name);
}

bool ranges_sort(struct ranges *ranges, const char **twice)
{
    if (ranges->n)
        qsort(ranges->at, ranges->n, sizeof(*ranges->at), compare);
    for (size_t i = 1; i < ranges->n; i++)
        if (!compare(&ranges->at[i - 1], &ranges->at[i])) {
            *twice = ranges->at[i].name;
            return false;
        }
    return true;
}

const struct range *ranges_find(const struct ranges *ranges, const char *name)
{
    const struct range key = {.name = (char *)name};

    return ranges->n ? bsearch(&key, ranges->at, ranges->n, sizeof(key), compare) : NULL;
}

void ranges_clear(struct ranges *ranges)
{
    for (size_t i = 0; i < ranges->n; i++)
        free(ranges->at[i].name);
    free(ranges->at);
    *ranges = (struct ranges){0};
}

/* ---- TensorRT ---- */

/* "TRT-8601-EntropyCalibration2" */
static bool is_heading(const char *line, size_t length)
{
    size_t at = 4, digits;

    if (length < at || memcmp(line, "TRT-", at))
        return false;
    for (digits = at; at < length && isdigit((unsigned char)line[at]); at++)
        ;
    if (at == digits || at + 1 >= length || line[at++] != '-')
        return false;
    while (at < length && isalnum((unsigned char)line[at]))
        at++;
    return at == length;
}

static bool parse_scale(const char *digits, size_t n, float *scale)
{
    uint32_t bits = 0;

    for (size_t i = 0; i < n; i++) {
        int c = tolower((unsigned char)digits[i]);
        if (!isxdigit(c))
            return false;
        bits = bits << 4 | (uint32_t)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    memcpy(scale, &bits, sizeof(bits));
    return n && n <= 8;
}

/* The name may have ": " in it. */
static bool parse_line(const char *line, size_t length, unsigned number, struct ranges *ranges,
                       char why[RANGES_WHY])
{
    size_t colon = length;
    float scale;

    while (colon && (line[colon - 1] != ':' || colon == length || line[colon] != ' '))
        colon--;
    if (colon < 2 || !parse_scale(line + colon + 1, length - colon - 1, &scale))
        return refuse(why, "line %u is not NAME: SCALE, with the scale in up to 8 hexadecimal digits", number);
    if (!(scale >= 0 && scale <= FLT_MAX / STEPS))
        return refuse(why, "line %u has a scale of %g, which is of no range", number, (double)scale);
    double most = fmin((double)(scale * STEPS), (double)FLT_MAX); /* of the largest the product is rounded up */
    return ranges_add(ranges, strndup(line, colon - 1), -most, most) || refuse(why, "memory is out");
}

static bool parse_tensorrt(const char *text, size_t size, struct ranges *ranges, char why[RANGES_WHY])
{
    const char *end = text + size;

    if (memchr(text, '\0', size))
        return refuse(why, "it has a NUL in it");
    for (unsigned number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *next = newline ? newline + 1 : end;
        size_t length = (size_t)((newline ? newline : end) - text);
        if (length && text[length - 1] == '\r')
            length--;
        if (number == 1 && !is_heading(text, length))
            return refuse(why, "its first line is not that of a TensorRT calibration cache, TRT-VERSION-ALGORITHM");
        if (number > 1 && length && !parse_line(text, length, number, ranges, why))
            return false;
        text = next;
    }
    return size || refuse(why, "it is empty");
}

static char *print_tensorrt(const struct ranges *ranges, char why[RANGES_WHY])
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    fprintf(out, "TRT-8601-MinMaxCalibration\n");
    for (size_t i = 0; i < ranges->n; i++) {
        float scale = fmaxf(fabsf(ranges->at[i].lo), fabsf(ranges->at[i].hi)) / STEPS;
        uint32_t bits;
        memcpy(&bits, &scale, sizeof(bits));
        fprintf(out, "%s: %08x\n", ranges->at[i].name, bits);
    }
    if (fclose(out)) {
        free(text);
        text = NULL;
    }
    if (!text)
        refuse(why, "memory is out");
    return text;
}

/* ---- ONNX Runtime ---- */

/* A number, or NumPy's array of one. */
static bool take_number(const cJSON *item, double *value)
{
    if (cJSON_IsObject(item))
        item = json_only(item, "data");
    if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 1)
        item = cJSON_GetArrayItem(item, 0);
    if (!cJSON_IsNumber(item))
        return false;
    *value = item->valuedouble;
    return true;
}

static bool take_tensor(const cJSON *tensor, struct ranges *ranges, char why[RANGES_WHY])
{
    bool pair = cJSON_IsArray(tensor) && cJSON_GetArraySize(tensor) == 2;
    double lo, hi;

    if (!take_number(pair ? cJSON_GetArrayItem(tensor, 0) : json_only(tensor, "lowest"), &lo) ||
        !take_number(pair ? cJSON_GetArrayItem(tensor, 1) : json_only(tensor, "highest"), &hi))
        return refuse(why, "\"%.100s\" has no lowest and highest, or more than one of each", tensor->string);
    if (!isfinite((float)lo) || !isfinite((float)hi) || lo > hi)
        return refuse(why, "\"%.100s\" has the range %g to %g, which is none", tensor->string, lo, hi);
    return ranges_add(ranges, strdup(tensor->string), lo, hi) || refuse(why, "memory is out");
}

static bool parse_onnxruntime(const char *text, size_t size, struct ranges *ranges, char why[RANGES_WHY])
{
    static const struct json_rules rules = {.depth_max = 16};
    const char *fault = NULL;
    _cleanup_json_ cJSON *root = json_parse(text, size, &rules, &fault);
    const char *class = cJSON_GetStringValue(json_only(root, "CLS"));
    const cJSON *tensors = class ? json_only(root, "data") : root, *tensor;

    if (!root)
        return refuse(why, "it is no JSON: the text %s", fault);
    if (class && strcmp(class, "TensorsData"))
        return refuse(why, "it is a %.100s, not the TensorsData of a calibration", class);
    if (!cJSON_IsObject(tensors))
        return refuse(why, "it has no tensors by name");
    cJSON_ArrayForEach(tensor, tensors) if (!take_tensor(tensor, ranges, why)) return false;
    return true;
}

static void add_number(cJSON *tensor, const char *name, float value)
{
    cJSON *number = cJSON_AddObjectToObject(tensor, name);

    cJSON_AddNumberToObject(number, "data", (double)value);
    cJSON_AddStringToObject(number, "dtype", "float32");
    cJSON_AddStringToObject(number, "CLS", "numpy.array");
}

static char *print_onnxruntime(const struct ranges *ranges, char why[RANGES_WHY])
{
    _cleanup_json_ cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "CLS", "TensorsData");
    cJSON *tensors = cJSON_AddObjectToObject(root, "data");
    cJSON *method = cJSON_AddObjectToObject(root, "calibration_method");

    for (size_t i = 0; i < ranges->n; i++) {
        cJSON *tensor = cJSON_AddObjectToObject(tensors, ranges->at[i].name);
        add_number(tensor, "lowest", ranges->at[i].lo);
        add_number(tensor, "highest", ranges->at[i].hi);
        cJSON_AddStringToObject(tensor, "CLS", "TensorData");
    }
    cJSON_AddStringToObject(method, "CLS", "CalibrationMethod");
    cJSON_AddStringToObject(method, "value", "CalibrationMethod.MinMax");
    char *text = cJSON_PrintUnformatted(root);
    if (!text)
        refuse(why, "memory is out");
    return text;
}

/* ---- Either ---- */

bool ranges_parse(enum ranges_format format, const char *text, size_t size, struct ranges *ret,
                  char why[RANGES_WHY])
{
    _cleanup_(ranges_clear) struct ranges ranges = {0};
    const char *twice;

    if (!(format == RANGES_TENSORRT ? parse_tensorrt : parse_onnxruntime)(text, size, &ranges, why))
        return false;
    if (!ranges_sort(&ranges, &twice))
        return refuse(why, "\"%.100s\" is in it twice", twice);
    *ret = ranges;
    ranges = (struct ranges){0};
    return true;
}

char *ranges_print(enum ranges_format format, const struct ranges *ranges, char why[RANGES_WHY])
{
    return (format == RANGES_TENSORRT ? print_tensorrt : print_onnxruntime)(ranges, why);
}
