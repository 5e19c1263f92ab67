#include "client/ctl/facts.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static const struct fact_row rows[] = {
#define FACT(name, kind, text) {#name, text, FACT_##kind, offsetof(struct facts, name)},
#include "client/ctl/facts.def"
#undef FACT
};

const struct fact_row *fact_next(const struct fact_row *row)
{
    const struct fact_row *next = row ? row + 1 : rows;

    return next < rows + sizeof(rows) / sizeof(rows[0]) ? next : NULL;
}

double *fact_of(struct facts *facts, const struct fact_row *row)
{
    return (double *)((char *)facts + row->offset);
}

void facts_begin(struct facts *facts)
{
    *facts = (struct facts){0};
    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row))
        *fact_of(facts, row) = (double)NAN;
}

void facts_clear(struct facts *facts)
{
    free(facts->copied);
    free(facts->alike);
    *facts = (struct facts){0};
}

cJSON *facts_json(struct facts *facts, enum fact_kind kind)
{
    cJSON *object = cJSON_CreateObject();

    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row))
        if (row->kind == kind)
            cJSON_AddNumberToObject(object, row->name, *fact_of(facts, row)); /* NAN is written as null */
    return object;
}

void facts_read(struct facts *facts, enum fact_kind kind, const cJSON *object)
{
    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row)) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, row->name);
        if (row->kind == kind && cJSON_IsNumber(item))
            *fact_of(facts, row) = item->valuedouble;
    }
}

bool facts_since(struct facts *facts, struct facts *before)
{
    bool same = facts->uptime_seconds >= before->uptime_seconds;

    for (const struct fact_row *row = fact_next(NULL); same && row; row = fact_next(row))
        if (row->kind == FACT_COUNTED)
            *fact_of(facts, row) -= *fact_of(before, row);
    return same;
}
