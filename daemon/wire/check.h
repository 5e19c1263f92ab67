/* What messages.def promises of a request's fields, whatever its meaning. */
#pragma once

#include "proto/messages.h"

/* NULL, or what is wrong: a text without its NUL, or an unused field that is not zero. The body has the row's size.
 */
const char *check_fields(uint32_t opcode, const void *body);
