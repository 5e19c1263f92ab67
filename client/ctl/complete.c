/* `hbmctl complete`: what may stand in place of the last word of a command line, for the shells. From the verbs'
 * own table, and from what the daemon has; where there is nothing to say the shell offers files. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

#define NAMES_MAX 500 /* more than anybody reads */

static const char *const globals[] = {"--runtime-dir", "--json", "--no-color", "--help", NULL};

/* "[MODEL]" is as "MODEL". */
static bool is_token(const char *token, size_t length, const char *name)
{
    if (length > 2 && *token == '[')
        token++, length -= 2;
    return length == strlen(name) && !memcmp(token, name, length);
}

static void offer(const char *prefix, const char *word)
{
    if (!strncmp(word, prefix, strlen(prefix)) && !strpbrk(word, "\n\r"))
        puts(word);
}

static void offer_verbs(const char *prefix)
{
    for (const struct verb *verb = verb_next(NULL); verb; verb = verb_next(verb))
        offer(prefix, verb->name);
}

/* Of "a|b[:N]|c:N" each way: b and c: */
static void offer_choices(const char *prefix, const char *ways)
{
    while (*ways) {
        size_t length = strcspn(ways, "|"), word = cli_way_word(ways, length);
        char text[64];
        snprintf(text, sizeof(text), "%.*s", (int)(word + (word < length && ways[word] == ':')), ways);
        offer(prefix, text);
        ways += length + (ways[length] == '|');
    }
}

static void offer_options(const char *prefix, const struct verb *verb)
{
    for (unsigned i = 0; verb && verb->options && verb->options[i].name; i++)
        offer(prefix, verb->options[i].name);
    for (unsigned i = 0; globals[i]; i++)
        offer(prefix, globals[i]);
}

/* ---- What the daemon has ---- */

/* A member of each row of a method's answer, with something before and behind it. */
static void offer_rows(const struct cli *cli, const char *prefix, const char *method, cJSON *params,
                       const char *name, const char *format)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *rows = NULL;
    const cJSON *row;
    unsigned n = 0;

    if (rpc_open(cli, &rpc)) {
        cJSON_Delete(params);
        return;
    }
    if (rpc_call(rpc, method, params, &rows))
        return;
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
        char word[512];
        if (cJSON_IsNumber(item))
            snprintf(word, sizeof(word), "%.0f", item->valuedouble);
        else
            snprintf(word, sizeof(word), format, cJSON_GetStringValue(item) ? cJSON_GetStringValue(item) : "");
        if (n++ < NAMES_MAX)
            offer(prefix, word);
    }
}

/* Buffers once a model is named: all of them may be many. */
static void offer_selectors(const struct cli *cli, const char *prefix)
{
    offer_rows(cli, prefix, "hbm.models", NULL, "name", "model:%s");
    if (strchr(prefix, '/')) {
        _cleanup_free_ char *glob = text_new("%s*", prefix);
        cJSON *params = cJSON_CreateObject();
        cJSON_AddStringToObject(params, "glob", glob ? glob : "");
        offer_rows(cli, prefix, "hbm.ls", params, "name", "%s");
    } else {
        offer_rows(cli, prefix, "hbm.models", NULL, "name", "%s/");
    }
}

/* By what the usage calls the word. */
static void offer_token(const struct cli *cli, const char *prefix, const char *token, size_t length)
{
    if (is_token(token, length, "SEL") || is_token(token, length, "NAME"))
        offer_selectors(cli, prefix);
    else if (is_token(token, length, "MODEL"))
        offer_rows(cli, prefix, "hbm.models", NULL, "name", "%s");
    else if (is_token(token, length, "OP"))
        offer_rows(cli, prefix, "hbm.ops", NULL, "op", "%s");
    else if (is_token(token, length, "SESSION"))
        offer_rows(cli, prefix, "hbm.sessions", NULL, "session", "%s");
    else if (is_token(token, length, "DEVICE") || is_token(token, length, "UUID|N"))
        offer_rows(cli, prefix, "hbm.devices", NULL, "uuid", "%s");
    else if (is_token(token, length, "VERB"))
        offer_verbs(prefix);
    else if (is_token(token, length, "0..9|never"))
        offer_choices(prefix, "0|1|2|3|4|5|6|7|8|9|never");
}

static void offer_word(const struct cli *cli, const char *prefix, const struct verb *verb, unsigned place)
{
    const char *token = verb->usage;

    while (place--) {
        token += strcspn(token, " ");
        token += strspn(token, " ");
    }
    offer_token(cli, prefix, token, strcspn(token, " "));
}

static void offer_value(const struct cli *cli, const char *prefix, const struct option_row *option)
{
    if (option->kind == OPTION_CHOICE)
        offer_choices(prefix, option->value);
    else
        offer_token(cli, prefix, option->value, strlen(option->value));
}

static const struct option_row *option_of(const struct verb *verb, const char *name)
{
    for (const struct option_row *row = verb ? verb->options : NULL; row && row->name; row++)
        if (!strcmp(row->name, name))
            return row;
    return NULL;
}

int run_complete(const struct cli *cli)
{
    const char *last = cli->n_words ? cli->words[cli->n_words - 1] : "";
    const struct option_row *open = NULL; /* whose value the next word is */
    const struct verb *verb = NULL;
    struct cli asker = *cli;
    bool directory = false;
    unsigned place = 0;

    for (unsigned i = 0; i + 1 < cli->n_words; i++) {
        const char *word = cli->words[i];
        if (directory || open) {
            if (directory)
                asker.runtime_dir = word;
            directory = false, open = NULL;
        } else if (*word == '-') {
            directory = !strcmp(word, "--runtime-dir");
            open = option_of(verb, word);
            if (open && open->kind == OPTION_FLAG)
                open = NULL;
        } else if (verb) {
            place++;
        } else if (!(verb = verb_by_name(word))) {
            return EXIT_DONE;
        }
    }
    if (open)
        offer_value(&asker, last, open);
    else if (*last == '-')
        offer_options(last, verb);
    else if (!verb)
        offer_verbs(last);
    else if (!directory)
        offer_word(&asker, last, verb, place);
    return EXIT_DONE;
}
