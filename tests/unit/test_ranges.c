/* Calibrations that other programs write: what is taken of them, what is refused, and that ours are such files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/ranges.h"

static bool parse(enum ranges_format format, const char *text, struct ranges *ranges, char why[RANGES_WHY])
{
    size_t size = strlen(text);
    char *tight = malloc(size ? size : 1);

    memcpy(tight, text, size);
    bool parsed = ranges_parse(format, tight, size, ranges, why);
    free(tight);
    return parsed;
}

static void refused(enum ranges_format format, const char *text, const char *sentence)
{
    struct ranges ranges = {0};
    char why[RANGES_WHY] = "";

    if (parse(format, text, &ranges, why))
        fail_msg("taken: %s", text);
    if (!strstr(why, sentence))
        fail_msg("\"%s\" does not say \"%s\"", why, sentence);
    assert_true(!ranges.n && !ranges.at);
}

static void a_cache_of_tensorrt_has_a_scale_a_tensor(void **state)
{
    static const char cache[] = "TRT-8601-EntropyCalibration2\r\ninput: 3c010a14\nonnx::Conv_1: 0: 40172e5d\n\n"
                                "(Unnamed Layer* 5) [Constant]_output: 0\n";
    struct ranges ranges;
    char why[RANGES_WHY];
    (void)state;

    assert_true(parse(RANGES_TENSORRT, cache, &ranges, why));
    assert_int_equal(ranges.n, 3);
    const struct range *range = ranges_find(&ranges, "onnx::Conv_1: 0");
    assert_true(range && range->hi > 299.99f && range->hi < 300.01f && range->lo == -range->hi);
    range = ranges_find(&ranges, "input");
    assert_true(range && range->hi > 0.99f && range->hi < 1.01f);
    range = ranges_find(&ranges, "(Unnamed Layer* 5) [Constant]_output");
    assert_true(range && range->lo == 0 && range->hi == 0); /* that it is none is said to who wants it */
    assert_null(ranges_find(&ranges, "onnx::Conv_1"));
    ranges_clear(&ranges);
}

static void a_cache_that_lies_is_refused_with_its_line(void **state)
{
    (void)state;
    refused(RANGES_TENSORRT, "", "empty");
    refused(RANGES_TENSORRT, "input: 3c010a14\n", "first line");
    refused(RANGES_TENSORRT, "TRT-\n", "first line");
    refused(RANGES_TENSORRT, "TRT-x-MinMaxCalibration\n", "first line");
    refused(RANGES_TENSORRT, "TRT-8601-\n", "first line");
    refused(RANGES_TENSORRT, "TRT-8601-MinMax Calibration\n", "first line");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 3f800000\nb 3f800000\n", "line 3");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na:3f800000\n", "line 2");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\n: 3f800000\n", "line 2");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: \n", "line 2");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 3f8000000\n", "line 2");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 1.5\n", "line 2");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: bf800000\n", "line 2 has a scale");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 7fc00000\n", "line 2 has a scale");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 7f800000\n", "line 2 has a scale");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 7f7fffff\n", "line 2 has a scale");
    refused(RANGES_TENSORRT, "TRT-8601-MinMaxCalibration\na: 3f800000\na: 3f800000\n", "twice");
    struct ranges ranges = {0};
    char why[RANGES_WHY];
    assert_false(ranges_parse(RANGES_TENSORRT, "TRT-8601-A\na\0b: 3f800000\n", 25, &ranges, why));
    assert_non_null(strstr(why, "NUL"));
}

static void a_calibration_of_onnx_runtime_has_both_ends(void **state)
{
    static const char *const texts[] = {
        "{\"CLS\": \"TensorsData\", \"data\": {\"a/b\": {\"lowest\": -1.5, \"highest\": 2.25, \"CLS\": "
        "\"TensorData\"}, \"x\": {\"lowest\": "
        "{\"data\": 0.0, \"dtype\": \"float32\", \"CLS\": \"numpy.array\"}, \"highest\": {\"data\": [7.0], "
        "\"dtype\": \"float32\", \"CLS\": "
        "\"numpy.array\"}, \"hist\": {\"data\": [1, 2], \"dtype\": \"int64\", \"CLS\": \"numpy.array\"}, \"CLS\": "
        "\"TensorData\"}}, "
        "\"calibration_method\": {\"CLS\": \"CalibrationMethod\", \"value\": \"CalibrationMethod.MinMax\"}, "
        "\"smooth_quant\": false}",
        "{\"x\": [0, 7.0], \"a/b\": [-1.5, 2.25]}",
    };
    (void)state;

    for (unsigned i = 0; i < 2; i++) {
        struct ranges ranges;
        char why[RANGES_WHY] = "";
        if (!parse(RANGES_ONNXRUNTIME, texts[i], &ranges, why))
            fail_msg("%s", why);
        assert_int_equal(ranges.n, 2);
        assert_true(ranges.at[0].lo == -1.5f && ranges.at[0].hi == 2.25f && !strcmp(ranges.at[0].name, "a/b"));
        assert_true(ranges.at[1].lo == 0 && ranges.at[1].hi == 7 && !strcmp(ranges.at[1].name, "x"));
        ranges_clear(&ranges);
    }
}

static void a_calibration_that_lies_is_refused_with_its_tensor(void **state)
{
    (void)state;
    refused(RANGES_ONNXRUNTIME, "", "JSON");
    refused(RANGES_ONNXRUNTIME, "TRT-8601-MinMaxCalibration\n", "JSON");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [0, 1]", "JSON");
    refused(RANGES_ONNXRUNTIME, "[1, 2]", "by name");
    refused(RANGES_ONNXRUNTIME, "{\"CLS\": \"TensorsData\"}", "by name");
    refused(RANGES_ONNXRUNTIME, "{\"CLS\": \"Model\", \"data\": {}}", "Model");
    refused(RANGES_ONNXRUNTIME, "{\"a\": 1}", "\"a\"");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [1]}", "\"a\"");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [2, 1]}", "\"a\" has the range");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [0, 1e99]}", "\"a\" has the range");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [\"0\", \"1\"]}", "\"a\"");
    refused(RANGES_ONNXRUNTIME, "{\"a\": {\"lowest\": [0, 1], \"highest\": [2, 3]}}", "\"a\"");
    refused(RANGES_ONNXRUNTIME, "{\"a\": {\"lowest\": 0, \"highest\": 1, \"highest\": 2}}", "\"a\"");
    refused(RANGES_ONNXRUNTIME, "{\"a\": [0, 1], \"b\": [0, 1], \"a\": [0, 2]}", "twice");
}

static void what_is_printed_is_read_again(void **state)
{
    (void)state;
    for (enum ranges_format format = RANGES_TENSORRT; format <= RANGES_ONNXRUNTIME; format++) {
        struct ranges ranges = {0}, again;
        char why[RANGES_WHY] = "";
        const char *twice;
        for (unsigned i = 0; i < 9; i++) {
            char name[] = "layer \"0\"/w";
            name[7] = (char)('8' - i);
            assert_true(ranges_add(&ranges, strdup(name), -0.1 * i, 0.3 * i));
        }
        assert_true(ranges_sort(&ranges, &twice));
        char *text = ranges_print(format, &ranges, why);
        assert_non_null(text);
        if (!parse(format, text, &again, why))
            fail_msg("%s: %s", why, text);
        assert_int_equal(again.n, ranges.n);
        for (size_t i = 0; i < again.n; i++) {
            assert_string_equal(again.at[i].name, ranges.at[i].name);
            assert_true(again.at[i].hi >= ranges.at[i].hi * 0.999999f &&
                        again.at[i].hi <= ranges.at[i].hi * 1.000001f);
            assert_true(format == RANGES_TENSORRT ? again.at[i].lo == -again.at[i].hi
                                                  : again.at[i].lo == ranges.at[i].lo);
        }
        free(text);
        ranges_clear(&ranges);
        ranges_clear(&again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_of_tensorrt_has_a_scale_a_tensor),
        cmocka_unit_test(a_cache_that_lies_is_refused_with_its_line),
        cmocka_unit_test(a_calibration_of_onnx_runtime_has_both_ends),
        cmocka_unit_test(a_calibration_that_lies_is_refused_with_its_tensor),
        cmocka_unit_test(what_is_printed_is_read_again),
    };
    return cmocka_run_group_tests_name("ranges of other programs", tests, NULL, NULL);
}
