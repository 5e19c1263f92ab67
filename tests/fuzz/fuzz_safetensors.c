/* The head of a checkpoint: what is taken must be what the format promises, since the tensors' places are written
 * to next. The input's first byte is how much data the file has behind its header, at a size that makes most inputs
 * fit. */
#include "client/ctl/safetensors.h"
#include "tests/fuzz/input.h"

static void check(const struct safetensors *file, size_t given, uint64_t file_size)
{
    uint64_t at = 0;

    CHECK(file->header_bytes <= given && file->header_bytes + file->data_bytes == file_size);
    for (unsigned i = 0; i < file->n; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        uint64_t bytes;

        CHECK(tensor->begin == at && tensor->end >= at && tensor->name && tensor->rank <= HBM_RANK_MAX);
        CHECK(hbm_shape_bytes(tensor->dims, tensor->rank, tensor->dtype, &bytes) && bytes == tensor->end - at);
        CHECK(tensor->position < file->n);
        at = tensor->end;
    }
    CHECK(at == file->data_bytes);
}

static void try(const uint8_t *bytes, size_t size, uint64_t file_size)
{
    char why[SAFETENSORS_WHY] = "";
    struct safetensors *file = safetensors_parse(bytes, size, file_size, why);

    if (file)
        check(file, size, file_size);
    else
        CHECK(*why && memchr(why, 0, sizeof(why)));
    safetensors_free(file);
}

/* A copy of just its size, so that one byte read beyond it is seen. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    uint64_t data = take_number(&in);
    uint8_t *copy = malloc(in.left + SAFETENSORS_LENGTH_BYTES);
    uint64_t length = in.left;
    char why[SAFETENSORS_WHY] = "";

    CHECK(copy);
    /* With the right length before it, which few inputs would have by themselves. */
    memcpy(copy, &length, sizeof(length));
    memcpy(copy + SAFETENSORS_LENGTH_BYTES, in.at, in.left);
    if (data <= INT64_MAX)
        try(copy, in.left + SAFETENSORS_LENGTH_BYTES, in.left + SAFETENSORS_LENGTH_BYTES + data);
    memmove(copy, in.at, in.left);
    uint64_t need = safetensors_header_bytes(copy, in.left, in.left, why);
    CHECK(need <= in.left && (need || *why));
    uint8_t *tight = malloc(in.left ? in.left : 1);
    CHECK(tight);
    memcpy(tight, copy, in.left);
    try(tight, in.left, in.left);
    free(tight);
    free(copy);
    return 0;
}
