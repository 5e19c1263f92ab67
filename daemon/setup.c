#include "daemon/setup.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/supervisor.h"

static const char usage[] =
    "usage: hbmd [--config FILE] [--runtime-dir DIR] [--state-dir DIR] [--device auto|cuda|host]\n"
    "            [--log-level error|warning|info|debug] [--supervise] [--check-config] [--version] [--help]\n"
    "\n"
    "Owns the GPU buffers of this host and hands them to client processes over DIR/hbmd.sock.\n"
    "\n"
    "  --config FILE      the configuration (default: " CONFIG_FILE ", if it is there)\n"
    "  --runtime-dir DIR  sockets and ledger (default: /run/hbmd for root, else $XDG_RUNTIME_DIR/hbmd)\n"
    "  --state-dir DIR    spill files (default: /var/lib/hbmd for root, else $XDG_STATE_HOME/hbmd\n"
    "                     or ~/.local/state/hbmd)\n"
    "  --device WHICH     auto: all GPUs, or host memory where there is none; cuda; host\n"
    "  --log-level LEVEL  what is logged to stderr, or to the journal\n"
    "  --supervise        without systemd: stay as a parent that keeps the memory and restarts the daemon\n"
    "  --check-config     report every error of the configuration, and end\n"
    "\n"
    "Every option but --config and --check-config is a key of the file too (hbmd.conf(5)).\n"
    "SIGHUP reads the file again, SIGTERM ends when running operations have ended.\n";

enum { OPT_CONFIG = 256, OPT_SUPERVISE, OPT_CHECK, OPT_VERSION, OPT_HELP };

static const struct option options[] = {
    {"runtime-dir", required_argument, NULL, CONFIG_runtime_dir},
    {"state-dir", required_argument, NULL, CONFIG_state_dir},
    {"device", required_argument, NULL, CONFIG_device},
    {"log-level", required_argument, NULL, CONFIG_log_level},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"supervise", no_argument, NULL, OPT_SUPERVISE},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int setup_parse(struct setup *setup, int argc, char **argv)
{
    int option;

    memset(setup, 0, sizeof(*setup));
    setup->supervised = is_supervised();
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option >= 0 && option < CONFIG_KEYS) {
            setup->override[option] = optarg;
            continue;
        }
        switch (option) {
        case OPT_CONFIG:
            setup->file = optarg;
            break;
        case OPT_SUPERVISE:
            setup->override[CONFIG_supervise] = "yes";
            break;
        case OPT_CHECK:
            setup->check = true;
            break;
        case OPT_VERSION:
            printf("hbmd %s\n", HBM_VERSION);
            return 1;
        case OPT_HELP:
            fputs(usage, stdout);
            return 1;
        default:
            fputs("try: hbmd --help\n", stderr);
            return 2;
        }
    }
    if (optind == argc)
        return 0;
    fprintf(stderr, "hbmd takes no argument '%s'; try: hbmd --help\n", argv[optind]);
    return 2;
}

struct reporting {
    const struct setup *setup;
    const char *file;
};

static void report(void *context, unsigned line, const char *why)
{
    const struct reporting *reporting = context;
    char place[16] = "";

    if (line)
        snprintf(place, sizeof(place), ":%u", line);
    if (reporting->setup->check)
        printf("%s%s: %s\n", reporting->file, place, why);
    else
        log_error("%s%s: %s", reporting->file, place, why);
}

bool setup_load(const struct setup *setup, struct config *config)
{
    struct reporting reporting = {setup, setup->file ? setup->file : CONFIG_FILE};
    char why[CONFIG_WHY_MAX];
    unsigned errors = 0;

    config_defaults(config);
    if (setup->file || access(CONFIG_FILE, F_OK) == 0)
        errors = config_read(config, reporting.file, report, &reporting);
    reporting.file = "command line";
    if (setup->supervised && !config->supervise) /* whose own command line said so */
        (void)config_set(config, "supervise", "yes", reporting.file, why);
    for (unsigned i = 0; i < CONFIG_KEYS; i++) {
        if (!setup->override[i] ||
            config_set(config, config_options[i].key, setup->override[i], "command line", why) == 0)
            continue;
        report(&reporting, 0, why);
        errors++;
    }
    return errors == 0;
}
