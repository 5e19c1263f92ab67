/* A model's table: what PUBLISH takes and what PUBLISH and ATTACH_MODEL give, in a sealed memfd.
 *
 *   struct table_header | struct table_arena[n_arenas] | struct table_buffer[n_buffers] | strings | metadata
 *
 * An arena is a group (layer). A publisher fills `group`, and of its buffers `arena`, `name`, `dtype`, `rank`, `dims`,
 * `size`; the daemon places them and fills the rest. Names are those of the tensors, without "MODEL/".
 * Metadata is opaque to the daemon: a safetensors header, say. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/vocab.h"

#define TABLE_MAGIC 0x54424d48u /* "HMBT" */
#define TABLE_VERSION 1u
#define TABLE_BYTES_MAX ((size_t)256 << 20)
#define TABLE_ARENAS_MAX 4096u
#define TABLE_BUFFERS_MAX 1000000u

struct table_header {
    uint32_t magic;
    uint32_t version;
    uint32_t n_arenas;
    uint32_t n_buffers;
    uint64_t strings_bytes;
    uint64_t metadata_bytes;
};

struct table_arena {
    uint64_t arena;
    uint64_t size;
    uint32_t group; /* offset in strings */
    uint32_t slot;
    uint32_t device;
    uint32_t handle;
    uint32_t present; /* an fd of this arena came with the table (handle fd), or ipc_handle is valid */
    uint32_t unused;
    uint8_t ipc_handle[64];
};

struct table_buffer {
    uint64_t buffer;
    uint64_t offset; /* in its arena */
    uint64_t size;
    uint64_t dims[HBM_RANK_MAX];
    struct hbm_encoding encoding;
    uint32_t arena; /* index */
    uint32_t name;  /* offset in strings */
    uint32_t dtype;
    uint32_t rank;
    uint32_t version;
    uint32_t unused;
};

/* A table in memory, by pointers into it. */
struct table {
    const struct table_header *header;
    const struct table_arena *arenas;
    const struct table_buffer *buffers;
    const char *strings;
    const void *metadata;
};

/* Checks sizes, counts, every index and string offset (each string ends inside the blob), dtype, rank, and that shape
 * and size agree. False with a sentence in *why. The bytes must not change while the table is used: map it sealed. */
bool table_open(struct table *table, const void *bytes, size_t size, const char **why);

/* Builds one, growing. All return 0 or -ENOMEM. table_finish gives a sealed memfd (or -errno). */
struct table_builder {
    struct table_header header;
    struct table_arena *arenas;
    struct table_buffer *buffers;
    char *strings;
    void *metadata;
    size_t arenas_room, buffers_room, strings_room;
};
int table_add_arena(struct table_builder *builder, const struct table_arena *row, const char *group);
int table_add_buffer(struct table_builder *builder, const struct table_buffer *row, const char *name);
int table_set_metadata(struct table_builder *builder, const void *bytes, size_t size);
int table_finish(struct table_builder *builder, const char *memfd_name);
void table_builder_clear(struct table_builder *builder);
