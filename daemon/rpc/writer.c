#include "daemon/rpc/writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/utf8.h"

void writer_clear(struct writer *writer)
{
    free(writer->bytes);
    *writer = (struct writer){0};
}

static bool reserve(struct writer *writer, size_t more)
{
    size_t room = writer->room ? writer->room : 512;

    if (writer->state)
        return false;
    if (more <= writer->room - writer->size)
        return true;
    if (more > WRITER_BYTES_MAX - writer->size) {
        writer->state = WRITER_TOO_LARGE;
        return false;
    }
    while (room - writer->size < more)
        room *= 2;
    char *bytes = realloc(writer->bytes, room);
    if (!bytes) {
        writer->state = WRITER_NO_MEMORY;
        return false;
    }
    writer->bytes = bytes;
    writer->room = room;
    return true;
}

void write_bytes(struct writer *writer, const char *bytes, size_t size)
{
    if (!size || !reserve(writer, size))
        return;
    memcpy(writer->bytes + writer->size, bytes, size);
    writer->size += size;
}

static void put(struct writer *writer, const char *text)
{
    write_bytes(writer, text, strlen(text));
}

static void put_char(struct writer *writer, char c)
{
    write_bytes(writer, &c, 1);
}

/* A character that cannot stand in a string as it is. */
static void put_escaped(struct writer *writer, unsigned char c)
{
    char escape[8];

    if (c >= 0x80)
        snprintf(escape, sizeof(escape), "\xef\xbf\xbd"); /* a detail cut to its field may end within a character */
    else if (c == '"' || c == '\\')
        snprintf(escape, sizeof(escape), "\\%c", c);
    else
        snprintf(escape, sizeof(escape), "\\u%04x", c);
    put(writer, escape);
}

static void put_quoted(struct writer *writer, const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text), *plain = at;

    put_char(writer, '"');
    while (at < end) {
        size_t length = utf8_length(at, (size_t)(end - at));
        if (length && *at >= 0x20 && *at != 0x7f && *at != '"' && *at != '\\') {
            at += length;
            continue;
        }
        write_bytes(writer, (const char *)plain, (size_t)(at - plain));
        put_escaped(writer, *at);
        plain = ++at;
    }
    write_bytes(writer, (const char *)plain, (size_t)(at - plain));
    put_char(writer, '"');
}

/* The comma before a value that is not the first, and its key. */
static void lead(struct writer *writer, const char *key)
{
    int last = writer->size ? writer->bytes[writer->size - 1] : '[';

    if (last != '[' && last != '{' && last != ':')
        put_char(writer, ',');
    if (!key)
        return;
    put_quoted(writer, key);
    put_char(writer, ':');
}

void write_open(struct writer *writer, const char *key, char bracket)
{
    lead(writer, key);
    put_char(writer, bracket);
}

void write_close(struct writer *writer, char bracket)
{
    put_char(writer, bracket);
}

void write_json(struct writer *writer, const char *key, const char *json, size_t size)
{
    lead(writer, key);
    write_bytes(writer, json, size);
}

static void write_plain(struct writer *writer, const char *key, const char *json)
{
    write_json(writer, key, json, strlen(json));
}

void write_null(struct writer *writer, const char *key)
{
    write_plain(writer, key, "null");
}

void write_bool(struct writer *writer, const char *key, bool value)
{
    write_plain(writer, key, value ? "true" : "false");
}

void write_string(struct writer *writer, const char *key, const char *text)
{
    if (!text) {
        write_null(writer, key);
        return;
    }
    lead(writer, key);
    put_quoted(writer, text);
}

void write_text(struct writer *writer, const char *key, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    write_string(writer, key, text);
}

void write_number(struct writer *writer, const char *key, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    write_plain(writer, key, text);
}

void write_integer(struct writer *writer, const char *key, int64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRId64, value);
    write_plain(writer, key, text);
}

void write_real(struct writer *writer, const char *key, double value)
{
    char text[40];

    if (!isfinite(value)) {
        write_null(writer, key);
        return;
    }
    snprintf(text, sizeof(text), "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof(text), "%.17g", value);
    write_plain(writer, key, text);
}

void write_id(struct writer *writer, const char *key, uint64_t id)
{
    if (id)
        write_text(writer, key, "0x%016" PRIx64, id);
    else
        write_null(writer, key);
}
