/* Logging: one line a message, to stderr until main sets another sink (the journal). Not for hot paths. */
#pragma once

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* `field` is "KEY=value" for a structured journal entry, or NULL. */
typedef void (*log_sink)(enum log_level level, const char *field, const char *line);

void log_set_level(enum log_level level);
void log_set_sink(log_sink sink);
int log_level_by_name(const char *name); /* "error" "warning" "info" "debug"; -1 if none */

__attribute__((format(printf, 3, 4))) void log_write(enum log_level level, const char *field, const char *format, ...);

#define log_error(...) log_write(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, NULL, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)
