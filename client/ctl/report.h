/* How a verb says that it failed: one line on stderr, the same as JSON on stdout with --json. Each function returns
 * the exit status that goes with the error. */
#pragma once

#include "client/ctl/cli.h"
#include "proto/errors.h"

struct rpc_error {
    int code;
    char *name; /* of errors.def, or "RPC" for what JSON-RPC itself refuses */
    char *message;
    char *detail;
    char *remedy;
};

/* A whole sentence of ours: what, why, what to do. */
__attribute__((format(printf, 3, 4))) int report(const struct cli *cli, int error, const char *format, ...);
/* A libhbm call failed: its own sentence, after what we were doing. */
__attribute__((format(printf, 3, 4))) int report_libhbm(const struct cli *cli, int error, const char *format, ...);
int report_rpc(const struct cli *cli, const struct rpc_error *error);
/* Rows that carry an error make the verb fail; the first one is told, the others counted. EXIT_DONE if there is
 * none. */
int report_rows(const cJSON *rows);
/* One line on stdout. */
void report_json(const cJSON *json);
/* A row of a list, after so many; the caller ends the list. */
void report_json_row(const cJSON *row, size_t before);

/* For what prints: nothing can be shown, and nothing is left half made. */
__attribute__((noreturn)) void out_of_memory(void);
/* text_new, or that. */
__attribute__((format(printf, 1, 2))) char *must_text(const char *format, ...);
/* Overwrites control characters and what is not UTF-8, so that a name cannot speak to the terminal. */
void report_clean(char *text);
