#include "client/ctl/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/json_text.h"

#define METADATA "__metadata__"
/* A tensor's own objects reach 3; a reader of unknown members stays generous. */
static const struct json_rules header_rules = {.depth_max = 16, .whole_numbers = true};

__attribute__((format(printf, 2, 3))) static bool refuse(char *why, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, SAFETENSORS_WHY, format, arguments);
    va_end(arguments);
    return false;
}

uint64_t safetensors_header_bytes(const void *bytes, size_t size, uint64_t file_size, char why[SAFETENSORS_WHY])
{
    uint64_t length;

    if (size < SAFETENSORS_LENGTH_BYTES || file_size < SAFETENSORS_LENGTH_BYTES)
        return refuse(why, "it has %" PRIu64 " bytes, fewer than a header's length takes", file_size);
    memcpy(&length, bytes, sizeof(length));
    length = le64toh(length);
    if (length > SAFETENSORS_HEADER_MAX)
        return refuse(
            why, "its header would have %" PRIu64 " bytes, more than the 100000000 that the format allows", length);
    if (length > file_size - SAFETENSORS_LENGTH_BYTES)
        return refuse(why, "its header would have %" PRIu64 " bytes, but the file ends after %" PRIu64, length,
                      file_size - SAFETENSORS_LENGTH_BYTES);
    return SAFETENSORS_LENGTH_BYTES + length;
}

static bool read_metadata(const cJSON *metadata, char *why)
{
    const cJSON *member;
    const char *twice;

    if (!cJSON_IsObject(metadata))
        return refuse(why, METADATA " is not an object");
    cJSON_ArrayForEach(member, metadata) if (!cJSON_IsString(member)) return refuse(
        why, METADATA " has \"%.200s\", which is not a string", member->string);
    if (!json_duplicate(metadata, &twice))
        return refuse(why, "there is no memory to read its header");
    if (twice)
        return refuse(why, METADATA " has \"%.200s\" twice", twice);
    return true;
}

/* The scan has seen that every number is whole and at most 2^53: the cast is exact. */
static bool read_number(const cJSON *item, uint64_t *number)
{
    if (!cJSON_IsNumber(item))
        return false;
    *number = (uint64_t)item->valuedouble;
    return true;
}

static bool read_shape(const cJSON *shape, struct safetensor *tensor, char *why)
{
    const cJSON *item;

    if (!cJSON_IsArray(shape))
        return refuse(why, "tensor \"%.200s\" does not have one shape", tensor->name);
    cJSON_ArrayForEach(item, shape)
    {
        if (tensor->rank == HBM_RANK_MAX)
            return refuse(why, "tensor \"%.200s\" has more than %d dimensions", tensor->name, HBM_RANK_MAX);
        if (!read_number(item, &tensor->dims[tensor->rank++]))
            return refuse(why, "the shape of tensor \"%.200s\" has something that is no number", tensor->name);
    }
    return true;
}

static bool read_offsets(const cJSON *offsets, struct safetensor *tensor, uint64_t data_bytes, char *why)
{
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !read_number(offsets->child, &tensor->begin) || !read_number(offsets->child->next, &tensor->end))
        return refuse(why, "tensor \"%.200s\" does not have one pair of data_offsets", tensor->name);
    if (tensor->begin > tensor->end)
        return refuse(why, "tensor \"%.200s\" ends at %" PRIu64 ", before it begins at %" PRIu64, tensor->name,
                      tensor->end, tensor->begin);
    if (tensor->end > data_bytes)
        return refuse(why, "tensor \"%.200s\" ends at %" PRIu64 ", but the file has only %" PRIu64 " bytes of data",
                      tensor->name, tensor->end, data_bytes);
    return true;
}

static bool read_size(const struct safetensor *tensor, char *why)
{
    uint64_t elements, bits, have = tensor->end - tensor->begin;

    if (!hbm_shape_elements(tensor->dims, tensor->rank, &elements) ||
        __builtin_mul_overflow(elements, hbm_dtype_bits(tensor->dtype), &bits))
        return refuse(why, "the shape of tensor \"%.200s\" overflows 64 bits", tensor->name);
    if (bits % 8)
        return refuse(why, "tensor \"%.200s\" does not end at a whole byte", tensor->name);
    if (bits / 8 != have)
        return refuse(why,
                      "tensor \"%.200s\" has %" PRIu64 " bytes of data, but its shape and dtype %s take %" PRIu64,
                      tensor->name, have, hbm_dtype_name(tensor->dtype), bits / 8);
    return true;
}

static bool read_tensor(const cJSON *member, struct safetensor *tensor, uint64_t data_bytes, char *why)
{
    const cJSON *dtype = json_only(member, "dtype");
    int number;

    tensor->name = member->string;
    if (!cJSON_IsObject(member))
        return refuse(why, "tensor \"%.200s\" is not described by an object", tensor->name);
    if (!cJSON_IsString(dtype))
        return refuse(why, "tensor \"%.200s\" does not have one dtype", tensor->name);
    number = hbm_dtype_by_name(dtype->valuestring);
    if (number < 0)
        return refuse(why, "tensor \"%.200s\" has the dtype \"%.40s\", which this version does not know",
                      tensor->name, dtype->valuestring);
    tensor->dtype = (unsigned)number;
    return read_shape(json_only(member, "shape"), tensor, why) &&
           read_offsets(json_only(member, "data_offsets"), tensor, data_bytes, why) && read_size(tensor, why);
}

static bool read_members(struct safetensors *file, char *why)
{
    const cJSON *member;
    const char *twice;

    if (!json_duplicate(file->header, &twice))
        return refuse(why, "there is no memory to read its header");
    if (twice)
        return refuse(why, "its header has \"%.200s\" twice", twice);
    file->tensors = calloc((size_t)cJSON_GetArraySize(file->header) + 1, sizeof(*file->tensors));
    if (!file->tensors)
        return refuse(why, "there is no memory to read its header");
    cJSON_ArrayForEach(member, file->header)
    {
        if (!strcmp(member->string, METADATA)) {
            if (!read_metadata(member, why))
                return false;
            continue;
        }
        file->tensors[file->n].position = file->n;
        if (!read_tensor(member, &file->tensors[file->n], file->data_bytes, why))
            return false;
        file->n++;
    }
    return true;
}

int safetensors_compare(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->position < y->position ? -1 : 1;
}

/* The format wants every byte of the data to belong to exactly one tensor. */
static bool check_cover(const struct safetensors *file, char *why)
{
    uint64_t covered = 0;

    for (unsigned i = 0; i < file->n; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        if (tensor->begin < covered)
            return refuse(why, "tensors \"%.200s\" and \"%.200s\" overlap", tensor[-1].name, tensor->name);
        if (tensor->begin > covered)
            return refuse(why, "%" PRIu64 " bytes of data before tensor \"%.200s\" belong to no tensor",
                          tensor->begin - covered, tensor->name);
        covered = tensor->end;
    }
    if (covered != file->data_bytes)
        return refuse(why, "the last %" PRIu64 " bytes of data belong to no tensor", file->data_bytes - covered);
    return true;
}

static bool parse(struct safetensors *file, const char *text, char *why)
{
    const char *fault;
    size_t length = file->header_bytes - SAFETENSORS_LENGTH_BYTES;

    if (!length || text[0] != '{')
        return refuse(why, "its header does not start with '{'");
    /* The format pads with spaces and nothing else. */
    while (text[length - 1] == ' ')
        length--;
    if (text[length - 1] != '}')
        return refuse(why, "its header does not end with '}' and spaces");
    file->header = json_parse(text, length, &header_rules, &fault);
    if (!file->header)
        return refuse(why, "its header %s", fault);
    if (!read_members(file, why))
        return false;
    qsort(file->tensors, file->n, sizeof(*file->tensors), safetensors_compare);
    return check_cover(file, why);
}

struct safetensors *safetensors_parse(const void *bytes, size_t size, uint64_t file_size, char why[SAFETENSORS_WHY])
{
    uint64_t header_bytes = safetensors_header_bytes(bytes, size, file_size, why);

    if (!header_bytes)
        return NULL;
    if (header_bytes > size) {
        refuse(why, "only %zu bytes of its header could be read", size);
        return NULL;
    }
    struct safetensors *file = calloc(1, sizeof(*file));
    if (!file) {
        refuse(why, "there is no memory to read its header");
        return NULL;
    }
    file->header_bytes = header_bytes;
    file->data_bytes = file_size - header_bytes;
    return parse(file, (const char *)bytes + SAFETENSORS_LENGTH_BYTES, why) ? file : safetensors_free(file);
}

struct safetensors *safetensors_free(struct safetensors *file)
{
    if (file) {
        cJSON_Delete(file->header);
        free(file->tensors);
        free(file->names);
        free(file);
    }
    return NULL;
}
