#include "config/config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

enum type {
    TYPE_TEXT,
    TYPE_DEVICE,
    TYPE_LEVEL,
    TYPE_SIZE,
    TYPE_BYTES,
    TYPE_COUNT,
    TYPE_PERCENT,
    TYPE_SECONDS,
    TYPE_SWITCH
};

#define RELOAD true
#define RESTART false

const struct config_option config_options[CONFIG_KEYS] = {
#define OPTION(key, type, standard, reload, about) {#key, standard, reload, about},
#include "config/options.def"
#undef OPTION
};

static const struct {
    enum type type;
    size_t offset;
} fields[CONFIG_KEYS] = {
#define OPTION(key, type, standard, reload, about) {TYPE_##type, offsetof(struct config, key)},
#include "config/options.def"
#undef OPTION
};

/* A whole decimal number at the start of text; where it ends, or NULL. */
static const char *number(const char *text, uint64_t *value)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return NULL;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno ? NULL : end;
}

static const char *set_size(struct config_size *field, const char *value)
{
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    static const char *expected = "a size is a whole number with KiB, MiB, GiB, TiB or %, as in 20GiB or 90%";
    uint64_t amount;
    const char *unit = number(value, &amount);

    if (!unit)
        return expected;
    while (*unit == ' ')
        unit++;
    if (!strcmp(unit, "%")) {
        if (amount > 100)
            return "a percentage is at most 100%";
        *field = (struct config_size){amount, true};
        return NULL;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].unit))
            continue;
        if (amount > UINT64_MAX >> 1 >> units[i].shift)
            return "that is more than there can be";
        *field = (struct config_size){amount << units[i].shift, false};
        return NULL;
    }
    return expected;
}

static const char *set_bytes(uint64_t *field, const char *value)
{
    struct config_size size = {0};
    const char *wrong = set_size(&size, value);

    if (!wrong && size.percent)
        return "a size here is no percentage: use KiB, MiB, GiB or TiB";
    *field = size.amount;
    return wrong;
}

static const char *set_whole(uint32_t *field, const char *value, uint64_t most, const char *expected)
{
    uint64_t amount;
    const char *end = number(value, &amount);

    if (!end || *end || amount > most)
        return expected;
    *field = (uint32_t)amount;
    return NULL;
}

static const char *set_seconds(uint32_t *field, const char *value)
{
    char *end;
    double seconds = strtod(value, &end);

    if (end == value || *end || !isfinite(seconds) || seconds < 0 || seconds > 86400)
        return "a time is a number of seconds from 0 to 86400, as in 5 or 0.5";
    *field = (uint32_t)(seconds * 1000 + 0.5);
    return NULL;
}

static const char *set_device(enum config_device *field, const char *value)
{
    static const char *const names[] = {"auto", "cuda", "host"};

    for (unsigned i = 0; i < 3; i++) {
        if (!strcmp(names[i], value)) {
            *field = (enum config_device)i;
            return NULL;
        }
    }
    return "the device is auto, cuda or host";
}

static const char *set_level(int *field, const char *value)
{
    int level = log_level_by_name(value);

    if (level < 0)
        return "the level is error, warning, info or debug";
    *field = level;
    return NULL;
}

static const char *set_switch(bool *field, const char *value)
{
    *field = !strcmp(value, "yes");
    return *field || !strcmp(value, "no") ? NULL : "a switch is yes or no";
}

static const char *set_field(enum type type, void *field, const char *value)
{
    switch (type) {
    case TYPE_TEXT:
        strcpy(field, value); /* bounded by config_set */
        return NULL;
    case TYPE_DEVICE:
        return set_device(field, value);
    case TYPE_LEVEL:
        return set_level(field, value);
    case TYPE_SIZE:
        return set_size(field, value);
    case TYPE_BYTES:
        return set_bytes(field, value);
    case TYPE_COUNT:
        return set_whole(field, value, UINT32_MAX, "a count is a whole number");
    case TYPE_PERCENT:
        return set_whole(field, value, 100, "a percentage is a whole number from 0 to 100");
    case TYPE_SECONDS:
        return set_seconds(field, value);
    case TYPE_SWITCH:
        return set_switch(field, value);
    }
    return "a key of unknown type";
}

int config_set(struct config *config, const char *key, const char *value, const char *source, char *why)
{
    unsigned i = 0;

    while (i < CONFIG_KEYS && strcmp(config_options[i].key, key))
        i++;
    if (i == CONFIG_KEYS) {
        snprintf(why, CONFIG_WHY_MAX, "there is no key '%.64s'; see hbmd.conf(5) for those there are", key);
        return -1;
    }
    const char *wrong = strlen(value) >= CONFIG_TEXT_MAX
                            ? "the value is too long"
                            : set_field(fields[i].type, (char *)config + fields[i].offset, value);
    if (wrong) {
        snprintf(why, CONFIG_WHY_MAX, "%s = %.64s: %s", key, value, wrong);
        return -1;
    }
    snprintf(config->text[i], sizeof(config->text[i]), "%s", value);
    snprintf(config->source[i], sizeof(config->source[i]), "%s", source);
    return 0;
}

void config_defaults(struct config *config)
{
    char why[CONFIG_WHY_MAX];

    memset(config, 0, sizeof(*config));
    for (unsigned i = 0; i < CONFIG_KEYS; i++)
        if (config_set(config, config_options[i].key, config_options[i].standard, "default", why) < 0)
            abort(); /* options.def is wrong; test_config says where */
}

uint64_t config_bytes(struct config_size size, uint64_t whole)
{
    if (!size.percent)
        return size.amount;
    return whole / 100 * size.amount + whole % 100 * size.amount / 100;
}
