#include "daemon/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void to_stderr(enum log_level level, const char *field, const char *line)
{
    (void)field;
    fprintf(stderr, "%s%s\n", level <= LOG_LEVEL_ERROR ? "error: " : level == LOG_LEVEL_WARNING ? "warning: " : "", line);
}

static enum log_level threshold = LOG_LEVEL_INFO;
static log_sink sink = to_stderr;

void log_set_level(enum log_level level)
{
    threshold = level;
}

void log_set_sink(log_sink new_sink)
{
    sink = new_sink ? new_sink : to_stderr;
}

int log_level_by_name(const char *name)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {{"error", LOG_LEVEL_ERROR}, {"warning", LOG_LEVEL_WARNING}, {"info", LOG_LEVEL_INFO}, {"debug", LOG_LEVEL_DEBUG}};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(names[i].name, name))
            return names[i].level;
    return -1;
}

void log_write(enum log_level level, const char *field, const char *format, ...)
{
    char line[1024];
    va_list arguments;

    if (level > threshold)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    sink(level, field, line);
}
