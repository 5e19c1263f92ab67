#include "client/ctl/json_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    const unsigned char *at, *end;
    const struct json_rules *rules;
    const char *why;
};

static bool refuse(struct scan *scan, const char *why)
{
    scan->why = why;
    return false;
}

/* One well-formed UTF-8 sequence of two bytes or more; overlong forms, surrogates and > U+10FFFF are not. */
static bool scan_sequence(struct scan *scan)
{
    unsigned char first = *scan->at;
    unsigned char low = 0x80, high = 0xbf;
    unsigned more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;

    if (first < 0xc2 || first > 0xf4 || (size_t)(scan->end - scan->at) <= more)
        return refuse(scan, "is not valid UTF-8");
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    for (unsigned i = 1; i <= more; i++, low = 0x80, high = 0xbf)
        if (scan->at[i] < low || scan->at[i] > high)
            return refuse(scan, "is not valid UTF-8");
    scan->at += more + 1;
    return true;
}

void json_mend(char *text)
{
    unsigned char *at = (unsigned char *)text, *end = at + strlen(text);

    while (at < end) {
        struct scan scan = {.at = at, .end = end};
        if (*at >= 0x80 && scan_sequence(&scan)) {
            at += scan.at - at;
            continue;
        }
        if (*at >= 0x80)
            *at = '?';
        at++;
    }
}

static bool scan_string(struct scan *scan)
{
    for (scan->at++; scan->at < scan->end;) {
        unsigned char c = *scan->at;
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c < 0x20)
            return refuse(scan, "has a control character in a string");
        if (c >= 0x80) {
            if (!scan_sequence(scan))
                return false;
            continue;
        }
        if (c == '\\') {
            if (scan->end - scan->at >= 6 && !memcmp(scan->at, "\\u0000", 6))
                return refuse(scan, "has a NUL character in a string");
            scan->at++;
        }
        scan->at++;
    }
    return refuse(scan, "ends inside a string");
}

static bool is_number_byte(unsigned char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static bool scan_number(struct scan *scan)
{
    const unsigned char *start = scan->at;
    uint64_t value = 0;

    while (scan->at < scan->end && is_number_byte(*scan->at))
        scan->at++;
    if (scan->at - start > 400)
        return refuse(scan, "has a number of more than 400 characters");
    if (!scan->rules->whole_numbers)
        return true;
    if (scan->at - start > 16)
        return refuse(scan, "has a number above 2^53 or not a whole number");
    for (const unsigned char *digit = start; digit < scan->at; digit++) {
        if (*digit < '0' || *digit > '9')
            return refuse(scan, "has a number that is negative or not a whole number");
        value = value * 10 + (*digit - '0');
    }
    if (scan->at - start > 1 && *start == '0')
        return refuse(scan, "has a number with a leading zero");
    if (value > (UINT64_C(1) << 53))
        return refuse(scan, "has a number above 2^53");
    return true;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && memchr(" \t\r\n", *scan->at, 4))
        scan->at++;
}

/* Words and brackets only: whether they stand in the right order is for cJSON to say. */
static bool scan_text(struct scan *scan)
{
    unsigned depth = 0;

    skip_space(scan);
    if (scan->at == scan->end || (*scan->at != '{' && *scan->at != '['))
        return refuse(scan, "is not a JSON object or array");
    do {
        unsigned char c = *scan->at;
        if (c == '"') {
            if (!scan_string(scan))
                return false;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            if (!scan_number(scan))
                return false;
        } else if (c == '{' || c == '[') {
            if (++depth > scan->rules->depth_max)
                return refuse(scan, "is nested too deeply");
            scan->at++;
        } else if (c == '}' || c == ']') {
            depth--;
            scan->at++;
        } else if ((c >= 'a' && c <= 'z') || c == ',' || c == ':') {
            scan->at++;
        } else {
            return refuse(scan, "is not JSON");
        }
        skip_space(scan);
    } while (depth && scan->at < scan->end);
    if (depth)
        return refuse(scan, "ends before its last bracket");
    return scan->at == scan->end || refuse(scan, "has text after its last bracket");
}

cJSON *json_parse(const char *text, size_t size, const struct json_rules *rules, const char **why)
{
    struct scan scan = {(const unsigned char *)text, (const unsigned char *)text + size, rules, NULL};

    if (!scan_text(&scan)) {
        *why = scan.why;
        return NULL;
    }
    cJSON *tree = cJSON_ParseWithLength(text, size);
    if (!tree)
        *why = "is not JSON";
    return tree;
}

const cJSON *json_only(const cJSON *object, const char *name)
{
    const cJSON *member, *found = NULL;

    cJSON_ArrayForEach(member, object)
    {
        if (!member->string || strcmp(member->string, name)) /* an array's have no names */
            continue;
        if (found)
            return NULL;
        found = member;
    }
    return found;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool json_duplicate(const cJSON *object, const char **name)
{
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    const char **names = calloc(n + 1, sizeof(*names));
    const cJSON *member;

    *name = NULL;
    if (!names)
        return false;
    cJSON_ArrayForEach(member, object) names[i++] = member->string;
    qsort(names, n, sizeof(*names), compare_names);
    for (i = 1; i < n && !*name; i++)
        if (!strcmp(names[i - 1], names[i]))
            *name = names[i];
    free(names);
    return true;
}
