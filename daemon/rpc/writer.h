/* JSON text out, appended as it is known: no tree, integers exact, strings always valid UTF-8. A failure sticks, so
 * that only the end has to be looked at. `key` is NULL inside an array and for a whole text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WRITER_BYTES_MAX ((size_t)64 << 20)

enum writer_state { WRITER_FINE, WRITER_NO_MEMORY, WRITER_TOO_LARGE };

/* All zero is an empty one. */
struct writer {
    char *bytes;
    size_t size, room;
    enum writer_state state;
};

void writer_clear(struct writer *writer);
/* Nothing is added to it any more. Who writes one row for each of a crowd stops here: leases times buffers are more
 * than the loop could count. */
static inline bool writer_has_failed(const struct writer *writer)
{
    return writer->state != WRITER_FINE;
}
/* '{' or '[' and '}' or ']'. */
void write_open(struct writer *writer, const char *key, char bracket);
void write_close(struct writer *writer, char bracket);
void write_string(struct writer *writer, const char *key, const char *text); /* NULL writes null */
void write_number(struct writer *writer, const char *key, uint64_t value);
void write_integer(struct writer *writer, const char *key, int64_t value);
void write_real(struct writer *writer, const char *key, double value); /* null unless it is finite */
void write_bool(struct writer *writer, const char *key, bool value);
void write_null(struct writer *writer, const char *key);
void write_id(struct writer *writer, const char *key, uint64_t id); /* "0x...", null for 0 */
__attribute__((format(printf, 3, 4))) void write_text(struct writer *writer, const char *key, const char *format,
                                                      ...);
/* A value that is JSON already. */
void write_json(struct writer *writer, const char *key, const char *json, size_t size);
/* Bytes between values, as they are. */
void write_bytes(struct writer *writer, const char *bytes, size_t size);
