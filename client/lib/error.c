#include "client/lib/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct error_kept last;

const char *hbm_strerror(int error)
{
    switch (error) {
    case HBM_OK:
        return "success";
#define ERROR(name, number, what, remedy)                                                                          \
    case HBM_E_##name:                                                                                             \
        return what "; " remedy;
#include "proto/errors.def"
#undef ERROR
    }
    return hbm_error_what(error);
}

const char *hbm_last_error_detail(void)
{
    return last.text;
}

int set_error(int error, const char *format, ...)
{
    const char *remedy = hbm_error_remedy(error);
    char detail[640];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(detail, sizeof(detail), format, arguments);
    va_end(arguments);
    snprintf(last.text, sizeof(last.text), "%s%s%s%s%s", hbm_error_what(error), *detail ? ": " : "", detail,
             *remedy ? "; " : "", remedy);
    return error;
}

int set_system_error(const char *call, int number)
{
    char text[128];

    return set_error(HBM_E_SYSTEM, "%s: %s", call, strerror_r(number, text, sizeof(text)));
}

int check_text(const char *what, const char *text, size_t room)
{
    if (!text || !*text)
        return set_error(HBM_E_INVALID, "%s is empty", what);
    if (strnlen(text, room) == room)
        return set_error(HBM_E_INVALID, "%s is longer than %zu bytes: %.48s...", what, room - 1, text);
    return 0;
}

void error_keep(struct error_kept *kept)
{
    *kept = last;
}

void error_restore(const struct error_kept *kept)
{
    last = *kept;
}
