#include "proto/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/memfd.h"

static bool refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return false;
}

static bool string_ends(const struct table *table, uint32_t offset, size_t limit)
{
    uint64_t left;

    if (offset >= table->header->strings_bytes)
        return false;
    left = table->header->strings_bytes - offset;
    return memchr(table->strings + offset, 0, left < limit ? left : limit) != NULL;
}

static bool buffer_is_sound(const struct table *table, const struct table_buffer *row, const char **why)
{
    uint64_t bytes;

    if (row->arena >= table->header->n_arenas)
        return refuse(why, "a buffer names a group that is not in the table");
    if (!string_ends(table, row->name, HBM_NAME_MAX))
        return refuse(why, "a buffer's name is too long or lies outside the table");
    if (!hbm_dtype_name(row->dtype))
        return refuse(why, "a buffer has an unknown dtype");
    if (row->rank > HBM_RANK_MAX)
        return refuse(why, "a buffer has more than 8 dimensions");
    if (!hbm_shape_bytes(row->dims, row->rank, row->dtype, &bytes))
        return refuse(why, "a buffer's shape overflows 64 bits");
    if (row->encoding.codec == HBM_CODEC_RAW && bytes != row->size)
        return refuse(why, "a buffer's size is not its shape times its dtype");
    return true;
}

bool table_open(struct table *table, const void *bytes, size_t size, const char **why)
{
    const struct table_header *header = bytes;
    size_t need = sizeof(*header);

    if (size < need || header->magic != TABLE_MAGIC || header->version != TABLE_VERSION)
        return refuse(why, "not a table of this version");
    if (header->n_arenas > TABLE_ARENAS_MAX || header->n_buffers > TABLE_BUFFERS_MAX)
        return refuse(why, "more groups or buffers than a model may have");
    if (header->strings_bytes > TABLE_BYTES_MAX || header->metadata_bytes > TABLE_BYTES_MAX)
        return refuse(why, "the table is too large");
    need += header->n_arenas * sizeof(struct table_arena) + header->n_buffers * sizeof(struct table_buffer);
    need += header->strings_bytes + header->metadata_bytes;
    if (need != size)
        return refuse(why, "the table's parts do not add up to its size");

    table->header = header;
    table->arenas = (const struct table_arena *)(header + 1);
    table->buffers = (const struct table_buffer *)(table->arenas + header->n_arenas);
    table->strings = (const char *)(table->buffers + header->n_buffers);
    table->metadata = table->strings + header->strings_bytes;
    for (uint32_t i = 0; i < header->n_arenas; i++)
        if (!string_ends(table, table->arenas[i].group, HBM_GROUP_MAX))
            return refuse(why, "a group's name is too long or lies outside the table");
    for (uint32_t i = 0; i < header->n_buffers; i++)
        if (!buffer_is_sound(table, &table->buffers[i], why))
            return false;
    return true;
}

/* Grows *array so that one more element fits. */
static int reserve(void **array, size_t *room, size_t used, size_t more, size_t element)
{
    if (used + more <= *room)
        return 0;
    size_t next = *room ? *room * 2 : 16;
    while (next < used + more)
        next *= 2;
    void *grown = reallocarray(*array, next, element);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = next;
    return 0;
}

static int add_string(struct table_builder *builder, const char *text, uint32_t *offset)
{
    size_t size = strlen(text) + 1;

    if (builder->header.strings_bytes + size > TABLE_BYTES_MAX)
        return -ENOMEM;
    int error = reserve((void **)&builder->strings, &builder->strings_room, builder->header.strings_bytes, size, 1);
    if (error)
        return error;
    *offset = (uint32_t)builder->header.strings_bytes;
    memcpy(builder->strings + *offset, text, size);
    builder->header.strings_bytes += size;
    return 0;
}

int table_add_arena(struct table_builder *builder, const struct table_arena *row, const char *group)
{
    uint32_t n = builder->header.n_arenas;
    struct table_arena copy = *row;
    int error = reserve((void **)&builder->arenas, &builder->arenas_room, n, 1, sizeof(*row));

    if (!error)
        error = add_string(builder, group, &copy.group);
    if (error)
        return error;
    builder->arenas[n] = copy;
    builder->header.n_arenas++;
    return 0;
}

int table_add_buffer(struct table_builder *builder, const struct table_buffer *row, const char *name)
{
    uint32_t n = builder->header.n_buffers;
    struct table_buffer copy = *row;
    int error = reserve((void **)&builder->buffers, &builder->buffers_room, n, 1, sizeof(*row));

    if (!error)
        error = add_string(builder, name, &copy.name);
    if (error)
        return error;
    builder->buffers[n] = copy;
    builder->header.n_buffers++;
    return 0;
}

int table_set_metadata(struct table_builder *builder, const void *bytes, size_t size)
{
    void *copy = malloc(size ? size : 1);

    if (!copy)
        return -ENOMEM;
    memcpy(copy, bytes, size);
    free(builder->metadata);
    builder->metadata = copy;
    builder->header.metadata_bytes = size;
    return 0;
}

int table_finish(struct table_builder *builder, const char *memfd_name)
{
    struct table_header *header = &builder->header;
    size_t arenas = header->n_arenas * sizeof(struct table_arena);
    size_t buffers = header->n_buffers * sizeof(struct table_buffer);
    size_t size = sizeof(*header) + arenas + buffers + header->strings_bytes + header->metadata_bytes;
    char *bytes = malloc(size), *at = bytes;

    if (!bytes)
        return -ENOMEM;
    header->magic = TABLE_MAGIC;
    header->version = TABLE_VERSION;
    at = mempcpy(at, header, sizeof(*header));
    /* An absent part is a null pointer, which memcpy may not be given even for no bytes. */
    if (arenas)
        at = mempcpy(at, builder->arenas, arenas);
    if (buffers)
        at = mempcpy(at, builder->buffers, buffers);
    if (header->strings_bytes)
        at = mempcpy(at, builder->strings, header->strings_bytes);
    if (header->metadata_bytes)
        memcpy(at, builder->metadata, header->metadata_bytes);
    int fd = memfd_sealed(memfd_name, bytes, size);
    free(bytes);
    return fd;
}

void table_builder_clear(struct table_builder *builder)
{
    free(builder->arenas);
    free(builder->buffers);
    free(builder->strings);
    free(builder->metadata);
    *builder = (struct table_builder){0};
}
