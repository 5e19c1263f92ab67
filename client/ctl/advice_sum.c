#include <math.h>
#include <string.h>

#include "client/ctl/advice.h"
#include "client/ctl/member.h"

const cJSON *advice_try(const cJSON *row, const char *encoding)
{
    const cJSON *each;

    cJSON_ArrayForEach(each, member(row, "tries"))
    {
        const char *own = cJSON_GetStringValue(member(each, "encoding"));
        if (own && encoding && !strcmp(own, encoding))
            return each;
    }
    return NULL;
}

/* Buffers without a group are each one of their own. */
static bool is_same_group(const cJSON *a, const cJSON *b)
{
    const char *one = cJSON_GetStringValue(member(a, "group")), *other = cJSON_GetStringValue(member(b, "group"));

    return one && other && !strcmp(one, other);
}

const cJSON *advice_next_group(const cJSON *row)
{
    const cJSON *next = row->next;

    while (next && is_same_group(row, next))
        next = next->next;
    return next;
}

/* JSON has no infinity: an exact result is null. */
static double decibels(const cJSON *try)
{
    const cJSON *item = member(try, "sqnr_db");

    return cJSON_IsNumber(item) ? item->valuedouble : (double)INFINITY;
}

static void add(struct advice_sum *sum, const cJSON *row, const cJSON *try)
{
    double before = number(row, "bytes_before");

    sum->before += before;
    if (!try) {
        sum->after += before;
        return;
    }
    if (!sum->try) {
        sum->try = try;
        sum->encoding = cJSON_GetStringValue(member(try, "encoding"));
    }
    sum->after += number(try, "bytes_after");
    sum->seconds += number(try, "seconds");
    sum->moved += before + number(try, "bytes_after");
    sum->worst_db = fmin(sum->worst_db, decibels(try));
    sum->max_abs_error = fmax(sum->max_abs_error, number(try, "max_abs_error"));
    sum->zeroed = fmax(sum->zeroed, number(try, "zeroed_fraction"));
    sum->tried++;
    sum->hold += cJSON_IsTrue(member(try, "holds"));
}

struct advice_sum advice_sum(const cJSON *first, const char *encoding, bool whole)
{
    struct advice_sum sum = {.worst_db = (double)INFINITY};
    const cJSON *end = whole || !first ? NULL : advice_next_group(first);

    for (const cJSON *row = first; row != end; row = row->next) {
        const char *own = encoding ? encoding : cJSON_GetStringValue(member(row, "advice"));
        if (!cJSON_IsString(member(row, "left")))
            add(&sum, row, advice_try(row, own));
    }
    return sum;
}

cJSON *advice_encodings(const cJSON *rows)
{
    cJSON *encodings = cJSON_CreateArray();
    const cJSON *row, *try, *each;

    cJSON_ArrayForEach(row, rows) cJSON_ArrayForEach(try, member(row, "tries"))
    {
        const char *encoding = cJSON_GetStringValue(member(try, "encoding"));
        bool known = !encoding;
        cJSON_ArrayForEach(each, encodings) known |= encoding && !strcmp(each->valuestring, encoding);
        if (!known)
            cJSON_AddItemToArray(encodings, cJSON_CreateString(encoding));
    }
    return encodings;
}
