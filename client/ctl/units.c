#include "client/ctl/units.h"

#include <math.h>
#include <stdio.h>

const char *units_bytes(double bytes, char text[UNITS_TEXT])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;

    /* 1023.95 would round to "1024.0" of the unit below. */
    while (bytes >= 1023.95 && unit + 1 < sizeof(names) / sizeof(names[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, UNITS_TEXT, unit ? "%.1f %s" : "%.0f %s", bytes, names[unit]);
    return text;
}

const char *units_rate(double gb_per_s, char text[UNITS_TEXT])
{
    if (gb_per_s >= 99.95)
        snprintf(text, UNITS_TEXT, "%.0f GB/s", gb_per_s);
    else if (gb_per_s >= 0.9995)
        snprintf(text, UNITS_TEXT, "%.3g GB/s", gb_per_s);
    else
        snprintf(text, UNITS_TEXT, "%.3g MB/s", gb_per_s * 1000);
    return text;
}

const char *units_seconds(double seconds, char text[UNITS_TEXT])
{
    if (seconds < 0.9995)
        snprintf(text, UNITS_TEXT, "%.3g ms", seconds * 1000);
    else if (seconds < 59.95)
        snprintf(text, UNITS_TEXT, "%.1f s", seconds);
    else if (seconds < 3600)
        snprintf(text, UNITS_TEXT, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
    else if (seconds < 86400)
        snprintf(text, UNITS_TEXT, "%d h %d min", (int)seconds / 3600, (int)seconds / 60 % 60);
    else
        snprintf(text, UNITS_TEXT, "%.0f d %d h", floor(seconds / 86400), (int)fmod(seconds / 3600, 24));
    return text;
}

const char *units_number(double number, char text[UNITS_TEXT])
{
    if (number == floor(number) && fabs(number) <= 9007199254740992.0)
        snprintf(text, UNITS_TEXT, "%.0f", number);
    else
        snprintf(text, UNITS_TEXT, "%.4g", number);
    return text;
}
