/* The safetensors reader of hbmctl: what it takes, and every way in which a file can be wrong. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/layout.h"
#include "client/ctl/safetensors.h"

static char why[SAFETENSORS_WHY];

/* A file's head in memory of its exact size, so that a sanitizer sees every read past it. */
static struct safetensors *parse_bytes(const char *header, size_t length, uint64_t data_bytes)
{
    size_t size = SAFETENSORS_LENGTH_BYTES + length;
    unsigned char *bytes = malloc(size);

    assert_non_null(bytes);
    for (unsigned i = 0; i < SAFETENSORS_LENGTH_BYTES; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + SAFETENSORS_LENGTH_BYTES, header, length);
    strcpy(why, "no reason given");
    struct safetensors *file = safetensors_parse(bytes, size, size + data_bytes, why);
    free(bytes);
    return file;
}

static struct safetensors *parse(const char *header, uint64_t data_bytes)
{
    return parse_bytes(header, strlen(header), data_bytes);
}

static void refused(const char *header, uint64_t data_bytes, const char *reason)
{
    assert_null(parse(header, data_bytes));
    if (!strstr(why, reason))
        fail_msg("the reason is \"%s\", not one with \"%s\"", why, reason);
}

static void a_sound_file_is_read_in_the_order_of_its_data(void **state)
{
    (void)state;
    struct safetensors *file = parse("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                                     "\"__metadata__\":{\"format\":\"pt\"},"
                                     "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}   ",
                                     28);
    assert_non_null(file);
    assert_int_equal(file->n, 2);
    assert_string_equal(file->tensors[0].name, "a");
    assert_string_equal(file->tensors[1].name, "b");
    assert_int_equal(file->tensors[1].dtype, HBM_F32);
    assert_int_equal(file->tensors[1].rank, 2);
    assert_int_equal(file->tensors[1].dims[1], 3);
    assert_int_equal(file->tensors[1].end, 28);
    assert_int_equal(file->data_bytes, 28);
    safetensors_free(file);
}

static void a_file_without_tensors_is_read(void **state)
{
    (void)state;
    struct safetensors *file = parse("{}", 0);
    assert_non_null(file);
    assert_int_equal(file->n, 0);
    safetensors_free(file);
    refused("{}", 1, "the last 1 bytes of data belong to no tensor");
}

static void every_dtype_is_read_at_its_size(void **state)
{
    (void)state;
    for (unsigned dtype = 0; hbm_dtype_name(dtype); dtype++) {
        char header[200];
        uint64_t bytes = hbm_dtype_bits(dtype); /* of 8 elements */
        snprintf(header, sizeof(header), "{\"x\":{\"dtype\":\"%s\",\"shape\":[4,2],\"data_offsets\":[0,%u]}}",
                 hbm_dtype_name(dtype), (unsigned)bytes);
        struct safetensors *file = parse(header, bytes);
        assert_non_null(file);
        assert_int_equal(file->tensors[0].dtype, dtype);
        safetensors_free(file);
        assert_null(parse(header, bytes + 1));
        assert_null(parse(header, bytes - 1));
    }
}

static void a_tensor_of_no_dimensions_has_one_element(void **state)
{
    (void)state;
    struct safetensors *file = parse("{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8);
    assert_non_null(file);
    assert_int_equal(file->tensors[0].rank, 0);
    safetensors_free(file);
}

static void empty_tensors_may_share_a_place(void **state)
{
    (void)state;
    struct safetensors *file = parse("{\"full\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                     "\"e1\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                                     "\"e2\":{\"dtype\":\"F32\",\"shape\":[7,0],\"data_offsets\":[2,2]},"
                                     "\"e3\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]}}",
                                     2);
    assert_non_null(file);
    assert_int_equal(file->n, 4);
    assert_string_equal(file->tensors[0].name, "e1");
    assert_string_equal(file->tensors[1].name, "full");
    assert_string_equal(file->tensors[2].name, "e2");
    safetensors_free(file);
}

static void names_and_metadata_may_be_any_unicode(void **state)
{
    (void)state;
    struct safetensors *file =
        parse("{\"__metadata__\":{\"g\xc3\xb6\":\"\xf0\x9f\x98\x80 \\ud83d\\ude00\"},"
              "\"\xe5\xb1\x82.0.\\u00e9\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
              1);
    assert_non_null(file);
    assert_string_equal(file->tensors[0].name, "\xe5\xb1\x82.0.\xc3\xa9");
    safetensors_free(file);
}

static void unknown_members_of_a_tensor_are_passed_over(void **state)
{
    (void)state;
    struct safetensors *file =
        parse("{\"x\":{\"dtype\":\"U8\",\"note\":[{\"a\":null}],\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    assert_non_null(file);
    safetensors_free(file);
}

static void a_file_too_short_for_a_length_is_refused(void **state)
{
    (void)state;
    for (size_t size = 0; size < SAFETENSORS_LENGTH_BYTES; size++) {
        assert_null(safetensors_parse("\2\0\0\0\0\0\0", size, size, why));
        assert_non_null(strstr(why, "fewer than a header's length takes"));
    }
}

static void a_header_longer_than_its_file_is_refused(void **state)
{
    (void)state;
    char bytes[] = "\3\0\0\0\0\0\0\0{}";
    assert_null(safetensors_parse(bytes, 10, 10, why));
    assert_non_null(strstr(why, "but the file ends after 2"));
}

static void a_header_over_the_limit_is_refused_unread(void **state)
{
    (void)state;
    unsigned char bytes[16];
    memset(bytes, 0xff, sizeof(bytes));
    assert_null(safetensors_parse(bytes, sizeof(bytes), UINT64_MAX, why));
    assert_non_null(strstr(why, "more than the 100000000"));
    memcpy(bytes, "\1\xe1\xf5\5\0\0\0\0", 8); /* 100 000 001 */
    assert_int_equal(safetensors_header_bytes(bytes, sizeof(bytes), UINT64_MAX, why), 0);
    memcpy(bytes, "\0\xe1\xf5\5\0\0\0\0", 8); /* 100 000 000 */
    assert_int_equal(safetensors_header_bytes(bytes, sizeof(bytes), UINT64_MAX, why), 100000008);
}

static void every_truncation_of_a_header_is_refused(void **state)
{
    (void)state;
    const char header[] = "{\"__metadata__\":{\"k\":\"\\u00e9\xc3\xa9\"},\"x\":{\"dtype\":\"U8\",\"shape\":[1],"
                          "\"data_offsets\":[0,1]}}";
    for (size_t length = 0; length < sizeof(header) - 1; length++)
        assert_null(parse_bytes(header, length, 1));
    struct safetensors *file = parse_bytes(header, sizeof(header) - 1, 1);
    assert_non_null(file);
    safetensors_free(file);
}

static void truncated_data_is_refused(void **state)
{
    (void)state;
    refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 15,
            "tensor \"x\" ends at 16, but the file has only 15 bytes");
}

static void a_header_that_is_no_object_is_refused(void **state)
{
    (void)state;
    refused("[]", 0, "does not start with '{'");
    refused(" {}", 0, "does not start with '{'");
    refused("\xef\xbb\xbf{}", 0, "does not start with '{'");
    refused("", 0, "does not start with '{'");
    refused("{", 0, "does not end");
    refused("{]}", 0, "last bracket");
    refused("{,}", 0, "is not JSON");
    refused("{\"a\"}", 0, "is not JSON");
}

static void text_after_the_header_is_refused_but_for_spaces(void **state)
{
    (void)state;
    refused("{}{}", 0, "text after its last bracket");
    refused("{}x", 0, "does not end");
    refused("{}\n", 0, "does not end");
    refused("{}\t ", 0, "does not end");
    assert_null(parse_bytes("{}\0\0", 4, 0));
}

static void nul_bytes_are_refused_raw_and_escaped(void **state)
{
    (void)state;
    const char raw[] = "{\"a\0b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    assert_null(parse_bytes(raw, sizeof(raw) - 1, 1));
    assert_non_null(strstr(why, "control character"));
    refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "NUL character");
    refused("{\"a\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "control character");
}

static void bad_utf8_is_refused(void **state)
{
    (void)state;
    const char *const bad[] = {"\x80",
                               "\xc0\x80",
                               "\xc1\xbf",
                               "\xe0\x80\x80",
                               "\xed\xa0\x80",
                               "\xf0\x80\x80\x80",
                               "\xf4\x90\x80\x80",
                               "\xf8\x88\x80\x80",
                               "\xc3",
                               "\xe2\x82",
                               "\xff"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char header[64];
        snprintf(header, sizeof(header), "{\"__metadata__\":{\"k\":\"%s\"}}", bad[i]);
        refused(header, 0, "not valid UTF-8");
    }
    refused("{\"__metadata__\":{\"k\":\"\\ud800\"}}", 0, "is not JSON");
}

static void a_deeply_nested_header_is_refused(void **state)
{
    (void)state;
    size_t depth = 100000, length = 2 * depth + 6;
    char *header = malloc(length + 1);
    assert_non_null(header);
    memcpy(header, "{\"x\":", 5);
    memset(header + 5, '[', depth);
    memset(header + 5 + depth, ']', depth);
    header[length - 1] = '}';
    header[length] = 0;
    refused(header, 0, "nested too deeply");
    free(header);
}

static void a_name_given_twice_is_refused(void **state)
{
    (void)state;
#define ONE(name) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"
    refused("{" ONE("x") "," ONE("y") "," ONE("x") "}", 0, "has \"x\" twice");
    refused("{" ONE("x") "," ONE("\\u0078") "}", 0, "has \"x\" twice");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "has \"__metadata__\" twice");
    refused("{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", 0, "has \"k\" twice");
    refused("{\"x\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
            "does not have one dtype");
    refused("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
            "does not have one shape");
}

static void names_that_differ_in_case_are_two(void **state)
{
    (void)state;
    struct safetensors *file = parse("{" ONE("x") "," ONE("X") "}", 0);
    assert_non_null(file);
    assert_int_equal(file->n, 2);
    safetensors_free(file);
    refused("{\"x\":{\"DTYPE\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "does not have one dtype");
}

static void overlapping_tensors_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
            5, "tensors \"a\" and \"b\" overlap");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
            3, "tensors \"a\" and \"b\" overlap");
}

static void bytes_that_belong_to_no_tensor_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}", 4,
            "1 bytes of data before tensor \"a\"");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
            4, "2 bytes of data before tensor \"b\"");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 7, "the last 4 bytes");
}

static void offsets_out_of_range_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,1]}}", 4, "before it begins");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}", 4, "only 4 bytes of data");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[9007199254740992],\"data_offsets\":[0,9007199254740992]}}", 4,
            "only 4 bytes of data");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[3]}}", 3, "one pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,1,3]}}", 3, "one pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,\"3\"]}}", 3, "one pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3]}}", 3, "one pair of data_offsets");
}

static void numbers_that_a_double_cannot_hold_exactly_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[9007199254740993],\"data_offsets\":[0,4]}}", 4, "above 2^53");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551617],\"data_offsets\":[0,1]}}", 1, "above 2^53");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
            "negative or not a whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}}", 4, "not a whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4e0],\"data_offsets\":[0,4]}}", 4, "not a whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[04],\"data_offsets\":[0,4]}}", 4, "leading zero");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[NaN],\"data_offsets\":[0,4]}}", 4, "is not JSON");
}

static void a_shape_of_another_size_than_its_data_is_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,4]}}", 4,
            "tensor \"a\" has 4 bytes of data, but its shape and dtype F32 take 12");
    refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "does not end at a whole byte");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "does not have one shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}}", 4, "something that is no number");
}

static void a_shape_whose_product_overflows_is_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0,
            "overflows");
    refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[4503599627370496,512],\"data_offsets\":[0,0]}}", 0, "overflows");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
            "more than 8 dimensions");
}

static void an_unknown_dtype_is_refused_by_name(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
            "tensor \"a\" has the dtype \"F31\"");
    refused("{\"a\":{\"dtype\":\"u8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "dtype \"u8\"");
    refused("{\"a\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "does not have one dtype");
    refused("{\"a\":[]}", 0, "not described by an object");
}

static void metadata_that_is_not_strings_is_refused(void **state)
{
    (void)state;
    refused("{\"__metadata__\":{\"k\":1}}", 0, "\"k\", which is not a string");
    refused("{\"__metadata__\":[]}", 0, "is not an object");
    refused("{\"__metadata__\":null}", 0, "is not an object");
}

static void a_group_is_the_name_through_its_first_numeric_component(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"model.layers.12.mlp.w", "model.layers.12"},
        {"h.0.attn.0.w", "h.0"},
        {"0.weight", "0"},
        {"lm_head.weight", "_"},
        {"layer12.w", "_"},
        {"a.12b.3", "a.12b.3"},
        {"", "_"},
        {"..1", "..1"},
        {"7", "7"},
    };
    char group[HBM_GROUP_MAX], longest[300] = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        layout_group(cases[i][0], group);
        assert_string_equal(group, cases[i][1]);
    }
    memset(longest, 'a', 200);
    strcat(longest, ".1.w");
    layout_group(longest, group);
    assert_string_equal(group, "_");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_is_read_in_the_order_of_its_data),
        cmocka_unit_test(a_file_without_tensors_is_read),
        cmocka_unit_test(every_dtype_is_read_at_its_size),
        cmocka_unit_test(a_tensor_of_no_dimensions_has_one_element),
        cmocka_unit_test(empty_tensors_may_share_a_place),
        cmocka_unit_test(names_and_metadata_may_be_any_unicode),
        cmocka_unit_test(unknown_members_of_a_tensor_are_passed_over),
        cmocka_unit_test(a_file_too_short_for_a_length_is_refused),
        cmocka_unit_test(a_header_longer_than_its_file_is_refused),
        cmocka_unit_test(a_header_over_the_limit_is_refused_unread),
        cmocka_unit_test(every_truncation_of_a_header_is_refused),
        cmocka_unit_test(truncated_data_is_refused),
        cmocka_unit_test(a_header_that_is_no_object_is_refused),
        cmocka_unit_test(text_after_the_header_is_refused_but_for_spaces),
        cmocka_unit_test(nul_bytes_are_refused_raw_and_escaped),
        cmocka_unit_test(bad_utf8_is_refused),
        cmocka_unit_test(a_deeply_nested_header_is_refused),
        cmocka_unit_test(a_name_given_twice_is_refused),
        cmocka_unit_test(names_that_differ_in_case_are_two),
        cmocka_unit_test(overlapping_tensors_are_refused),
        cmocka_unit_test(bytes_that_belong_to_no_tensor_are_refused),
        cmocka_unit_test(offsets_out_of_range_are_refused),
        cmocka_unit_test(numbers_that_a_double_cannot_hold_exactly_are_refused),
        cmocka_unit_test(a_shape_of_another_size_than_its_data_is_refused),
        cmocka_unit_test(a_shape_whose_product_overflows_is_refused),
        cmocka_unit_test(an_unknown_dtype_is_refused_by_name),
        cmocka_unit_test(metadata_that_is_not_strings_is_refused),
        cmocka_unit_test(a_group_is_the_name_through_its_first_numeric_component),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
