/* hbmctl: the operator's tool. What it can do is in verbs.c. */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/cli.h"
#include "client/ctl/report.h"
#include "client/ctl/verbs.h"

/* A request without one of its members would be another request. */
static void *memory_for_json(size_t size)
{
    void *memory = malloc(size);

    if (!memory)
        out_of_memory();
    return memory;
}

static int run(struct cli *cli)
{
    if (cli->version) {
        puts("hbmctl " HBM_VERSION);
        return EXIT_DONE;
    }
    if (cli->help) {
        /* `hbmctl VERB --help` reads as `hbmctl help VERB`. */
        cli->n_words = cli->verb && cli->verb->run != run_help;
        cli->words[0] = cli->verb ? cli->verb->name : NULL;
        return run_help(cli);
    }
    return cli->verb->run(cli);
}

int main(int argc, char **argv)
{
    static struct cli cli;

    setlocale(LC_CTYPE, "");
    signal(SIGCHLD, SIG_DFL); /* ignored, which exec hands on, it would keep from us how a child ended */
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = memory_for_json, .free_fn = free});
    int status = cli_parse(&cli, argc, argv);
    if (!status)
        status = run(&cli);
    if ((fflush(stdout) || ferror(stdout)) && status == EXIT_DONE) {
        fprintf(stderr, "hbmctl: the output could not be written: %s; free space or write elsewhere\n",
                strerror(errno));
        status = EXIT_REFUSED;
    }
    return status;
}
