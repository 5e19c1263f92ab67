/* What `load` keeps of the files beside their tensors, as the model's metadata, so that `save` gives them back byte
 * for byte: each safetensors header with its padding, and the index.
 *
 *   magic[16] | count u64 | per file: { kind u32, name bytes u32, file size u64, bytes u64, name, bytes } */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/ctl/checkpoint.h"

enum kept_kind {
    KEPT_HEADER = 0, /* the bytes start the file, tensors follow */
    KEPT_WHOLE = 1,  /* the bytes are the file */
};

struct kept_file {
    enum kept_kind kind;
    char *name;
    uint64_t file_size;
    const void *bytes; /* in the metadata */
    size_t size;
};

/* Metadata for a checkpoint, from malloc; NULL without memory. */
void *kept_files_pack(const struct checkpoint *checkpoint, size_t *size);
/* The files of a model's metadata, in *ret (kept_files_free). How many; 0 where the metadata is not of this making.
 */
unsigned kept_files_unpack(const void *metadata, size_t size, struct kept_file **ret);
void kept_files_free(struct kept_file *files, unsigned n);
