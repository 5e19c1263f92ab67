/* How a harness reads its input: every take gives something, zeros past the end, so that any bytes are a valid
 * input and cutting some out leaves a similar one. Mostly small numbers and known names: they reach further than
 * noise does. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

/* What must hold whatever the input is: abort() is what libFuzzer keeps an input for. */
#define CHECK(what)                                                                                                \
    do {                                                                                                           \
        if (!(what)) {                                                                                             \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what);                              \
            abort();                                                                                               \
        }                                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static inline void take(struct input *in, void *bytes, size_t size)
{
    size_t n = size < in->left ? size : in->left;

    memset(bytes, 0, size);
    if (n)
        memcpy(bytes, in->at, n);
    in->at += n;
    in->left -= n;
}

static inline uint8_t take_byte(struct input *in)
{
    uint8_t byte;

    take(in, &byte, 1);
    return byte;
}

static inline uint64_t take_number(struct input *in)
{
    static const uint64_t edges[16] = {
        256,           1024,      4096,     65536,      1 << 20,    (2 << 20) - 1,      2 << 20,
        (2 << 20) + 1, INT32_MAX, 1u << 31, UINT32_MAX, 1ull << 32, (1ull << 32) + 256, INT64_MAX,
        1ull << 63,    UINT64_MAX};
    uint64_t number = take_byte(in);

    if (number < 0xe0)
        return number;
    if (number < 0xf0)
        return edges[number - 0xe0];
    size_t size = number < 0xf8 ? 2 : 8;
    number = 0;
    take(in, &number, size);
    return number;
}

/* A text with its end, of those that the harness knows or of the input's own bytes. */
static inline void take_text(struct input *in, char *text, size_t size)
{
    static const char *const known[] = {
        "",        "w",        "v",         "m", "m/x",     "m/y",  "m/g",  "n",   "*",       "w*",      "m/?",
        "model:m", "group:g",  "group:m/g", "g", "~1000/w", "id:0", "~0/w", "a/b", "model:n", "group:h", "[",
        "~/w",     "\xc3\xa9", "host",      "0", "..",      "a//b", "w:",   "key", "h",       "n/x",
    };
    uint8_t choice = take_byte(in);
    size_t n = choice & 0x7f;

    memset(text, 0, size);
    if (choice < 0x80)
        snprintf(text, size, "%s", known[choice % (sizeof(known) / sizeof(known[0]))]);
    else
        take(in, text, n < size ? n : size - 1);
}
