/* hbm.set_ranges. */
#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/verbs.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/op_answer.h"
#include "daemon/rpc/scan.h"

#define RANGES_MAX 8000 /* so many take a few milliseconds */

_Static_assert(4 * RANGES_MAX + 16 <= SCAN_VALUES_MAX, "they stand in one line");

static bool take(const cJSON *item, struct observed_range *range)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id"),
                *lo = cJSON_GetObjectItemCaseSensitive(item, "lowest"),
                *hi = cJSON_GetObjectItemCaseSensitive(item, "highest");

    if (!cJSON_IsString(id) || !param_id(id->valuestring, &range->buffer) || !cJSON_IsNumber(lo) ||
        !cJSON_IsNumber(hi) || fabs(lo->valuedouble) > (double)FLT_MAX || fabs(hi->valuedouble) > (double)FLT_MAX)
        return false;
    range->lo = (float)lo->valuedouble;
    range->hi = (float)hi->valuedouble;
    return true;
}

void handle_SET_RANGES(struct request *request, const struct SET_RANGES_args *args)
{
    int n = cJSON_GetArraySize(args->ranges);
    _cleanup_free_ struct observed_range *ranges = calloc((size_t)n + 1, sizeof(*ranges));
    const cJSON *item;
    size_t taken = 0;

    if (!ranges)
        return answer_refuse(request, INTERNAL_ERROR, "no memory for the ranges");
    if (!n || n > RANGES_MAX)
        return answer_refuse(request, HBM_E_INVALID, "`ranges` has %d; 1 to %d are set at once", n, RANGES_MAX);
    cJSON_ArrayForEach(item, args->ranges) if (!take(item, &ranges[taken++])) return answer_refuse(
        request, HBM_E_INVALID, "`ranges` %zu is no {id, lowest, highest} in numbers that a float holds",
        taken - 1);
    verb_set_ranges(request->core, request_call(request, answer_with_rows), ranges, taken);
}
