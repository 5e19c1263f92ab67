/* Members of a row that the daemon told. */
#pragma once

#include <cjson/cJSON.h>

/* NULL: there is none. */
static inline const cJSON *member(const cJSON *row, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(row, name);
}

/* "" where it is no text. */
static inline const char *text_of(const cJSON *row, const char *name)
{
    const char *text = cJSON_GetStringValue(member(row, name));

    return text ? text : "";
}

/* 0 where it is no number. */
static inline double number(const cJSON *row, const char *name)
{
    const cJSON *item = member(row, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}
