/* Numbers as people read them. Every function fills `text` and returns it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define UNITS_TEXT 32

const char *units_bytes(double bytes, char text[UNITS_TEXT]);     /* "512 B", "1.5 GiB" */
const char *units_rate(double gb_per_s, char text[UNITS_TEXT]);   /* "3.92 GB/s" */
const char *units_seconds(double seconds, char text[UNITS_TEXT]); /* "0.8 ms", "3.2 s", "2 min 5 s", "3 h 4 min" */
const char *units_number(double number, char text[UNITS_TEXT]);   /* integers in full, others with 4 digits */
