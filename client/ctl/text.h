/* Formatted text from malloc; NULL without memory. (asprintf leaves the pointer undefined then.) */
#pragma once

#include <stdarg.h>

__attribute__((format(printf, 1, 2))) char *text_new(const char *format, ...);
__attribute__((format(printf, 1, 0))) char *text_new_va(const char *format, va_list arguments);
