/* The head of a GGUF file, llama.cpp's: metadata and tensors' places in binary, then the data, each tensor aligned.
 * Pure functions over bytes: nothing here opens a file. What comes of it is what comes of a safetensors header: rows of typed
 * bytes. Quantised tensors are bytes, their last axis that of a row of blocks; the head, which is kept, says of which type. */
#pragma once

#include <stdbool.h>

#include "client/ctl/safetensors.h"

bool gguf_magic(const void *bytes, size_t size);

/* The head at the start of a file of file_size bytes, of which `size` are given. NULL with a sentence in why that names what
 * is at fault; with *more, that the head goes on behind what was given. Freed by safetensors_free. */
struct safetensors *gguf_parse(const void *bytes, size_t size, uint64_t file_size, bool *more, char why[SAFETENSORS_WHY]);
