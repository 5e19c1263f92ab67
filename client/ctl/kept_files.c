#include "client/ctl/kept_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[16] = "hbm kept files 1";

struct kept_row {
    uint32_t kind;
    uint32_t name_bytes;
    uint64_t file_size;
    uint64_t bytes;
};

static void pack_file(FILE *out, struct kept_row row, const char *name, const void *bytes)
{
    row.name_bytes = (uint32_t)strlen(name);
    fwrite(&row, sizeof(row), 1, out);
    fwrite(name, 1, row.name_bytes, out);
    fwrite(bytes, 1, row.bytes, out);
}

void *kept_files_pack(const struct checkpoint *checkpoint, size_t *size)
{
    char *packed = NULL;
    FILE *out = open_memstream(&packed, size);
    uint64_t count = checkpoint->n_shards + (checkpoint->index ? 1 : 0);

    if (!out)
        return NULL;
    fwrite(magic, sizeof(magic), 1, out);
    fwrite(&count, sizeof(count), 1, out);
    for (unsigned i = 0; i < checkpoint->n_shards; i++) {
        const struct shard *shard = &checkpoint->shards[i];
        struct kept_row row = {KEPT_HEADER, 0, shard->file_size, shard->file->header_bytes};
        pack_file(out, row, shard->name, shard->header);
    }
    if (checkpoint->index) {
        struct kept_row row = {KEPT_WHOLE, 0, checkpoint->index_bytes, checkpoint->index_bytes};
        pack_file(out, row, CHECKPOINT_INDEX, checkpoint->index);
    }
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(packed);
        return NULL;
    }
    return packed;
}

static bool is_file_name(const char *name, size_t size)
{
    return size && size < 256 && !memchr(name, '/', size) && !memchr(name, 0, size) &&
           !(size == 1 && name[0] == '.') && !(size == 2 && !memcmp(name, "..", 2));
}

/* Another publisher's metadata may be anything: nothing in it is believed. */
static bool unpack_file(const char **at, const char *end, struct kept_file *file)
{
    struct kept_row row;

    if ((size_t)(end - *at) < sizeof(row))
        return false;
    memcpy(&row, *at, sizeof(row));
    *at += sizeof(row);
    if (row.name_bytes > (size_t)(end - *at) || !is_file_name(*at, row.name_bytes) || row.kind > KEPT_WHOLE)
        return false;
    const char *name = *at;
    *at += row.name_bytes;
    if (row.bytes > (size_t)(end - *at) || row.bytes > row.file_size)
        return false;
    *file = (struct kept_file){row.kind, strndup(name, row.name_bytes), row.file_size, *at, (size_t)row.bytes};
    *at += row.bytes;
    return file->name;
}

unsigned kept_files_unpack(const void *metadata, size_t size, struct kept_file **ret)
{
    const char *at = metadata, *end = at + size;
    uint64_t count;
    unsigned n = 0;

    if (size < sizeof(magic) + sizeof(count) || memcmp(at, magic, sizeof(magic)))
        return 0;
    memcpy(&count, at + sizeof(magic), sizeof(count));
    at += sizeof(magic) + sizeof(count);
    if (!count || count > size / sizeof(struct kept_row))
        return 0;
    struct kept_file *files = calloc(count, sizeof(*files));
    while (files && n < count && unpack_file(&at, end, &files[n]))
        n++;
    if (!files || n < count || at != end) {
        kept_files_free(files, n);
        return 0;
    }
    *ret = files;
    return n;
}

void kept_files_free(struct kept_file *files, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        free(files[i].name);
    free(files);
}
