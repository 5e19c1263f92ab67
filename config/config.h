/* The configuration: defaults, then the file, then the command line; each value knows where it came from.
 * A file with errors changes nothing: every error is reported with its line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_TEXT_MAX 192
#define CONFIG_WHY_MAX 256

enum config_device { CONFIG_DEVICE_AUTO, CONFIG_DEVICE_CUDA, CONFIG_DEVICE_HOST };

struct config_size {
    uint64_t amount; /* bytes, or percent */
    bool percent;
};

typedef char config_text[CONFIG_TEXT_MAX];
#define CONFIG_TYPE_TEXT config_text
#define CONFIG_TYPE_DEVICE enum config_device
#define CONFIG_TYPE_LEVEL int /* enum log_level */
#define CONFIG_TYPE_SIZE struct config_size
#define CONFIG_TYPE_BYTES uint64_t
#define CONFIG_TYPE_COUNT uint32_t
#define CONFIG_TYPE_DEVICES uint32_t
#define CONFIG_TYPE_PERCENT uint32_t
#define CONFIG_TYPE_SECONDS uint32_t /* as milliseconds */
#define CONFIG_TYPE_PATIENCE uint32_t
#define CONFIG_TYPE_SWITCH bool
#define CONFIG_TYPE_AUTO bool
#define CONFIG_TYPE_MODE uint32_t

enum config_key {
#define OPTION(key, type, standard, reload, about) CONFIG_##key,
#include "config/options.def"
#undef OPTION
    CONFIG_KEYS
};

/* A [listener NAME] section: one more client socket. */
enum config_listener_key {
#define OPTION(key, type, standard, reload, about) LISTENER_##key,
#include "config/listener.def"
#undef OPTION
    LISTENER_KEYS
};

#define CONFIG_LISTENER_NAME_MAX 32

struct config_listener {
    struct config_listener *next;
    char name[CONFIG_LISTENER_NAME_MAX];
    unsigned line; /* of the section */
#define OPTION(key, type, standard, reload, about) CONFIG_TYPE_##type key;
#include "config/listener.def"
#undef OPTION
    config_text text[LISTENER_KEYS];
    config_text source[LISTENER_KEYS];
};

struct config {
#define OPTION(key, type, standard, reload, about) CONFIG_TYPE_##type key;
#include "config/options.def"
#undef OPTION
    config_text text[CONFIG_KEYS];     /* as written */
    config_text source[CONFIG_KEYS];   /* "default", "/etc/hbmd/hbmd.conf:12", "command line" */
    struct config_listener *listeners; /* in the file's order; the config's own */
};

struct config_option {
    const char *key;
    const char *standard;
    bool reload;
    const char *about;
};
extern const struct config_option config_options[CONFIG_KEYS], config_listener_options[LISTENER_KEYS];

void config_defaults(struct config *config);
/* Frees the sections. */
void config_clear(struct config *config);
/* 0, or -1 with a sentence in why (CONFIG_WHY_MAX bytes): no such key, or not such a value. */
int config_set(struct config *config, const char *key, const char *value, const char *source, char *why);
/* A section with its defaults, added to the end. NULL with a sentence in why: no such name can be, or memory is
 * out. */
struct config_listener *config_listener_new(struct config *config, const char *name, char *why);
/* As config_set, for a key of a section. */
int config_listener_set(struct config_listener *listener, const char *key, const char *value, const char *source,
                        char *why);
/* Sets what the file says. Returns the number of errors, each told to report (line 0: the file itself). The config
 * is to be thrown away unless it is 0. */
unsigned config_read(struct config *config, const char *path,
                     void (*report)(void *context, unsigned line, const char *why), void *context);
/* Bytes meant, where `whole` is what a percentage is of. */
uint64_t config_bytes(struct config_size size, uint64_t whole);
