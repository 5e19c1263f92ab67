#include "daemon/rpc/scan.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/utf8.h"

struct scan {
    const char *at, *end;
    unsigned depth;
    unsigned values;
    int code;
    const char *why;
};

static bool refuse(struct scan *scan, int code, const char *why)
{
    scan->code = code;
    scan->why = why;
    return false;
}

static bool broken(struct scan *scan, const char *why)
{
    return refuse(scan, PARSE_ERROR, why);
}

static int peek(const struct scan *scan)
{
    return scan->at < scan->end ? *scan->at : 0;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && strchr(" \t\r\n", *scan->at) && *scan->at)
        scan->at++;
}

static bool take(struct scan *scan, char c)
{
    if (peek(scan) != c)
        return false;
    scan->at++;
    return true;
}

/* The four digits after \u; -1 if they are not hex digits. */
static int hex4(struct scan *scan)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        int c = peek(scan);
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
        scan->at++;
    }
    return value;
}

static bool scan_escape(struct scan *scan)
{
    int c = peek(scan);

    if (!c || !strchr("\"\\/bfnrtu", c))
        return broken(scan, "an unknown escape in a string");
    scan->at++;
    if (c != 'u')
        return true;
    int unit = hex4(scan);
    if (unit < 0)
        return broken(scan, "\\u without four hex digits");
    if (!unit)
        return broken(scan, "a NUL in a string");
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return broken(scan, "half of a surrogate pair");
    if (unit < 0xd800 || unit > 0xdbff)
        return true;
    if (!take(scan, '\\') || !take(scan, 'u'))
        return broken(scan, "half of a surrogate pair");
    unit = hex4(scan);
    return (unit >= 0xdc00 && unit <= 0xdfff) || broken(scan, "half of a surrogate pair");
}

static bool scan_string(struct scan *scan)
{
    if (!take(scan, '"'))
        return broken(scan, "a string was expected");
    while (scan->at < scan->end) {
        unsigned char c = (unsigned char)*scan->at;
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c < 0x20)
            return broken(scan, c ? "a control character in a string" : "a NUL in a string");
        if (c == '\\') {
            scan->at++;
            if (!scan_escape(scan))
                return false;
            continue;
        }
        size_t length = utf8_length((const unsigned char *)scan->at, (size_t)(scan->end - scan->at));
        if (!length)
            return broken(scan, "a string is not valid UTF-8");
        scan->at += length;
    }
    return broken(scan, "a string does not end");
}

static bool digits(struct scan *scan)
{
    const char *from = scan->at;

    while (peek(scan) >= '0' && peek(scan) <= '9')
        scan->at++;
    return scan->at > from;
}

static bool scan_number(struct scan *scan)
{
    take(scan, '-');
    if (!take(scan, '0') && !digits(scan))
        return broken(scan, "a value was expected");
    if (take(scan, '.') && !digits(scan))
        return broken(scan, "a number ends in its point");
    if (take(scan, 'e') || take(scan, 'E')) {
        if (!take(scan, '+'))
            take(scan, '-');
        if (!digits(scan))
            return broken(scan, "a number without its exponent");
    }
    return true;
}

static bool scan_word(struct scan *scan, const char *word)
{
    size_t length = strlen(word);

    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length))
        return broken(scan, "a value was expected");
    scan->at += length;
    return true;
}

static bool scan_value(struct scan *scan);

static bool scan_list(struct scan *scan, char close, bool named)
{
    unsigned n = 0;

    if (++scan->depth > SCAN_DEPTH_MAX)
        return broken(scan, "nested deeper than 64");
    scan->at++;
    skip_space(scan);
    if (take(scan, close)) {
        scan->depth--;
        return true;
    }
    for (;;) {
        if (!named && scan->depth == 1 && ++n > SCAN_BATCH_MAX)
            return refuse(scan, INVALID_REQUEST, "a batch of more than 1000 requests");
        skip_space(scan);
        if (named) {
            if (!scan_string(scan))
                return false;
            skip_space(scan);
            if (!take(scan, ':'))
                return broken(scan, "a member without its ':'");
        }
        if (!scan_value(scan))
            return false;
        skip_space(scan);
        if (take(scan, close)) {
            scan->depth--;
            return true;
        }
        if (!take(scan, ','))
            return broken(scan, named ? "an object does not end" : "an array does not end");
    }
}

static bool scan_value(struct scan *scan)
{
    if (++scan->values > SCAN_VALUES_MAX)
        return refuse(scan, INVALID_REQUEST, "more than 32768 values");
    skip_space(scan);
    switch (peek(scan)) {
    case '{':
        return scan_list(scan, '}', true);
    case '[':
        return scan_list(scan, ']', false);
    case '"':
        return scan_string(scan);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    default:
        return scan_number(scan);
    }
}

int scan_line(const char *text, size_t size, const char **why)
{
    struct scan scan = {.at = text, .end = text + size};

    if (scan_value(&scan)) {
        skip_space(&scan);
        if (scan.at == scan.end)
            return 0;
        broken(&scan, "text after the JSON value");
    }
    *why = scan.why;
    return scan.code;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int names_of_one(const cJSON *object, const char **why)
{
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    const cJSON *member;

    if (n < 2)
        return 0;
    _cleanup_free_ const char **names = calloc(n, sizeof(*names));
    if (!names) {
        *why = "no memory to read the line";
        return INTERNAL_ERROR;
    }
    cJSON_ArrayForEach(member, object) names[i++] = member->string;
    qsort(names, n, sizeof(*names), by_text);
    *why = "an object names a member twice";
    for (i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i]))
            return PARSE_ERROR;
    return 0;
}

int scan_names(const cJSON *value, const char **why)
{
    int code = cJSON_IsObject(value) ? names_of_one(value, why) : 0;
    const cJSON *child;

    cJSON_ArrayForEach(child, value) if (!code) code = scan_names(child, why);
    return code;
}
