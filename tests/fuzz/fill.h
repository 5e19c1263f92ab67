/* Fills the structs of messages.def and jobs.def field by field, by type and name, as the lists are expanded.
 * One take a statement: the order in which initializers are evaluated is anyone's. */
#pragma once

#include "proto/jobs.h"
#include "proto/messages.h"
#include "tests/fuzz/input.h"

/* Ids that the other side has given: no input could guess them. */
struct known_ids {
    uint64_t ids[16];
    unsigned next;
};

static inline void know(struct known_ids *known, uint64_t id)
{
    if (id)
        known->ids[known->next++ % 16] = id;
}

static inline uint64_t take_id(struct input *in, const struct known_ids *known)
{
    uint8_t choice = take_byte(in);

    /* The newest first: 0 is the last one given. */
    return choice < 0xe0 ? known->ids[(known->next - 1 - choice) % 16] : take_number(in);
}

static inline void take_encoding(struct input *in, struct hbm_encoding *encoding)
{
    encoding->codec = take_byte(in);
    encoding->granularity = take_byte(in);
    encoding->axis = take_byte(in);
    encoding->stored = take_byte(in);
    encoding->group = (uint32_t)take_number(in);
}

static inline void take_dims(struct input *in, uint64_t dims[HBM_RANK_MAX], uint32_t *rank)
{
    *rank = take_byte(in);
    for (unsigned i = 0; i < HBM_RANK_MAX && i < *rank; i++)
        dims[i] = take_number(in);
}

static inline void take_spec(struct input *in, struct wire_spec *spec)
{
    *spec = (struct wire_spec){.dtype = take_byte(in)};
    spec->handle = take_byte(in);
    spec->flags = (uint32_t)take_number(in);
    spec->mode = 0600 | (take_byte(in) & 0366);
    spec->device = (uint32_t)take_number(in);
    take_dims(in, spec->dims, &spec->rank);
    /* 0 stands for what the shape gives, and a shape is optional. */
    spec->size = take_byte(in) < 0xc0 && spec->rank ? 0 : take_number(in);
    take_text(in, spec->name, sizeof(spec->name));
    take_text(in, spec->group, sizeof(spec->group));
}

static inline void take_code(struct input *in, struct job_code *code)
{
    *code = (struct job_code){.raw_offset = take_number(in)};
    code->data_offset = take_number(in);
    code->scale_offset = take_number(in);
    take_dims(in, code->dims, &code->rank);
    code->dtype = take_byte(in);
    take_encoding(in, &code->encoding);
}

static inline void take_field(struct input *in, const struct known_ids *known, const char *type, const char *name,
                              void *field, size_t size)
{
    if (!strcmp(name, "unused")) {
        memset(field, 0, size);
    } else if (!strcmp(name, "lease") || !strcmp(name, "id") || !strcmp(name, "op")) {
        *(uint64_t *)field = take_id(in, known);
    } else if (!strcmp(type, "uint64_t")) {
        *(uint64_t *)field = take_number(in);
    } else if (!strcmp(type, "uint32_t") || !strcmp(type, "int32_t")) {
        *(uint32_t *)field = (uint32_t)take_number(in);
    } else if (!strcmp(type, "double")) {
        *(double *)field = (double)take_byte(in);
        if (*(double *)field == 0xff)
            take(in, field, size);
    } else if (!strcmp(type, "struct wire_spec")) {
        take_spec(in, field);
    } else if (!strcmp(type, "struct hbm_encoding")) {
        take_encoding(in, field);
    } else if (!strcmp(type, "struct job_code")) {
        take_code(in, field);
    } else {
        take(in, field, size);
    }
}

static inline void take_array(struct input *in, const char *type, void *array, size_t size)
{
    if (!strcmp(type, "char"))
        take_text(in, array, size);
    else if (!strcmp(type, "uint32_t")) /* slots, pids: few and small */
        for (size_t i = 0; i < 4; i++)
            ((uint32_t *)array)[i] = (uint32_t)take_number(in);
    else
        take(in, array, size);
}

#define FILL_FIELD(type, name) take_field(in, known, #type, #name, &request->name, sizeof(request->name));
#define FILL_ARRAY(type, name, count) take_array(in, #type, request->name, sizeof(request->name));
