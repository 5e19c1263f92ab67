#include "client/ctl/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

const char *cli_value(const struct cli *cli, const char *option)
{
    const struct option_row *row = cli->verb->options;

    for (unsigned i = 0; row && row[i].name; i++)
        if (!strcmp(row[i].name, option))
            return cli->values[i];
    return NULL;
}

double cli_number(const struct cli *cli, const char *option, double otherwise)
{
    const char *value = cli_value(cli, option);

    return value ? strtod(value, NULL) : otherwise;
}

cJSON *cli_params(const struct cli *cli)
{
    const struct option_row *row = cli->verb->options;
    cJSON *params = cJSON_CreateObject();

    for (unsigned i = 0; i < cli->n_words && i < 2; i++)
        if (cli->verb->params[i])
            cJSON_AddStringToObject(params, cli->verb->params[i], cli->words[i]);
    for (unsigned i = 0; row && row[i].name; i++) {
        if (!row[i].param || !cli->values[i])
            continue;
        if (row[i].kind == OPTION_FLAG)
            cJSON_AddTrueToObject(params, row[i].param);
        else if (row[i].kind == OPTION_NUMBER)
            cJSON_AddNumberToObject(params, row[i].param, strtod(cli->values[i], NULL));
        else
            cJSON_AddStringToObject(params, row[i].param, cli->values[i]);
    }
    return params;
}

__attribute__((format(printf, 2, 3))) static int misuse(const struct cli *cli, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    _cleanup_free_ char *why = text_new_va(format, arguments);
    va_end(arguments);
    if (why)
        report(cli, HBM_E_INVALID, "%s; see `hbmctl help%s%s`", why, cli->verb ? " " : "",
               cli->verb ? cli->verb->name : "");
    return EXIT_USAGE;
}

/* The value behind "--name=value", or the argument after it (which is then used up). */
static const char *take_value(const char *equals, int *i, int argc, char **argv)
{
    if (equals)
        return equals + 1;
    return *i + 1 < argc ? argv[++*i] : NULL;
}

static bool is_option(const char *argument, const char *name, const char *equals)
{
    size_t length = equals ? (size_t)(equals - argument) : strlen(argument);

    return strlen(name) == length && !memcmp(argument, name, length);
}

/* Or two, with a colon between. Of which kind they have to be, and how large, the daemon knows. */
static bool is_number(const char *text)
{
    return *text >= '0' && *text <= '9' && !text[strspn(text, "0123456789.e+-:")];
}

size_t cli_way_word(const char *way, size_t length)
{
    size_t word = 0;

    while (word < length && way[word] != '[' && (way[word] != ':' || way[word + 1] < 'A' || way[word + 1] > 'Z'))
        word++;
    return word;
}

/* One way of a usage's "a|b[:N]|c:N": a word alone, with a number, or with one if wanted. */
static bool is_way(const char *way, size_t length, const char *value)
{
    size_t word = cli_way_word(way, length);
    bool bare = word == length, optional = !bare && way[word] == '[';

    if (strncmp(way, value, word))
        return false;
    value += word;
    return *value ? !bare && *value == ':' && is_number(value + 1) : bare || optional;
}

static bool is_choice(const char *ways, const char *value)
{
    for (;; ways++) {
        size_t length = strcspn(ways, "|");
        if (is_way(ways, length, value))
            return true;
        ways += length;
        if (!*ways)
            return false;
    }
}

static bool is_id(const char *text)
{
    const char *digits = strncmp(text, "0x", 2) ? text : text + 2;
    size_t n = strspn(digits, "0123456789abcdefABCDEF");

    return n && n <= 16 && !digits[n];
}

static int parse_verb_option(struct cli *cli, const char *equals, int *i, int argc, char **argv)
{
    const struct option_row *row = cli->verb ? cli->verb->options : NULL;
    const char *argument = argv[*i];

    for (unsigned n = 0; row && row[n].name; n++) {
        if (!is_option(argument, row[n].name, equals))
            continue;
        if (row[n].kind == OPTION_FLAG) {
            cli->values[n] = "";
            return equals ? misuse(cli, "%s takes no value", row[n].name) : 0;
        }
        cli->values[n] = take_value(equals, i, argc, argv);
        if (!cli->values[n])
            return misuse(cli, "%s wants %s", row[n].name, row[n].value);
        if (row[n].kind == OPTION_CHOICE && !is_choice(row[n].value, cli->values[n]))
            return misuse(cli, "%s wants %s, not \"%s\"", row[n].name, row[n].value, cli->values[n]);
        if (row[n].kind == OPTION_NUMBER) {
            char *end;
            double number = strtod(cli->values[n], &end);
            if (end == cli->values[n] || *end || !isfinite(number) || number < 0)
                return misuse(cli, "%s wants %s, a number of 0 or more, not \"%s\"", row[n].name, row[n].value,
                              cli->values[n]);
        }
        return 0;
    }
    if (!cli->verb)
        return misuse(cli, "the option %s stands before any verb", argument);
    return misuse(cli, "%s has no option %s", cli->verb->name, argument);
}

static int parse_option(struct cli *cli, int *i, int argc, char **argv)
{
    const char *argument = argv[*i];
    const char *equals = strchr(argument, '=');

    if (is_option(argument, "--runtime-dir", equals)) {
        cli->runtime_dir = take_value(equals, i, argc, argv);
        return cli->runtime_dir && *cli->runtime_dir ? 0 : misuse(cli, "--runtime-dir wants a directory");
    }
    if (!strcmp(argument, "--json"))
        cli->json = true;
    else if (!strcmp(argument, "--no-color"))
        cli->no_color = true;
    else if (!strcmp(argument, "--help") || !strcmp(argument, "-h"))
        cli->help = true;
    else if (!strcmp(argument, "--version"))
        cli->version = true;
    else
        return parse_verb_option(cli, equals, i, argc, argv);
    return 0;
}

static int parse_word(struct cli *cli, const char *word)
{
    if (!cli->verb) {
        cli->verb = verb_by_name(word);
        return cli->verb ? 0 : misuse(cli, "there is no verb \"%s\"", word);
    }
    if (cli->n_words == CLI_WORDS_MAX)
        return misuse(cli, "more than %d words on one command line", CLI_WORDS_MAX);
    cli->words[cli->n_words++] = word;
    return 0;
}

static int check_complete(const struct cli *cli)
{
    const struct verb *verb = cli->verb;

    if (!verb)
        return misuse(cli, "no verb given");
    if (cli->n_words < verb->words_min)
        return misuse(cli, "%s wants %s", verb->name, verb->usage);
    if (cli->n_words > verb->words_max)
        return misuse(cli, "%s does not know what to do with \"%s\"", verb->name, cli->words[verb->words_max]);
    const char *word = cli->n_words ? cli->words[0] : "";
    if ((!strcmp(verb->usage, "OP") || !strcmp(verb->usage, "SESSION")) && !is_id(word))
        return misuse(cli, "%s wants %s, a number such as 0x1f, not \"%s\"", verb->name, verb->usage, word);
    if (!strcmp(verb->usage, "SEL") && !strncmp(word, "id:", 3) && !is_id(word + 3))
        return misuse(cli, "\"%s\" is no id: one is hexadecimal, as `hbmctl ls` shows it", word);
    for (unsigned i = 0; verb->options && verb->options[i].name; i++)
        if (verb->options[i].required && !cli->values[i])
            return misuse(cli, "%s wants %s %s", verb->name, verb->options[i].name, verb->options[i].value);
    return 0;
}

int cli_parse(struct cli *cli, int argc, char **argv)
{
    bool options = true;

    *cli = (struct cli){0};
    for (int i = 1; i < argc; i++) /* first, for what is wrong before it */
        cli->json |= !strcmp(argv[i], "--json");
    for (int i = 1; i < argc; i++) {
        int error;
        if (options && !strcmp(argv[i], "--"))
            options = false, error = 0;
        else if (options && argv[i][0] == '-' && argv[i][1])
            error = parse_option(cli, &i, argc, argv);
        else
            error = parse_word(cli, argv[i]);
        if (error)
            return error;
    }
    return cli->help || cli->version ? 0 : check_complete(cli);
}
