/* From the command line and the file to a configuration. */
#pragma once

#include <stdbool.h>

#include "config/config.h"

#define CONFIG_FILE "/etc/hbmd/hbmd.conf"

struct setup {
    const char *file;                  /* --config; NULL: CONFIG_FILE, if it is there */
    const char *override[CONFIG_KEYS]; /* from the command line; NULL: none */
    bool supervised, check;            /* the parent is a supervisor; --check-config */
};

/* 0: go on; 1: done (help, version); 2: wrong usage, which has been told. */
int setup_parse(struct setup *setup, int argc, char **argv);
/* Defaults, file, command line. False: each error has been told, to the log or (check) to stdout. */
bool setup_load(const struct setup *setup, struct config *config);
