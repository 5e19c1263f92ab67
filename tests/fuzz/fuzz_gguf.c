/* The head of a GGUF file: what is taken must lie in the file and nowhere twice, since the tensors' places are written to next.
 * The input's first byte is how much data the file has behind what is given. */
#include "client/ctl/gguf.h"
#include "tests/fuzz/input.h"

static void check(const struct safetensors *file, size_t given, uint64_t file_size)
{
    uint64_t at = 0;

    CHECK(file->header_bytes <= given && file->header_bytes + file->data_bytes == file_size);
    for (unsigned i = 0; i < file->n; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        uint64_t bytes;

        CHECK(tensor->begin >= at && tensor->end <= file->data_bytes && *tensor->name && tensor->rank <= HBM_RANK_MAX);
        CHECK(hbm_shape_bytes(tensor->dims, tensor->rank, tensor->dtype, &bytes) && bytes == tensor->end - tensor->begin);
        CHECK(tensor->position < file->n);
        at = tensor->end;
    }
}

/* A copy of just its size, so that one byte read beyond it is seen. What is given of a file ends anywhere in it. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    uint64_t data = take_number(&in), file_size = in.left + (data <= INT64_MAX ? data : 0);
    uint8_t *copy = malloc(in.left ? in.left : 1);
    char why[SAFETENSORS_WHY] = "";
    bool more;

    CHECK(copy);
    memcpy(copy, in.at, in.left);
    struct safetensors *file = gguf_parse(copy, in.left, file_size, &more, why);
    if (file)
        check(file, in.left, file_size);
    else
        CHECK(*why && memchr(why, 0, sizeof(why)) && (!more || in.left < file_size));
    safetensors_free(file);
    free(copy);
    return 0;
}
