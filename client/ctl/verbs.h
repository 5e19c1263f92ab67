/* The verbs of hbmctl: one row holds everything about one. */
#pragma once

#include "client/ctl/cli.h"

const struct verb *verb_by_name(const char *name);
/* Every verb in turn, the first for NULL, NULL after the last. */
const struct verb *verb_next(const struct verb *verb);

/* Run: what a row's `run` may be. Each returns the exit status. */
int run_call(const struct cli *cli);      /* calls the method, shows the result */
int run_ls(const struct cli *cli);
int run_show(const struct cli *cli);
int run_why_not_free(const struct cli *cli);
int run_operation(const struct cli *cli); /* a method that may take a while, with --async */
/* A sentence if the selector is the bare name of a model, else NULL. The caller owns it. */
char *model_hint(const struct cli *cli);
int run_observe(const struct cli *cli);
int run_advise(const struct cli *cli);      /* advise-codec */
int run_bottlenecks(const struct cli *cli); /* advise */
int run_bench(const struct cli *cli); /* becomes the program that measures */
int run_wait(const struct cli *cli);
int run_cancel(const struct cli *cli);
int run_events(const struct cli *cli);
int run_metrics(const struct cli *cli);
int run_doctor(const struct cli *cli);
int run_support_bundle(const struct cli *cli);
int run_top(const struct cli *cli);
int run_complete(const struct cli *cli);
int run_map(const struct cli *cli);
int run_rpc(const struct cli *cli);
int run_help(const struct cli *cli);
int run_load(const struct cli *cli);
int run_save(const struct cli *cli);
int run_put(const struct cli *cli);
int run_get(const struct cli *cli);
int run_attach(const struct cli *cli);

/* Show: an RPC result for people. */
void show_status(const struct cli *cli, const cJSON *status);
void show_devices(const struct cli *cli, const cJSON *devices);
void show_who(const struct cli *cli, const cJSON *devices);
void show_models(const struct cli *cli, const cJSON *models);
void show_sessions(const struct cli *cli, const cJSON *sessions);
void show_ops(const struct cli *cli, const cJSON *ops);
void show_op(const struct cli *cli, const cJSON *op);
void show_details(const struct cli *cli, const cJSON *rows);
void show_hashes(const struct cli *cli, const cJSON *rows);
void show_receipts(const struct cli *cli, const cJSON *rows);
void show_observed(const struct cli *cli, const cJSON *rows);
void show_advice(const struct cli *cli, const cJSON *rows);
void show_decoded(const struct cli *cli, const cJSON *rows);
void show_moved(const struct cli *cli, const cJSON *rows); /* a line, or the rows with --verbose */
void show_priorities(const struct cli *cli, const cJSON *rows);
void show_freed(const struct cli *cli, const cJSON *rows);
void show_removed(const struct cli *cli, const cJSON *result);
void show_renamed(const struct cli *cli, const cJSON *result);
void show_kicked(const struct cli *cli, const cJSON *result);
void show_accounts(const struct cli *cli, const cJSON *accounts);
void show_config(const struct cli *cli, const cJSON *rows);
