/* The safetensors or GGUF files of one model, open, their headers read and checked against each other. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/ctl/safetensors.h"

#define CHECKPOINT_WHY (SAFETENSORS_WHY + 512)
#define CHECKPOINT_INDEX "model.safetensors.index.json"

struct shard {
    char *name; /* without directories */
    int fd;
    uint64_t file_size;
    void *header; /* the file's first file->header_bytes bytes */
    struct safetensors *file;
};

struct checkpoint {
    struct shard *shards;
    unsigned n_shards;
    char *index; /* the text of its index.json, or NULL */
    size_t index_bytes;
    unsigned n_tensors;
    uint64_t bytes; /* of data */
};

/* One directory, or files. NULL with a sentence in why that names the file. */
struct checkpoint *checkpoint_open(const char *const *paths, unsigned n, char why[CHECKPOINT_WHY]);
struct checkpoint *checkpoint_free(struct checkpoint *checkpoint);

/* What the start of a file says that it has, in whichever format. NULL with a sentence in why. */
struct safetensors *checkpoint_parse(const void *bytes, size_t size, uint64_t file_size, char why[SAFETENSORS_WHY]);

/* For checkpoint_open: no tensor in two shards, and every tensor where the index says. 0 or -1. */
int checkpoint_check(const struct checkpoint *checkpoint, const cJSON *weight_map, char why[CHECKPOINT_WHY]);
/* The weight map of an index text, names checked; *tree owns it. NULL with a sentence in why. */
const cJSON *checkpoint_weight_map(const char *text, size_t size, cJSON **tree, char why[CHECKPOINT_WHY]);
/* A sentence into why; -1. */
__attribute__((format(printf, 2, 3))) int checkpoint_refuse(char *why, const char *format, ...);
