#include "client/ctl/cell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/units.h"

static char *copy(const char *text)
{
    char *twin = strdup(text);

    if (!twin)
        out_of_memory();
    return twin;
}

/* Each item by `one`, with `between`; `none` for an empty list. */
static char *joined(const cJSON *list, const char *between, const char *none, char *(*one)(const cJSON *))
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const cJSON *item;

    if (!out)
        out_of_memory();
    cJSON_ArrayForEach(item, list)
    {
        _cleanup_free_ char *piece = one(item);
        fprintf(out, "%s%s", item == list->child ? "" : between, piece);
    }
    if (!list->child)
        fputs(none, out);
    fclose(out);
    if (!text)
        out_of_memory();
    return text;
}

char *cell_text(const cJSON *item)
{
    char number[UNITS_TEXT];

    if (!item || cJSON_IsNull(item))
        return copy("-");
    if (cJSON_IsString(item))
        return copy(*item->valuestring ? item->valuestring : "-");
    if (cJSON_IsNumber(item))
        return copy(units_number(item->valuedouble, number));
    if (cJSON_IsBool(item))
        return copy(cJSON_IsTrue(item) ? "yes" : "no");
    if (cJSON_IsArray(item))
        return joined(item, ", ", "-", cell_text);
    char *text = cJSON_PrintUnformatted(item);
    if (!text)
        out_of_memory();
    return text;
}

char *cell_shape(const cJSON *shape)
{
    return cJSON_IsArray(shape) ? joined(shape, "x", "scalar", cell_text) : cell_text(shape);
}

static char *lease_text(const cJSON *lease)
{
    _cleanup_free_ char *pid = cell_text(cJSON_GetObjectItemCaseSensitive(lease, "pid"));
    _cleanup_free_ char *access = cell_text(cJSON_GetObjectItemCaseSensitive(lease, "access"));
    const cJSON *locked = cJSON_GetObjectItemCaseSensitive(lease, "locked");

    char *text = text_new("%s %s%s", pid, access, cJSON_IsFalse(locked) ? " unlocked" : "");
    if (!text)
        out_of_memory();
    return text;
}

char *cell_leases(const cJSON *leases)
{
    return cJSON_IsArray(leases) ? joined(leases, ", ", "-", lease_text) : cell_text(leases);
}

static char *window_text(const cJSON *window)
{
    _cleanup_free_ char *pid = cell_text(cJSON_GetObjectItemCaseSensitive(window, "pid"));
    _cleanup_free_ char *groups = cell_text(cJSON_GetObjectItemCaseSensitive(window, "groups"));

    char *text = text_new("pid %s: %s", pid, groups);
    if (!text)
        out_of_memory();
    return text;
}

char *cell_windows(const cJSON *windows)
{
    return cJSON_IsArray(windows) ? joined(windows, "; ", "-", window_text) : cell_text(windows);
}

char *cell_owner(const cJSON *row, const char *name)
{
    const char *listener = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "listener"));
    char *uid = cell_text(cJSON_GetObjectItemCaseSensitive(row, name)), *both;

    if (!listener || !strcmp(listener, "main"))
        return uid;
    if (asprintf(&both, "%s:%s", listener, uid) < 0)
        return uid;
    free(uid);
    return both;
}
