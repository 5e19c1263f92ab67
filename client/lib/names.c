/* An index of names: open addressing, at most half full, built once. */
#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/lease.h"

static uint32_t hash(const char *text)
{
    uint32_t value = 2166136261u; /* FNV-1a */

    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 16777619u;
    return value;
}

int name_index_init(struct name_index *index, unsigned n)
{
    uint32_t room = 4;

    while (room < 2 * (uint64_t)n)
        room *= 2;
    index->mask = room - 1;
    index->rows = calloc(room, sizeof(*index->rows));
    return index->rows ? 0 : set_system_error("malloc", ENOMEM);
}

static struct name_row *row_for(const struct name_index *index, const char *text)
{
    uint32_t at = hash(text) & index->mask;

    while (index->rows[at].text && strcmp(index->rows[at].text, text))
        at = (at + 1) & index->mask;
    return &index->rows[at];
}

bool name_index_add(struct name_index *index, const char *text, uint32_t value)
{
    struct name_row *row = row_for(index, text);

    if (row->text)
        return false;
    *row = (struct name_row){text, value};
    return true;
}

int64_t name_index_find(const struct name_index *index, const char *text)
{
    const struct name_row *row = row_for(index, text);

    return row->text ? (int64_t)row->value : -1;
}
