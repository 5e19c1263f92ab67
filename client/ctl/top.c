/* `hbmctl top`: the daemon as it is, every second anew. */
#include "client/ctl/top.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/terminal.h"
#include "client/ctl/verbs.h"

/* The other screen, no cursor, and what is too long for a line is cut; and back. */
#define ENTER "\033[?1049h\033[?25l\033[?7l"
#define LEAVE "\033[?7h\033[?25h\033[?1049l"
#define CLEAR "\033[H\033[2J"

static void forget(struct top *top)
{
    cJSON_Delete(top->status);
    cJSON_Delete(top->models);
    cJSON_Delete(top->sessions);
    cJSON_Delete(top->ops);
    top->status = top->models = top->sessions = top->ops = NULL;
}

/* All four answers, or none and a status. A connection that fails is opened anew by the next one. */
static int ask(struct top *top, struct rpc **rpc)
{
    int status = *rpc ? 0 : rpc_open(top->cli, rpc);

    forget(top);
    if (!status)
        status = rpc_call(*rpc, "hbm.status", NULL, &top->status);
    if (!status)
        status = rpc_call(*rpc, "hbm.models", NULL, &top->models);
    if (!status)
        status = rpc_call(*rpc, "hbm.sessions", NULL, &top->sessions);
    if (!status)
        status = rpc_call(*rpc, "hbm.ops", NULL, &top->ops);
    if (status) {
        *rpc = rpc_close(*rpc);
        forget(top);
    }
    return status;
}

static void print_json(const struct top *top)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    cJSON_AddItemReferenceToObject(json, "status", top->status);
    cJSON_AddItemReferenceToObject(json, "models", top->models);
    cJSON_AddItemReferenceToObject(json, "sessions", top->sessions);
    cJSON_AddItemReferenceToObject(json, "ops", top->ops);
    report_json(json);
}

static int once(struct top *top)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    int status = ask(top, &rpc);

    if (status)
        return status;
    top->width = terminal_width();
    if (top->cli->json)
        print_json(top);
    else
        top_show(top);
    forget(top);
    return EXIT_DONE;
}

/* ---- On a terminal ---- */

/* Only there to end a poll. */
static void on_resize(int number)
{
    (void)number;
}

static void paint(struct top *top, bool answered)
{
    top->width = terminal_width();
    top->height = terminal_height();
    fputs(CLEAR, stdout);
    if (answered)
        top_show(top);
    else
        fputs("no daemon answers; q quits", stdout);
    fflush(stdout);
}

/* Until the next frame is due; false if the person wants no more. A key or another size brings it at once. */
static bool wait_for_key(struct top *top, double seconds, const sigset_t *open)
{
    struct timespec patience = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;

    if (ppoll(&input, 1, &patience, open) <= 0)
        return !interrupted();
    if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q')
        return false;
    switch (key) {
    case 'b':
        top->sort = "bytes";
        break;
    case 'n':
        top->sort = "name";
        break;
    case 'a':
        top->sort = "age";
        break;
    default:
        break;
    }
    return !interrupted();
}

static int live(struct top *top)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    double seconds = fmin(fmax(cli_number(top->cli, "--interval", 1), 0.1), 3600);
    struct termios before, raw;
    sigset_t ours, open; /* closed while the screen is written to: what a signal interrupts is lost */
    int status = ask(top, &rpc);

    if (status)
        return status;
    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return report(top->cli, HBM_E_SYSTEM, "the terminal's settings cannot be read: %m; use --once");
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    interrupt_watch();
    sigaction(SIGWINCH, &(struct sigaction){.sa_handler = on_resize}, NULL);
    sigaction(SIGTSTP, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGHUP);
    sigaddset(&ours, SIGWINCH);
    sigprocmask(SIG_BLOCK, &ours, &open);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    fputs(ENTER, stdout);
    do {
        paint(top, !status);
        if (!wait_for_key(top, seconds, &open))
            break;
        sigprocmask(SIG_SETMASK, &open, NULL);
        status = ask(top, &rpc);
        sigprocmask(SIG_BLOCK, &ours, NULL);
    } while (true);
    fputs(LEAVE, stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    forget(top);
    return EXIT_DONE;
}

int run_top(const struct cli *cli)
{
    const char *sort = cli_value(cli, "--sort"), *kind = getenv("TERM");
    struct top top = {.cli = cli, .sort = sort ? sort : "bytes"};
    bool dumb = !kind || !strcmp(kind, "dumb") || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO);

    if (dumb || cli->json || cli_value(cli, "--once"))
        return once(&top);
    top.live = true;
    return live(&top);
}
