/* The operators' socket, as far as it needs nobody behind it: what a line must be, and the table of methods. What a
 * server does is in rpc_server.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc/discover.h"
#include "daemon/rpc/encoding.h"
#include "daemon/rpc/method.h"
#include "daemon/rpc/scan.h"
#include "daemon/rpc/writer.h"

/* ---- What a line must be ---- */

static int scan(const char *text)
{
    const char *why = NULL;
    int code = scan_line(text, strlen(text), &why);

    assert_true((code == 0) == (why == NULL));
    return code;
}

static void a_well_formed_value_passes(void **state)
{
    static const char *const good[] = {
        "{}",
        " [ ] ",
        "null",
        "-0.5e+3",
        "\"\\u00e9\\ud83d\\ude00\xc3\xa9\xf0\x9f\x98\x80\"",
        "{\"a\":[1,true,{\"b\":null}]}\r",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(scan(good[i]), 0);
}

static void broken_text_is_a_parse_error(void **state)
{
    static const char *const bad[] = {
        "",        " ",           "{",        "[",      "[1,]", "{\"a\":1,}", "{\"a\"}",
        "{a:1}",   "{'a':1}",     "01",       "1.",     "1e",   ".5",         "+1",
        "-",       "NaN",         "Infinity", "tru",    "nul",  "{} {}",      "1 2",
        "\"\\x\"", "\"\\u12g4\"", "\"a",      "\"\t\"", "// c", "[1 2]",      "\xef\xbb\xbf{}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(scan(bad[i]), PARSE_ERROR);
}

static void text_that_is_not_utf8_is_a_parse_error(void **state)
{
    static const char *const bad[] = {
        "\"\x80\"",         "\"\xc0\xaf\"",         "\"\xe0\x80\x80\"",
        "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf8\x88\x80\x80\x80\"",
        "\"\xc3\"",         "\"\xf0\x9f\x98\"",     "\"\\ud800\"",
        "\"\\udc00\"",      "\"\\ud800\\u0041\"",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(scan(bad[i]), PARSE_ERROR);
}

static void a_nul_is_refused_however_it_is_written(void **state)
{
    const char *why;

    (void)state;
    assert_int_equal(scan("\"\\u0000\""), PARSE_ERROR);
    assert_int_equal(scan_line("\"a\0b\"", 5, &why), PARSE_ERROR);
    assert_int_equal(scan_line("{}\0", 3, &why), PARSE_ERROR);
    assert_int_equal(scan_line("\0", 1, &why), PARSE_ERROR);
}

static void nesting_ends_at_64(void **state)
{
    char text[2 * 10000 + 1];

    (void)state;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    text[128] = 0;
    assert_int_equal(scan(text), 0);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    text[130] = 0;
    assert_int_equal(scan(text), PARSE_ERROR);
    memset(text, '[', 10000);
    memset(text + 10000, ']', 10000);
    text[20000] = 0;
    assert_int_equal(scan(text), PARSE_ERROR);
}

static void a_batch_of_more_than_1000_and_a_text_of_too_many_values_are_invalid(void **state)
{
    char *text = malloc(200002), *at = text;

    (void)state;
    *at++ = '[';
    for (int i = 0; i < 1000; i++)
        at = mempcpy(at, i ? ",1" : "1", i ? 2 : 1);
    memcpy(at, "]", 2);
    assert_int_equal(scan(text), 0);
    memcpy(at, ",1]", 4);
    assert_int_equal(scan(text), INVALID_REQUEST);
    at = mempcpy(text, "{\"a\":[1", 7);
    for (int i = 0; i < 90000; i++)
        at = mempcpy(at, ",1", 2);
    memcpy(at, "]}", 3);
    assert_int_equal(scan(text), INVALID_REQUEST);
    free(text);
}

static bool duplicates(const char *text)
{
    cJSON *value = cJSON_Parse(text);
    const char *why = NULL;
    bool found = scan_names(value, &why) == PARSE_ERROR;

    assert_non_null(value);
    cJSON_Delete(value);
    return found;
}

static void a_name_that_comes_twice_is_found_at_any_depth(void **state)
{
    (void)state;
    assert_false(duplicates("{\"a\":{\"a\":1},\"A\":[{\"b\":1},{\"b\":2}]}"));
    assert_true(duplicates("{\"a\":1,\"b\":2,\"a\":3}"));
    assert_true(duplicates("{\"a\":1,\"\\u0061\":3}"));
    assert_true(duplicates("[1,{\"x\":[{\"b\":1,\"b\":1}]}]"));
}

static void what_passes_the_scan_cjson_can_read(void **state)
{
    static const char seed[] =
        "{\"jsonrpc\":\"2.0\",\"id\":1.5e2,\"method\":\"hbm.ls\",\"params\":[\"\\u00e9\xc3\xa9\",null,true]}";
    static const char noise[] = "{}[]\",:\\u0123456789abcdefE+-. \t\xc3\x80";
    const char *why;

    (void)state;
    srand(1);
    for (int i = 0; i < 200000; i++) {
        char text[sizeof(seed)];
        memcpy(text, seed, sizeof(seed));
        for (int n = rand() % 4; n >= 0; n--)
            text[(size_t)rand() % (sizeof(seed) - 1)] = noise[(size_t)rand() % sizeof(noise)];
        if (scan_line(text, sizeof(seed) - 1, &why))
            continue;
        cJSON *value = cJSON_ParseWithLength(text, sizeof(seed) - 1);
        assert_non_null(value);
        cJSON_Delete(value);
    }
}

/* ---- Methods and their parameters ---- */

static bool binds(const char *name, const char *params, char *why)
{
    const struct method *method = method_by_name(name);
    const cJSON *values[PARAMS_MAX];
    cJSON *json = params ? cJSON_Parse(params) : NULL;
    bool bound = method_bind(method, json, values, why, HBM_DETAIL_MAX);

    cJSON_Delete(json);
    return bound;
}

static void parameters_bind_by_name_and_by_position(void **state)
{
    char why[HBM_DETAIL_MAX] = "";

    (void)state;
    assert_true(binds("hbm.ls", NULL, why));
    assert_true(binds("hbm.ls", "{}", why));
    assert_true(binds("hbm.ls", "[]", why));
    assert_true(binds("hbm.ls", "[\"*\",\"g\"]", why));
    assert_true(binds("hbm.offload", "{\"to\":\"host\",\"sel\":\"w\",\"async\":true}", why));
    assert_true(binds("hbm.wait", "{\"op\":\"0x12\",\"timeout_seconds\":0.5}", why));
}

static void parameters_that_do_not_fit_are_refused_by_name(void **state)
{
    char why[HBM_DETAIL_MAX] = "", longer[400];

    (void)state;
    assert_false(binds("hbm.show", NULL, why));
    assert_non_null(strstr(why, "`sel`"));
    assert_false(binds("hbm.show", "{\"sel\":\"w\",\"sell\":1}", why));
    assert_non_null(strstr(why, "`sell`"));
    assert_false(binds("hbm.show", "{\"Sel\":\"w\"}", why));
    assert_false(binds("hbm.show", "[\"w\",\"x\"]", why));
    assert_false(binds("hbm.show", "{\"sel\":null}", why));
    assert_false(binds("hbm.show", "{\"sel\":1}", why));
    assert_false(binds("hbm.offload", "{\"to\":\"host\",\"sel\":\"w\",\"async\":1}", why));
    assert_false(binds("hbm.wait", "{\"op\":18}", why));
    assert_false(binds("hbm.wait", "{\"op\":\"18\"}", why));
    assert_false(binds("hbm.wait", "{\"op\":\"0x12\",\"timeout_seconds\":1e999}", why));
    snprintf(longer, sizeof(longer), "[\"%0256d\"]", 0);
    assert_false(binds("hbm.show", longer, why));
    snprintf(longer, sizeof(longer), "[\"%0255d\"]", 0);
    assert_true(binds("hbm.show", longer, why));
}

static void ids_are_hex_and_nothing_else(void **state)
{
    uint64_t id;

    (void)state;
    assert_true(param_id("0xfFfFfFfFfFfFfFfF", &id));
    assert_true(id == UINT64_MAX);
    assert_true(param_id("0x0", &id));
    assert_false(param_id("0x", &id));
    assert_false(param_id("", &id));
    assert_false(param_id("0x1 ", &id));
    assert_false(param_id("0x-1", &id));
    assert_false(param_id("0x11111111111111111", &id));
    assert_false(param_id("0X1", &id));
}

static void encodings_are_read_as_people_write_them(void **state)
{
    struct hbm_encoding encoding;
    const char *why = NULL;

    (void)state;
    assert_true(encoding_parse("int8", NULL, &encoding, &why));
    assert_int_equal(encoding.granularity, GRANULARITY_DEFAULT);
    assert_true(encoding_parse("int8", "channel:1", &encoding, &why));
    assert_int_equal(encoding.axis, 1);
    assert_true(encoding_parse("int8", "group:128", &encoding, &why));
    assert_int_equal(encoding.group, 128);
    assert_true(encoding_parse("fp16", NULL, &encoding, &why));
    assert_int_equal(encoding.granularity, HBM_PER_TENSOR);
    assert_int_equal(encoding.stored, HBM_F16);
    assert_false(encoding_parse("fp16", "channel", &encoding, &why));
    assert_false(encoding_parse("raw", NULL, &encoding, &why));
    assert_false(encoding_parse("int9", NULL, &encoding, &why));
    assert_false(encoding_parse("int8", "channel:8", &encoding, &why));
    assert_false(encoding_parse("int8", "channel:", &encoding, &why));
    assert_false(encoding_parse("int8", "channels", &encoding, &why));
    assert_false(encoding_parse("int8", "group:0", &encoding, &why));
    assert_false(encoding_parse("int8", "group:4294967296", &encoding, &why));
    assert_false(encoding_parse("int8", "", &encoding, &why));
    assert_true(encoding_parse("int8-split", "channel:1:40", &encoding, &why));
    assert_true(encoding.granularity == HBM_PER_CHANNEL && encoding.axis == 1 && encoding.group == 40);
    assert_true(encoding_parse("int8-split", "channel:1", &encoding, &why));
    assert_int_equal(encoding.group, 0);
    static const char *const wrong[] = {"channel:1:0", "channel:1:", "channel::4", "channel:8:4", "channel:0008:4", "channel:0:4:4",
                                        "channel:0:4294967296"};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(encoding_parse("int8-split", wrong[i], &encoding, &why));
    assert_false(encoding_parse("int8", "channel:1:4", &encoding, &why));
}

static void what_is_written_is_json_whatever_the_strings_hold(void **state)
{
    struct writer writer = {0};

    (void)state;
    write_open(&writer, NULL, '{');
    write_string(&writer, "cut", "caf\xc3");
    write_string(&writer, "odd", "\x01\"\\\x7f");
    write_number(&writer, "large", UINT64_MAX);
    write_integer(&writer, "small", INT64_MIN);
    write_real(&writer, "exact", (double)INFINITY);
    write_real(&writer, "tenth", 0.1);
    write_id(&writer, "none", 0);
    write_open(&writer, "list", '[');
    write_id(&writer, NULL, 0xabc);
    write_bool(&writer, NULL, false);
    write_close(&writer, ']');
    write_close(&writer, '}');
    write_bytes(&writer, "", 1);
    assert_int_equal(writer.state, WRITER_FINE);
    assert_string_equal(
        writer.bytes,
        "{\"cut\":\"caf\xef\xbf\xbd\",\"odd\":\"\\u0001\\\"\\\\\\u007f\",\"large\":18446744073709551615,"
        "\"small\":-9223372036854775808,\"exact\":null,\"tenth\":0.1,\"none\":null,"
        "\"list\":[\"0x0000000000000abc\",false]}");
    writer_clear(&writer);
}

static void the_discovery_document_lists_every_method(void **state)
{
    struct writer writer = {0};
    const cJSON *method, *param;
    const char *why = NULL;

    (void)state;
    write_open(&writer, NULL, '{');
    write_discovery(&writer, "result");
    write_close(&writer, '}');
    cJSON *all = cJSON_ParseWithLength(writer.bytes, writer.size),
          *document = cJSON_GetObjectItemCaseSensitive(all, "result");
    assert_non_null(document);
    assert_int_equal(scan_names(all, &why), 0);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(document, "openrpc")->valuestring, "1.3.2");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(document, "methods")), METHODS);
    cJSON_ArrayForEach(method, cJSON_GetObjectItemCaseSensitive(document, "methods"))
    {
        bool optional = false;
        assert_non_null(method_by_name(cJSON_GetObjectItemCaseSensitive(method, "name")->valuestring));
        assert_non_null(
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(method, "result"), "schema"));
        cJSON_ArrayForEach(param, cJSON_GetObjectItemCaseSensitive(method, "params"))
        {
            /* OpenRPC: what is required comes first. */
            bool required = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(param, "required"));
            assert_false(required && optional);
            optional = !required;
            assert_non_null(cJSON_GetObjectItemCaseSensitive(param, "schema"));
        }
    }
    cJSON_Delete(all);
    writer_clear(&writer);
}

/* One program, as tests.mk has it; FAULTS 9 is among what is served. */
#include "tests/unit/rpc_server.h"

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_well_formed_value_passes),
        cmocka_unit_test(broken_text_is_a_parse_error),
        cmocka_unit_test(text_that_is_not_utf8_is_a_parse_error),
        cmocka_unit_test(a_nul_is_refused_however_it_is_written),
        cmocka_unit_test(nesting_ends_at_64),
        cmocka_unit_test(a_batch_of_more_than_1000_and_a_text_of_too_many_values_are_invalid),
        cmocka_unit_test(a_name_that_comes_twice_is_found_at_any_depth),
        cmocka_unit_test(what_passes_the_scan_cjson_can_read),
        cmocka_unit_test(parameters_bind_by_name_and_by_position),
        cmocka_unit_test(parameters_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(ids_are_hex_and_nothing_else),
        cmocka_unit_test(encodings_are_read_as_people_write_them),
        cmocka_unit_test(what_is_written_is_json_whatever_the_strings_hold),
        cmocka_unit_test(the_discovery_document_lists_every_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + test_rpc_server();
}
