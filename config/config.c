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
    TYPE_MODE,
    TYPE_DEVICE,
    TYPE_LEVEL,
    TYPE_SIZE,
    TYPE_BYTES,
    TYPE_COUNT,
    TYPE_DEVICES,
    TYPE_PERCENT,
    TYPE_SECONDS,
    TYPE_PATIENCE,
    TYPE_SWITCH,
    TYPE_AUTO
};

#define RELOAD true
#define RESTART false

const struct config_option config_options[CONFIG_KEYS] = {
#define OPTION(key, type, standard, reload, about) {#key, standard, reload, about},
#include "config/options.def"
#undef OPTION
};

const struct config_option config_listener_options[LISTENER_KEYS] = {
#define OPTION(key, type, standard, reload, about) {#key, standard, reload, about},
#include "config/listener.def"
#undef OPTION
};

struct field {
    enum type type;
    size_t offset;
};

static const struct field fields[CONFIG_KEYS] = {
#define OPTION(key, type, standard, reload, about) {TYPE_##type, offsetof(struct config, key)},
#include "config/options.def"
#undef OPTION
};

static const struct field listener_fields[LISTENER_KEYS] = {
#define OPTION(key, type, standard, reload, about) {TYPE_##type, offsetof(struct config_listener, key)},
#include "config/listener.def"
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

static const char *set_devices(uint32_t *field, const char *value)
{
    static const char *expected = "host memory is served as 1 to 64 devices";
    const char *wrong = set_whole(field, value, 64, expected);

    return wrong || *field ? wrong : expected;
}

/* Less, and no worker would come to its first answer. */
static const char *set_patience(uint32_t *field, const char *value)
{
    const char *wrong = set_seconds(field, value);

    return wrong || *field >= 1000 ? wrong : "a worker has 1 second at least";
}

static const char *set_mode(uint32_t *field, const char *value)
{
    char *end;
    unsigned long mode = strtoul(value, &end, 8);

    if (!isdigit((unsigned char)*value) || *end || (mode & ~0666ul) || !(mode & 0600))
        return "a mode is octal, without x bits, as in 0660";
    *field = (uint32_t)mode;
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

static const char *set_auto(bool *field, const char *value)
{
    *field = !strcmp(value, "auto");
    return *field || !strcmp(value, "off") ? NULL : "it is auto or off";
}

static const char *set_field(enum type type, void *field, const char *value)
{
    switch (type) {
    case TYPE_TEXT:
        strcpy(field, value); /* bounded by config_set */
        return NULL;
    case TYPE_MODE:
        return set_mode(field, value);
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
    case TYPE_DEVICES:
        return set_devices(field, value);
    case TYPE_PERCENT:
        return set_whole(field, value, 100, "a percentage is a whole number from 0 to 100");
    case TYPE_SECONDS:
        return set_seconds(field, value);
    case TYPE_PATIENCE:
        return set_patience(field, value);
    case TYPE_SWITCH:
        return set_switch(field, value);
    case TYPE_AUTO:
        return set_auto(field, value);
    }
    return "a key of unknown type";
}

/* The keys of the file, or of a section. */
struct place {
    const struct config_option *options;
    const struct field *fields;
    unsigned n;
    void *base;
    config_text *text, *source;
    const char *kind;
};

static int set(const struct place *place, const char *key, const char *value, const char *source, char *why)
{
    unsigned i = 0;

    while (i < place->n && strcmp(place->options[i].key, key))
        i++;
    if (i == place->n) {
        snprintf(why, CONFIG_WHY_MAX, "there is no key '%.64s'%s; see hbmd.conf(5) for those there are", key,
                 place->kind);
        return -1;
    }
    const char *wrong =
        strlen(value) >= CONFIG_TEXT_MAX
            ? "the value is too long"
            : set_field(place->fields[i].type, (char *)place->base + place->fields[i].offset, value);
    if (wrong) {
        snprintf(why, CONFIG_WHY_MAX, "%s = %.64s: %s", key, value, wrong);
        return -1;
    }
    snprintf(place->text[i], sizeof(place->text[i]), "%s", value);
    snprintf(place->source[i], sizeof(place->source[i]), "%s", source);
    return 0;
}

int config_set(struct config *config, const char *key, const char *value, const char *source, char *why)
{
    const struct place place = {config_options, fields, CONFIG_KEYS, config, config->text, config->source, ""};

    return set(&place, key, value, source, why);
}

int config_listener_set(struct config_listener *listener, const char *key, const char *value, const char *source,
                        char *why)
{
    const struct place place = {config_listener_options, listener_fields,  LISTENER_KEYS,     listener,
                                listener->text,          listener->source, " in a [listener]"};

    return set(&place, key, value, source, why);
}

void config_defaults(struct config *config)
{
    char why[CONFIG_WHY_MAX];

    memset(config, 0, sizeof(*config));
    for (unsigned i = 0; i < CONFIG_KEYS; i++)
        if (config_set(config, config_options[i].key, config_options[i].standard, "default", why) < 0)
            abort(); /* options.def is wrong; test_config says where */
}

void config_clear(struct config *config)
{
    while (config->listeners) {
        struct config_listener *first = config->listeners;
        config->listeners = first->next;
        free(first);
    }
}

struct config_listener *config_listener_new(struct config *config, const char *name, char *why)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    struct config_listener **end = &config->listeners;

    /* One that begins with a digit could be a uid, or the number that a removed one's memory is shown under. */
    if (!isalpha((unsigned char)*name) || name[strspn(name, allowed)] || strlen(name) >= CONFIG_LISTENER_NAME_MAX ||
        !strcmp(name, "main")) {
        snprintf(why, CONFIG_WHY_MAX,
                 "'%.40s': a listener's name is a letter, then letters, digits, '.', '-', '_', %d in all, and not "
                 "'main'",
                 name, CONFIG_LISTENER_NAME_MAX - 1);
        return NULL;
    }
    struct config_listener *listener = calloc(1, sizeof(*listener));
    if (!listener) {
        snprintf(why, CONFIG_WHY_MAX, "there is no memory for the section");
        return NULL;
    }
    snprintf(listener->name, sizeof(listener->name), "%s", name);
    for (unsigned i = 0; i < LISTENER_KEYS; i++)
        if (config_listener_set(listener, config_listener_options[i].key, config_listener_options[i].standard,
                                "default", why) < 0)
            abort(); /* listener.def is wrong */
    while (*end)
        end = &(*end)->next;
    *end = listener;
    return listener;
}

uint64_t config_bytes(struct config_size size, uint64_t whole)
{
    if (!size.percent)
        return size.amount;
    return whole / 100 * size.amount + whole % 100 * size.amount / 100;
}
