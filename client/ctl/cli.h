/* One command line, taken apart: what every verb's function gets. */
#pragma once

#include <stdbool.h>

#include <cjson/cJSON.h>

#define CLI_WORDS_MAX 4096 /* shards on one command line */
#define CLI_OPTIONS_MAX 12

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_NO_DAEMON = 3 };

struct cli;

enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_CHOICE /* one of the words in value */, OPTION_NUMBER };

struct option_row {
    const char *name;  /* "--to"; NULL ends the list */
    const char *value; /* as the usage shows it; NULL for a flag */
    const char *param; /* of the RPC method; NULL for what only hbmctl heeds */
    enum option_kind kind;
    bool required;
};

/* Everything about a verb. */
struct verb {
    const char *name;
    const char *usage; /* its words */
    unsigned words_min, words_max;
    const struct option_row *options;
    const char *method;    /* RPC, or NULL */
    const char *params[2]; /* what the words are called there */
    int (*run)(const struct cli *cli);
    void (*show)(const struct cli *cli, const cJSON *result); /* an RPC result, for people */
    const char *help;
};

struct cli {
    const char *runtime_dir; /* NULL: the places of old */
    bool json;
    bool no_color;
    bool help;
    bool version;
    const struct verb *verb;
    const char *words[CLI_WORDS_MAX];
    unsigned n_words;
    const char *values[CLI_OPTIONS_MAX]; /* by row of verb->options; NULL where not given */
};

/* The value of an option of this verb ("" for a flag); NULL where not given. */
const char *cli_value(const struct cli *cli, const char *option);
/* The value of a number option, or `otherwise`. */
double cli_number(const struct cli *cli, const char *option, double otherwise);
/* Words and options as the params of the verb's method. The caller owns them. */
cJSON *cli_params(const struct cli *cli);
/* Of one way of a choice's "a|b[:N]|c:N", which is so long: how much of it is to be written as it stands. */
size_t cli_way_word(const char *way, size_t length);
/* Fills *cli; 0, or EXIT_USAGE after it was reported what is wrong. */
int cli_parse(struct cli *cli, int argc, char **argv);
