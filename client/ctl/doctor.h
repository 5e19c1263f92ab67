/* `hbmctl doctor`: what of this machine, its driver and its daemon stands in the way, and what to do about it. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/ctl/cli.h"

/* NOTE: good to know; WARNING: it works, but slower, less, or not for long; FAILED: something does not work. */
enum verdict { VERDICT_OK, VERDICT_NOTE, VERDICT_WARNING, VERDICT_FAILED };

struct doctor {
    const struct cli *cli;
    const char *root; /* before every path of /proc, /sys and /dev: "" but in tests */
    cJSON *findings;  /* [{check, state, found, fix}] */
    cJSON *status;    /* hbm.status and hbm.config; NULL: no daemon answered */
    cJSON *config;
};

/* found: what is so, and why that matters; fix: what to do, "" where there is nothing. */
__attribute__((format(printf, 5, 6))) void doctor_find(struct doctor *doctor, enum verdict verdict,
                                                       const char *check, const char *fix, const char *found, ...);

/* The start of a file below root, as text; false if it cannot be read. */
bool doctor_read(const struct doctor *doctor, const char *path, char *text, size_t size);
bool doctor_there(const struct doctor *doctor, const char *path);

/* In this order: the later ones know what the daemon said. */
void doctor_daemon(struct doctor *doctor);
void doctor_driver(struct doctor *doctor);
void doctor_limits(struct doctor *doctor);
void doctor_disk(struct doctor *doctor);
void doctor_machine(struct doctor *doctor);

/* `--explain ERROR`: an error of hbmd's or CUDA's, by name or number. An exit status. */
int doctor_explain(const struct cli *cli, const char *error);
