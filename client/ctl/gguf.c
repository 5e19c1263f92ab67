#include "client/ctl/gguf.h"

#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "GGUF"
#define ALIGNMENT "general.alignment"
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX (1u << 20)
#define RANK_MAX 4u
#define NESTED_MAX 4u /* arrays of arrays */
/* Of a tensor, at least: two lengths, a type and an offset; of a key: a length and a type. */
#define TENSOR_BYTES 24u
#define PAIR_BYTES 12u

enum value_type {
    VALUE_U8,
    VALUE_I8,
    VALUE_U16,
    VALUE_I16,
    VALUE_U32,
    VALUE_I32,
    VALUE_F32,
    VALUE_BOOL,
    VALUE_STRING,
    VALUE_ARRAY,
    VALUE_U64,
    VALUE_I64,
    VALUE_F64,
    VALUE_TYPES,
};

static const uint8_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct ggml_type {
    const char *name; /* NULL: no such type */
    unsigned block, bytes, dtype;
};

static const struct ggml_type types[] = {
#define GGML_TYPE(name, number, block, bytes, dtype) [number] = {#name, block, bytes, dtype},
#include "client/ctl/gguf_types.def"
#undef GGML_TYPE
};

struct head {
    const unsigned char *bytes;
    uint64_t size, file_size; /* what is given of it, and what there is */
    uint64_t at;
    uint64_t alignment;
    bool *more;
    char *why;
};

struct text {
    const char *at;
    uint64_t size;
};

__attribute__((format(printf, 2, 3))) static bool refuse(const struct head *head, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(head->why, SAFETENSORS_WHY, format, arguments);
    va_end(arguments);
    return false;
}

/* `n` more bytes are given, of what the sentence calls `what`. */
static bool have(struct head *head, uint64_t n, const char *what)
{
    if (n <= head->size - head->at)
        return true;
    if (n > head->file_size - head->at)
        return refuse(head, "it ends after %" PRIu64 " bytes, within its %s", head->file_size, what);
    *head->more = true;
    return refuse(head, "only %" PRIu64 " bytes of its head could be read", head->size);
}

static bool take_u32(struct head *head, uint32_t *number, const char *what)
{
    if (!have(head, sizeof(*number), what))
        return false;
    memcpy(number, head->bytes + head->at, sizeof(*number));
    *number = le32toh(*number);
    head->at += sizeof(*number);
    return true;
}

static bool take_u64(struct head *head, uint64_t *number, const char *what)
{
    if (!have(head, sizeof(*number), what))
        return false;
    memcpy(number, head->bytes + head->at, sizeof(*number));
    *number = le64toh(*number);
    head->at += sizeof(*number);
    return true;
}

static bool take_text(struct head *head, struct text *text, const char *what)
{
    if (!take_u64(head, &text->size, what) || !have(head, text->size, what))
        return false;
    text->at = (const char *)head->bytes + head->at;
    head->at += text->size;
    return true;
}

static bool is(struct text text, const char *word)
{
    return text.size == strlen(word) && !memcmp(text.at, word, text.size);
}

static bool skip_value(struct head *head, uint32_t type, unsigned depth);

static bool skip_array(struct head *head, unsigned depth)
{
    uint32_t type;
    uint64_t n, bytes;

    if (!take_u32(head, &type, "metadata") || !take_u64(head, &n, "metadata"))
        return false;
    if (type >= VALUE_TYPES)
        return refuse(head, "its metadata has an array of the type %" PRIu32 ", which there is not", type);
    if (value_bytes[type]) {
        if (__builtin_mul_overflow(n, value_bytes[type], &bytes))
            return refuse(head, "its metadata has an array of %" PRIu64 " values, which goes beyond its end", n);
        if (!have(head, bytes, "metadata"))
            return false;
        head->at += bytes;
        return true;
    }
    /* Each takes bytes, so that a number that lies ends with the file. */
    for (uint64_t i = 0; i < n; i++)
        if (!skip_value(head, type, depth + 1))
            return false;
    return true;
}

static bool skip_value(struct head *head, uint32_t type, unsigned depth)
{
    struct text text;

    if (type >= VALUE_TYPES)
        return refuse(head, "its metadata has a value of the type %" PRIu32 ", which there is not", type);
    if (type == VALUE_STRING)
        return take_text(head, &text, "metadata");
    if (type == VALUE_ARRAY)
        return depth < NESTED_MAX ? skip_array(head, depth)
                                  : refuse(head, "its metadata nests arrays more than %u deep", NESTED_MAX);
    if (!have(head, value_bytes[type], "metadata"))
        return false;
    head->at += value_bytes[type];
    return true;
}

static bool read_alignment(struct head *head, uint32_t type)
{
    uint32_t alignment;

    if (head->alignment)
        return refuse(head, "its metadata has " ALIGNMENT " twice");
    if (type != VALUE_U32)
        return refuse(head, ALIGNMENT " is of the type %" PRIu32 ", and not a number of 32 bits", type);
    if (!take_u32(head, &alignment, "metadata"))
        return false;
    if (!alignment || alignment > ALIGNMENT_MAX || alignment & (alignment - 1))
        return refuse(head, ALIGNMENT " is %" PRIu32 ", which is no power of two up to %u", alignment, ALIGNMENT_MAX);
    head->alignment = alignment;
    return true;
}

static bool read_metadata(struct head *head, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct text key;
        uint32_t type;
        if (!take_text(head, &key, "metadata") || !take_u32(head, &type, "metadata"))
            return false;
        if (is(key, ALIGNMENT) ? !read_alignment(head, type) : !skip_value(head, type, 0))
            return false;
    }
    if (!head->alignment)
        head->alignment = ALIGNMENT_DEFAULT;
    return true;
}

/* Its last axis comes first there. */
static bool read_dims(struct head *head, struct safetensor *tensor)
{
    uint32_t rank;

    if (!take_u32(head, &rank, "tensors"))
        return false;
    if (rank > RANK_MAX)
        return refuse(head, "tensor \"%.200s\" has %" PRIu32 " dimensions, more than the %u of the format", tensor->name,
                      rank, RANK_MAX);
    tensor->rank = rank;
    for (unsigned i = rank; i-- > 0;)
        if (!take_u64(head, &tensor->dims[i], "tensors"))
            return false;
    return true;
}

static bool read_type(struct head *head, struct safetensor *tensor)
{
    uint64_t *last = tensor->rank ? &tensor->dims[tensor->rank - 1] : &(uint64_t){1};
    uint32_t number;

    if (!take_u32(head, &number, "tensors"))
        return false;
    if (number >= sizeof(types) / sizeof(types[0]) || !types[number].name)
        return refuse(head, "tensor \"%.200s\" has the type %" PRIu32 ", which this version does not know", tensor->name, number);
    const struct ggml_type *type = &types[number];
    tensor->dtype = type->dtype;
    if (type->block == 1)
        return true;
    if (!tensor->rank || *last % type->block)
        return refuse(head, "tensor \"%.200s\" has rows of %" PRIu64 " elements, and %s lies in blocks of %u", tensor->name,
                      *last, type->name, type->block);
    if (__builtin_mul_overflow(*last / type->block, type->bytes, last))
        return refuse(head, "the shape of tensor \"%.200s\" overflows 64 bits", tensor->name);
    return true;
}

static bool read_place(struct head *head, struct safetensor *tensor)
{
    uint64_t bytes;

    if (!take_u64(head, &tensor->begin, "tensors"))
        return false;
    if (!hbm_shape_bytes(tensor->dims, tensor->rank, tensor->dtype, &bytes) ||
        __builtin_add_overflow(tensor->begin, bytes, &tensor->end))
        return refuse(head, "the shape of tensor \"%.200s\" overflows 64 bits", tensor->name);
    return true;
}

static bool read_name(struct head *head, char **room, struct safetensor *tensor)
{
    struct text name;

    if (!take_text(head, &name, "tensors"))
        return false;
    if (!name.size || memchr(name.at, 0, name.size))
        return refuse(head, "the name of tensor %u is empty or has a NUL", tensor->position);
    tensor->name = memcpy(*room, name.at, name.size);
    *room += name.size;
    *(*room)++ = 0;
    return true;
}

static bool read_tensors(struct head *head, struct safetensors *file, uint64_t n)
{
    if (n >= UINT32_MAX || n > head->file_size / TENSOR_BYTES)
        return refuse(head, "it would have %" PRIu64 " tensors, more than there is room for in it", n);
    if (!have(head, n * TENSOR_BYTES, "tensors"))
        return false;
    file->tensors = calloc(n + 1, sizeof(*file->tensors));
    /* A name and its NUL take less than with its length before it. */
    char *room = file->names = malloc(head->size - head->at + 1);
    if (!file->tensors || !file->names)
        return refuse(head, "there is no memory to read its head");
    for (; file->n < n; file->n++) {
        struct safetensor *tensor = &file->tensors[file->n];
        tensor->position = file->n;
        if (!read_name(head, &room, tensor) || !read_dims(head, tensor) || !read_type(head, tensor) || !read_place(head, tensor))
            return false;
    }
    qsort(file->tensors, file->n, sizeof(*file->tensors), safetensors_compare);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool check_names(const struct head *head, const struct safetensors *file)
{
    const char **names = calloc((size_t)file->n + 1, sizeof(*names));
    bool fine = names;

    if (!names)
        return refuse(head, "there is no memory to read its head");
    for (unsigned i = 0; i < file->n; i++)
        names[i] = file->tensors[i].name;
    qsort(names, file->n, sizeof(*names), compare_names);
    for (unsigned i = 1; fine && i < file->n; i++)
        if (!strcmp(names[i - 1], names[i]))
            fine = refuse(head, "it has tensor \"%.200s\" twice", names[i]);
    free(names);
    return fine;
}

static uint64_t aligned(uint64_t at, uint64_t alignment)
{
    return (at + alignment - 1) / alignment * alignment;
}

/* Each tensor begins where the one before it ends, but for the padding. */
static bool check_cover(const struct head *head, const struct safetensors *file)
{
    uint64_t covered = 0;

    for (unsigned i = 0; i < file->n; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        if (tensor->begin < covered)
            return refuse(head, "tensors \"%.200s\" and \"%.200s\" overlap", tensor[-1].name, tensor->name);
        if (tensor->begin != aligned(covered, head->alignment))
            return refuse(head, "tensor \"%.200s\" begins at %" PRIu64 ", and by what is before it at %" PRIu64, tensor->name,
                          tensor->begin, aligned(covered, head->alignment));
        if (tensor->end > file->data_bytes)
            return refuse(head, "tensor \"%.200s\" ends at %" PRIu64 ", but the file has only %" PRIu64 " bytes of data",
                          tensor->name, tensor->end, file->data_bytes);
        covered = tensor->end;
    }
    if (file->data_bytes > aligned(covered, head->alignment))
        return refuse(head, "the last %" PRIu64 " bytes of data belong to no tensor", file->data_bytes - covered);
    return true;
}

static bool read_start(struct head *head, uint64_t *n_tensors, uint64_t *n_pairs)
{
    uint32_t version;

    head->at = strlen(MAGIC);
    if (!take_u32(head, &version, "start"))
        return false;
    if (version != 2 && version != 3)
        return refuse(head, !version || version & 0xffff
                                ? "it is of version %" PRIu32 ", and this reads 2 and 3"
                                : "it is big-endian (version 0x%08" PRIx32 "), which this does not read",
                      version);
    if (!take_u64(head, n_tensors, "start") || !take_u64(head, n_pairs, "start"))
        return false;
    if (*n_pairs > head->file_size / PAIR_BYTES)
        return refuse(head, "it would have %" PRIu64 " pairs of metadata, more than there is room for in it", *n_pairs);
    return true;
}

static bool parse(struct head *head, struct safetensors *file)
{
    uint64_t n_tensors = 0, n_pairs = 0;

    if (!read_start(head, &n_tensors, &n_pairs) || !read_metadata(head, n_pairs) || !read_tensors(head, file, n_tensors))
        return false;
    uint64_t padding = aligned(head->at, head->alignment) - head->at;
    if (!have(head, padding, "padding"))
        return false;
    file->header_bytes = head->at + padding;
    file->data_bytes = head->file_size - file->header_bytes;
    return check_names(head, file) && check_cover(head, file);
}

bool gguf_magic(const void *bytes, size_t size)
{
    return size >= strlen(MAGIC) && !memcmp(bytes, MAGIC, strlen(MAGIC));
}

struct safetensors *gguf_parse(const void *bytes, size_t size, uint64_t file_size, bool *more, char why[SAFETENSORS_WHY])
{
    struct head head = {.bytes = bytes, .size = size, .file_size = file_size, .more = more, .why = why};
    struct safetensors *file = calloc(1, sizeof(*file));

    *more = false;
    if (!file) {
        refuse(&head, "there is no memory to read its head");
        return NULL;
    }
    if (!gguf_magic(bytes, size)) {
        refuse(&head, "it does not begin with " MAGIC);
        return safetensors_free(file);
    }
    return parse(&head, file) ? file : safetensors_free(file);
}
