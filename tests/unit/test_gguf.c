/* The GGUF reader of hbmctl: what it takes, and every way in which a file can be wrong. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/gguf.h"

enum { F32 = 0, Q8_0 = 8, U32 = 4, STRING = 8, ARRAY = 9 };

static char why[SAFETENSORS_WHY];
static bool more;

/* A head under construction. */
static unsigned char bytes[8192];
static size_t size;

static void put(const void *what, size_t n)
{
    assert_true(size + n <= sizeof(bytes));
    memcpy(bytes + size, what, n);
    size += n;
}

static void u32(uint32_t number)
{
    put(&number, sizeof(number));
}

static void u64(uint64_t number)
{
    put(&number, sizeof(number));
}

static void text(const char *what)
{
    u64(strlen(what));
    put(what, strlen(what));
}

static void begin(uint32_t version, uint64_t n_tensors, uint64_t n_pairs)
{
    size = 0;
    put("GGUF", 4);
    u32(version);
    u64(n_tensors);
    u64(n_pairs);
}

static void pair_u32(const char *key, uint32_t number)
{
    text(key);
    u32(U32);
    u32(number);
}

/* A matrix of so many rows and columns; in the file the columns come first. */
static void tensor(const char *name, uint64_t rows, uint64_t columns, uint32_t type, uint64_t offset)
{
    text(name);
    u32(2);
    u64(columns);
    u64(rows);
    u32(type);
    u64(offset);
}

static void pad(size_t alignment)
{
    while (size % alignment)
        put("", 1);
}

/* In memory of its exact size, so that a sanitizer sees every read past it. */
static struct safetensors *parse_some(size_t given, uint64_t file_size)
{
    unsigned char *copy = malloc(given ? given : 1);

    assert_non_null(copy);
    memcpy(copy, bytes, given);
    strcpy(why, "no reason given");
    struct safetensors *file = gguf_parse(copy, given, file_size, &more, why);
    free(copy);
    return file;
}

static struct safetensors *parse(uint64_t data_bytes)
{
    return parse_some(size, size + data_bytes);
}

static void refused(uint64_t data_bytes, const char *reason)
{
    assert_null(parse(data_bytes));
    if (!strstr(why, reason))
        fail_msg("the reason is \"%s\", not one with \"%s\"", why, reason);
    assert_false(more);
}

static void a_sound_file_has_its_tensors_row_by_row_in_the_order_of_their_data(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        begin(version, 2, 2);
        text("general.architecture");
        u32(STRING);
        text("llama");
        text("tokens");
        u32(ARRAY);
        u32(STRING);
        u64(2);
        text("<s>");
        text("");
        tensor("blk.0.ffn", 3, 64, Q8_0, 32);
        tensor("norm", 1, 5, F32, 0);
        pad(32);
        struct safetensors *file = parse(32 + 3 * 68);
        if (!file)
            fail_msg("%s", why);
        assert_int_equal(file->n, 2);
        assert_int_equal(file->header_bytes, size);
        assert_string_equal(file->tensors[0].name, "norm");
        assert_int_equal(file->tensors[0].dtype, HBM_F32);
        assert_int_equal(file->tensors[0].dims[0], 1);
        assert_int_equal(file->tensors[0].dims[1], 5);
        assert_int_equal(file->tensors[0].end, 20);
        assert_string_equal(file->tensors[1].name, "blk.0.ffn");
        assert_int_equal(file->tensors[1].dtype, HBM_U8);
        assert_int_equal(file->tensors[1].dims[0], 3);
        assert_int_equal(file->tensors[1].dims[1], 68);
        assert_int_equal(file->tensors[1].end, 32 + 3 * 68);
        safetensors_free(file);
    }
}

static void padding_goes_by_the_alignment_that_the_file_names(void **state)
{
    (void)state;
    begin(3, 2, 1);
    pair_u32("general.alignment", 64);
    tensor("a", 1, 1, F32, 0);
    tensor("b", 1, 1, F32, 64);
    pad(64);
    struct safetensors *file = parse(68);
    assert_non_null(file);
    assert_int_equal(file->header_bytes % 64, 0);
    safetensors_free(file);
    safetensors_free((file = parse(128))); /* padded at its end, too */
    assert_non_null(file);
    refused(129, "belong to no tensor");
}

static void a_head_that_goes_on_behind_what_is_given_asks_for_more(void **state)
{
    (void)state;
    begin(3, 1, 1);
    pair_u32("x", 1);
    tensor("a", 2, 2, F32, 0);
    pad(32);
    size_t whole = size;
    for (size_t given = 0; given < whole; given++) {
        assert_null(parse_some(given, whole + 16));
        assert_int_equal(more, given >= 4);
    }
    struct safetensors *file = parse_some(whole, whole + 16);
    assert_non_null(file);
    safetensors_free(file);
    for (size_t ends = 0; ends < whole; ends++) {
        assert_null(parse_some(ends, ends));
        assert_false(more);
    }
    assert_null(parse_some(whole, whole + 15));
    assert_non_null(strstr(why, "ends at 16, but the file has only 15 bytes"));
}

static void what_is_no_gguf_or_of_another_kind_is_refused(void **state)
{
    (void)state;
    begin(1, 0, 0);
    refused(100, "version 1");
    begin(4, 0, 0);
    refused(100, "version 4");
    begin(0x03000000, 0, 0);
    refused(100, "big-endian");
    begin(3, 0, 0);
    bytes[0] = 'g';
    refused(100, "does not begin with GGUF");
}

static void numbers_that_cannot_be_are_refused(void **state)
{
    (void)state;
    begin(3, UINT64_MAX, 0);
    refused(100, "more than there is room");
    begin(3, 1u << 31, 0);
    refused(100, "more than there is room");
    begin(3, 5, 0);
    refused(119, "within its tensors");
    begin(3, 0, UINT64_MAX);
    refused(100, "more than there is room");
    begin(3, 0, 1);
    u64(UINT64_MAX);
    refused(100, "within its metadata");
}

static void metadata_that_lies_is_refused(void **state)
{
    (void)state;
    begin(3, 0, 1);
    text("k");
    u32(13);
    refused(100, "type 13, which there is not");
    begin(3, 0, 1);
    text("k");
    u32(ARRAY);
    u32(99);
    u64(1);
    refused(100, "array of the type 99");
    begin(3, 0, 1);
    text("k");
    u32(ARRAY);
    u32(U32);
    u64(UINT64_MAX / 2);
    refused(100, "goes beyond its end");
    begin(3, 0, 1);
    text("k");
    for (int i = 0; i < 6; i++) {
        u32(ARRAY);
        if (i)
            u64(1);
    }
    refused(100, "deep");
    begin(3, 0, 2);
    pair_u32("general.alignment", 32);
    pair_u32("general.alignment", 32);
    refused(100, "twice");
    const uint32_t wrong[] = {0, 48, 1u << 21};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        begin(3, 0, 1);
        pair_u32("general.alignment", wrong[i]);
        refused(100, "no power of two");
    }
    begin(3, 0, 1);
    text("general.alignment");
    u32(STRING);
    text("32");
    refused(100, "not a number of 32 bits");
}

static void one_tensor(const char *name, uint64_t rows, uint64_t columns, uint32_t type, uint64_t offset)
{
    begin(3, 1, 0);
    tensor(name, rows, columns, type, offset);
    pad(32);
}

static void tensors_that_lie_are_refused(void **state)
{
    (void)state;
    one_tensor("w", 2, 2, F32, 32);
    refused(64, "begins at 32, and by what is before it at 0");
    one_tensor("w", 2, 2, F32, UINT64_MAX);
    refused(64, "overflows");
    one_tensor("w", 1ull << 62, 1ull << 62, F32, 0);
    refused(64, "overflows");
    one_tensor("w", 1, UINT64_MAX / 32 * 32, Q8_0, 0);
    refused(64, "overflows");
    one_tensor("w", 1, 48, Q8_0, 0);
    refused(64, "blocks of 32");
    one_tensor("w", 1, 1, 4, 0);
    refused(64, "type 4, which this version does not know");
    one_tensor("w", 1, 1, 1u << 30, 0);
    refused(64, "does not know");
    one_tensor("", 1, 1, F32, 0);
    refused(4, "empty");
    begin(3, 1, 0);
    text("w");
    u32(5);
    pad(32);
    refused(100, "5 dimensions");
    begin(3, 1, 0);
    u64(3);
    put("a\0b", 3);
    u32(0);
    u32(F32);
    u64(0);
    refused(100, "NUL");
    begin(3, 2, 0);
    tensor("w", 1, 1, F32, 0);
    tensor("w", 1, 1, F32, 32);
    pad(32);
    refused(36, "\"w\" twice");
    begin(3, 2, 0);
    tensor("v", 1, 9, F32, 0);
    tensor("w", 1, 1, F32, 32);
    pad(32);
    refused(64, "overlap");
    begin(3, 2, 0);
    tensor("v", 1, 1, F32, 0);
    tensor("w", 1, 1, F32, 64);
    pad(32);
    refused(96, "begins at 64, and by what is before it at 32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_has_its_tensors_row_by_row_in_the_order_of_their_data),
        cmocka_unit_test(padding_goes_by_the_alignment_that_the_file_names),
        cmocka_unit_test(a_head_that_goes_on_behind_what_is_given_asks_for_more),
        cmocka_unit_test(what_is_no_gguf_or_of_another_kind_is_refused),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
        cmocka_unit_test(metadata_that_lies_is_refused),
        cmocka_unit_test(tensors_that_lie_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
