/* `hbmctl help`, `hbmctl help VERB`: from the rows of verbs.c. */
#include <stdio.h>

#include "client/ctl/verbs.h"

static void print_usage(const struct verb *verb)
{
    const struct option_row *row = verb->options;

    printf("usage: hbmctl %s%s%s", verb->name, *verb->usage ? " " : "", verb->usage);
    for (unsigned i = 0; row && row[i].name; i++) {
        const char *open = row[i].required ? "" : "[", *close = row[i].required ? "" : "]";
        if (row[i].value)
            printf(" %s%s %s%s", open, row[i].name, row[i].value, close);
        else
            printf(" %s%s%s", open, row[i].name, close);
    }
    printf("\n\n%s\n", verb->help);
}

static void print_selectors(void)
{
    puts("\nSEL is an exact name (tried first), a glob over names (* matches / too), id:0x..., group:NAME or "
         "model:NAME.");
}

static void print_globals(void)
{
    puts("\nAnywhere on the line:\n"
         "  --runtime-dir DIR  the daemon's directory; else HBM_RUNTIME_DIR, /run/hbmd, $XDG_RUNTIME_DIR/hbmd\n"
         "  --json             the result as JSON, errors too\n"
         "  --no-color         plain text on a terminal\n"
         "Ends with 0 done, 1 refused or failed, 2 usage, 3 no daemon answers.");
}

int run_help(const struct cli *cli)
{
    const struct verb *verb = cli->n_words ? verb_by_name(cli->words[0]) : NULL;

    if (cli->n_words && !verb) {
        fprintf(stderr, "hbmctl: there is no verb \"%s\"; see `hbmctl help`\n", cli->words[0]);
        return EXIT_USAGE;
    }
    if (verb) {
        print_usage(verb);
        print_selectors();
        print_globals();
        return EXIT_DONE;
    }
    puts("usage: hbmctl VERB ...\n");
    while ((verb = verb_next(verb)))
        printf("  %-11s %s\n", verb->name, verb->help);
    print_selectors();
    print_globals();
    return EXIT_DONE;
}
