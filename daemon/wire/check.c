#include "daemon/wire/check.h"

#include <string.h>

static bool is_text(const void *field, size_t size)
{
    return memchr(field, '\0', size) != NULL;
}

static bool is_zero(const void *field, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)field)[i])
            return false;
    return true;
}

/* Fields are told apart by the words that messages.def writes: the preprocessor knows no more. */
static const char *wrong_field(const char *type, const char *name, const void *field, size_t size)
{
    if (!strcmp(name, "unused") && !is_zero(field, size))
        return "an unused field that is not zero";
    if (!strcmp(type, "struct wire_spec")) {
        const struct wire_spec *spec = field;
        if (!is_text(spec->name, sizeof(spec->name)) || !is_text(spec->group, sizeof(spec->group)))
            return "a text that does not end";
    }
    return NULL;
}

static const char *wrong_array(const char *type, const void *field, size_t size)
{
    return !strcmp(type, "char") && !is_text(field, size) ? "a text that does not end" : NULL;
}

#define CHECK_FIELD(type, name)                                                                                    \
    if (!why)                                                                                                      \
        why = wrong_field(#type, #name, &request->name, sizeof(request->name));
#define CHECK_ARRAY(type, name, count)                                                                             \
    if (!why)                                                                                                      \
        why = wrong_array(#type, request->name, sizeof(request->name));

#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                        \
    static const char *check_##name(const struct wire_##name##_request *request)                                   \
    {                                                                                                              \
        const char *why = NULL;                                                                                    \
        NAME##_REQUEST(CHECK_FIELD, CHECK_ARRAY) return why;                                                       \
    }
#include "proto/messages.def"
#undef MESSAGE

const char *check_fields(uint32_t opcode, const void *body)
{
    switch (opcode) {
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                        \
    case WIRE_##NAME:                                                                                              \
        return check_##name(body);
#include "proto/messages.def"
#undef MESSAGE
    }
    return "an unknown opcode";
}
