#include "client/ctl/text.h"

#include <stddef.h>
#include <stdio.h>

char *text_new_va(const char *format, va_list arguments)
{
    char *text;

    return vasprintf(&text, format, arguments) < 0 ? NULL : text;
}

char *text_new(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    char *text = text_new_va(format, arguments);
    va_end(arguments);
    return text;
}
