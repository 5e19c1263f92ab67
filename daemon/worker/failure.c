#include "daemon/worker/failure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fail(struct failure *failure, int error, const char *format, ...)
{
    va_list arguments;

    if (failure->error)
        return failure->error;
    failure->error = error;
    va_start(arguments, format);
    vsnprintf(failure->detail, sizeof(failure->detail), format, arguments);
    va_end(arguments);
    return error;
}

static int error_of(int number, int otherwise)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT:
        return HBM_E_NO_SPACE;
    case EFBIG:
        return HBM_E_TOO_LARGE;
    case ENOMEM:
        return HBM_E_NO_MEMORY;
    case EIO:
        return HBM_E_IO;
    case EMFILE:
    case ENFILE:
        return HBM_E_LIMIT;
    }
    return otherwise;
}

int fail_errno(struct failure *failure, int otherwise, const char *call, int number)
{
    char text[96];

    return fail(failure, error_of(number, otherwise), "%s: %s%s", call, strerror_r(number, text, sizeof(text)),
                number == EFBIG ? " (ulimit -f, LimitFSIZE)" : "");
}
