/* The header of a safetensors file: 8 bytes of length (little endian), that many bytes of JSON, then the data.
 * Pure functions over bytes: nothing here opens a file. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/vocab.h"

#define SAFETENSORS_LENGTH_BYTES 8u
#define SAFETENSORS_HEADER_MAX 100000000u /* the limit of the format's reference reader */
#define SAFETENSORS_WHY 512

struct safetensor {
    const char *name;
    unsigned dtype; /* enum hbm_dtype */
    unsigned rank;
    uint64_t dims[HBM_RANK_MAX];
    uint64_t begin, end; /* in the data, which starts at header_bytes */
    unsigned position;   /* in the header */
};

struct safetensors {
    uint64_t header_bytes; /* the 8 of the length included */
    uint64_t data_bytes;
    unsigned n;
    struct safetensor *tensors; /* in the order of their data, which they cover without gap or overlap */
    cJSON *header;              /* owns the names */
    char *names;                /* of a GGUF file, which has no JSON (gguf.h) */
};

/* How much of a file of file_size bytes its header takes, from its first 8 bytes (fewer if the file has fewer).
 * 0 with a sentence in why if it cannot be one. */
uint64_t safetensors_header_bytes(const void *bytes, size_t size, uint64_t file_size, char why[SAFETENSORS_WHY]);

/* The header at the start of a file of file_size bytes, of which `size` are given. NULL with a sentence in why that
 * names the tensor at fault. */
struct safetensors *safetensors_parse(const void *bytes, size_t size, uint64_t file_size,
                                      char why[SAFETENSORS_WHY]);
struct safetensors *safetensors_free(struct safetensors *file);
/* For qsort: struct safetensor by its place. */
int safetensors_compare(const void *a, const void *b);
