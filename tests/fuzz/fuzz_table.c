/* A publisher's table: whoever opens one may follow everything in it. Once as any bytes, once as a table whose
 * numbers are the input's: that gets further. */
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "tests/fuzz/world.h"

/* Reads all of it; a table that was opened, built anew of its parts, is the same. */
static void follow(const struct table *table, size_t size)
{
    struct table_builder builder = {0};
    const struct table_header *header = table->header;
    const char *why = "";
    struct table again;
    size_t n;

    for (uint32_t i = 0; i < header->n_arenas; i++) {
        CHECK(strlen(table->strings + table->arenas[i].group) < HBM_GROUP_MAX);
        CHECK(!table_add_arena(&builder, &table->arenas[i], table->strings + table->arenas[i].group));
    }
    for (uint32_t i = 0; i < header->n_buffers; i++) {
        CHECK(table->buffers[i].arena < header->n_arenas);
        CHECK(strlen(table->strings + table->buffers[i].name) < HBM_NAME_MAX);
        CHECK(!table_add_buffer(&builder, &table->buffers[i], table->strings + table->buffers[i].name));
    }
    CHECK(!table_set_metadata(&builder, table->metadata, header->metadata_bytes));
    int fd = table_finish(&builder, "again");
    void *bytes = memfd_map_sealed(fd, TABLE_BYTES_MAX, &n);
    CHECK(bytes && table_open(&again, bytes, n, &why));
    CHECK(again.header->n_buffers == header->n_buffers &&
          n <= size + 384 * ((size_t)header->n_buffers + header->n_arenas));
    CHECK(!memcmp(again.metadata, table->metadata, header->metadata_bytes));
    munmap(bytes, n);
    close(fd);
    table_builder_clear(&builder);
}

static void try(const void *given, size_t size)
{
    void *bytes = malloc(size ? size : 1); /* just its size: one byte beyond is seen */
    struct table table;
    const char *why = NULL;

    CHECK(bytes);
    memcpy(bytes, given, size);
    if (table_open(&table, bytes, size, &why))
        follow(&table, size);
    else
        CHECK(why && *why);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    size_t n;

    try(bytes, size);
    int fd = take_table(&in);
    void *built = memfd_map_sealed(fd, 1 << 20, &n);
    CHECK(built);
    try(built, n);
    munmap(built, n);
    close(fd);
    return 0;
}
