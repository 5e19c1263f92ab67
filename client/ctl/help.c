/* `hbmctl help`, `hbmctl help VERB`: from the rows of verbs.c. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/report.h"
#include "client/ctl/verbs.h"

/* What an option does, of one verb (or of every verb, NULL) by its name. */
static const struct {
    const char *verb, *option, *help;
} option_helps[] = {
    {NULL, "--group", "only buffers of this group"},
    {NULL, "--rw", "map for writing too (default: read-only)"},
    {NULL, "--hold", "keep the lease so long (default 0); ends early with 1 or 3 if the session does"},
    {"load", "--as", "the model's name"},
    {"compress", "--as", "with --mode copy: the copy's name (default NAME@CODEC.GRANULARITY)"},
    {"drain", "--device", "UUID or number of `hbmctl devices` (default: all)"},
    {NULL, "--device", "UUID or number of `hbmctl devices` (default: the first)"},
    {"advise", "--measure", "measure the device, once: memory, shared memory, links, disk, attach and lock; kept in a file"},
    {"advise", "--profile", "where that is kept (default: profile-UUID.json in the daemon's state directory; in $XDG_STATE_HOME/hbmd or "
                            "~/.local/state/hbmd where that is closed to you)"},
    {"advise", "--since", "what `hbmctl --json advise` printed before: what came of what it predicted, and counters since then"},
    {"advise", "--pass", "how long a pass over SEL takes (a decode step, say): with it more is known"},
    {NULL, "--shared", "a name that every user sees (administrators)"},
    {NULL, "--priority", "when it goes where others wait for room, 0 before 9; or never (default 5)"},
    {NULL, "--replace", "take the place of a model of that name (default: refused)"},
    {"sleep", "--codec", "encode all that can be for this sleep, whatever it parks as; lossy, and wake brings back what is left "
                         "(default: as parked, else raw)"},
    {"advise-codec", "--codec", "try only this one (default: all)"},
    {"advise-codec", "--min-sqnr", "what an encoding has to keep of each buffer (default 30, which is 3 % of error; 0: no bound)"},
    {"advise-codec", "--max-error", "nor may it have a larger absolute error (default: no bound)"},
    {"advise-codec", "--eval", "run CMD on the buffers, on copies in each encoding (file $HBM_EVAL_COPIES: a line each, NAME, a tab, the "
                               "copy's name) and as advised; its last line is shown"},
    {"advise-codec", "--apply", "encode what is advised, in place; with --eval only if CMD ends with 0 on that"},
    {"advise-codec", "--verbose", "every encoding of every group (default: of all together)"},
    {NULL, "--codec", "what the elements become"},
    {NULL, "--granularity", "what shares a scale (default channel, and tensor for vectors; int4: group:128); of int8-split, along which axis the K loudest channels stay in fp16 (default channel:0, K one of a hundred)"},
    {NULL, "--calibrate", "how the range is chosen: minmax, or one for the tensor that clips the rest (default minmax); observed: over the batches of `hbmctl observe`, by its range or by METHOD, one of minmax, average, percentile:P, mse, entropy"},
    {NULL, "--observed", "with --calibrate observed: the buffer whose observed ranges are used (default: of each its own)"},
    {NULL, "--momentum", "how much of the moving average a batch leaves, less than 1 (default 0.99)"},
    {NULL, "--forget", "count nothing, and forget what was observed of them"},
    {NULL, "--export", "count nothing, and write the ranges that were observed to FILE, tensors by their names without the model's"},
    {NULL, "--import", "count nothing, and take the ranges of FILE in place of what was observed: of all buffers that it names, or none"},
    {NULL, "--format", "of that file: a calibration cache of TensorRT, or calibration.json of ONNX Runtime's quantization"},
    {NULL, "--mode", "encode in place, beside the original, or (park) whenever it leaves the device (default replace)"},
    {NULL, "--min-sqnr", "refuse a result under so many dB (default: no bound)"},
    {NULL, "--max-error", "refuse a result with a larger absolute error (default: no bound)"},
    {NULL, "--async", "print the operation's id and do not wait (default: wait)"},
    {"sleep", "--to", "where to (default host)"},
    {NULL, "--to", "where to"},
    {NULL, "--force", "past offload_limit"},
    {NULL, "--live", "under those who have them attached: they go on in host memory, at their next safe point"},
    {NULL, "--verbose", "a row for each buffer (default: one line for all)"},
    {"bench", "--size", "of matrices N x N (default 4096)"},
    {NULL, "--timeout", "how long to wait (default: for ever)"},
    {NULL, "--patience", "how long each part may take; what takes longer is left out (default: 20)"},
    {NULL, "--follow", "go on with what happens from now"},
    {NULL, "--since", "only after this number, the first column"},
    {NULL, "--listen", "serve them for ever at http://127.0.0.1:PORT/metrics, to whoever is on this machine (0: any free port)"},
    {NULL, "--explain", "cause and remedy of an error of hbm or CUDA, by name or number (NO_MEMORY, CUDA_ERROR_NO_DEVICE, 700)"},
    {NULL, "--once", "print it once and end, as is done without a terminal"},
    {NULL, "--sort", "what comes first: the largest, by name, or the oldest (default bytes; on the screen the keys b, n, a)"},
    {NULL, "--interval", "how long a screen stays (default 1)"},
    {NULL, "--svg", "draw it to that file instead, with each model's groups, and who has leases"},
    {NULL, "--limit", "at most so many: the oldest with --since, else the newest (default: all that is kept)"},
};

static const char *option_help(const struct verb *verb, const char *option)
{
    for (size_t i = 0; i < sizeof(option_helps) / sizeof(option_helps[0]); i++)
        if (!strcmp(option_helps[i].option, option) &&
            (!option_helps[i].verb || !strcmp(option_helps[i].verb, verb->name)))
            return option_helps[i].help;
    return "";
}

static void print_options(const struct verb *verb)
{
    const struct option_row *row = verb->options;

    if (row)
        putchar('\n');
    for (unsigned i = 0; row && row[i].name; i++) {
        char option[160];
        snprintf(option, sizeof(option), "%s%s%s", row[i].name, row[i].value ? " " : "",
                 row[i].value ? row[i].value : "");
        if (strlen(option) > 26)
            printf("  %s\n  %-26s  %s\n", option, "", option_help(verb, row[i].name));
        else
            printf("  %-26s  %s\n", option, option_help(verb, row[i].name));
    }
}

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
    puts("\nSEL is an exact name (tried first), a glob over names (* matches / too), id:0x..., "
         "model:NAME,\n"
         "group:MODEL/GROUP, or group:NAME of every model.");
}

static void print_globals(void)
{
    puts("\nAnywhere on the line:\n"
         "  --runtime-dir DIR  the daemon's directory; else HBM_RUNTIME_DIR, /run/hbmd, $XDG_RUNTIME_DIR/hbmd\n"
         "  --json             the result as JSON, errors too\n"
         "  --no-color         plain text on a terminal\n"
         "  --version          of hbmctl, and end\n"
         "Ends with 0 done, 1 refused or failed, 2 usage, 3 no daemon answers.");
}

int run_help(const struct cli *cli)
{
    const struct verb *verb = cli->n_words ? verb_by_name(cli->words[0]) : NULL;

    if (cli->n_words && !verb) {
        report(cli, HBM_E_INVALID, "there is no verb \"%s\"; see `hbmctl help`", cli->words[0]);
        return EXIT_USAGE;
    }
    if (verb) {
        print_usage(verb);
        print_options(verb);
        if (!strncmp(verb->usage, "SEL", 3) || !strcmp(verb->usage, "[SEL]"))
            print_selectors();
        print_globals();
        return EXIT_DONE;
    }
    puts("usage: hbmctl VERB ...\n");
    while ((verb = verb_next(verb)))
        printf("  %-12s %s\n", verb->name, verb->help);
    print_selectors();
    print_globals();
    return EXIT_DONE;
}
