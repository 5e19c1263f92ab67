#include "client/ctl/terminal.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct winsize size_of_terminal(void)
{
    struct winsize size = {0};

    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        size = (struct winsize){0};
    return size;
}

unsigned terminal_width(void)
{
    return size_of_terminal().ws_col;
}

unsigned terminal_height(void)
{
    return size_of_terminal().ws_row;
}

bool terminal_watched(void)
{
    return isatty(STDERR_FILENO);
}

static bool colors(const struct cli *cli)
{
    const char *refused = getenv("NO_COLOR");

    return !cli->no_color && !(refused && *refused) && isatty(STDOUT_FILENO);
}

const char *terminal_bold(const struct cli *cli)
{
    return colors(cli) ? "\033[1m" : "";
}

const char *terminal_plain(const struct cli *cli)
{
    return colors(cli) ? "\033[0m" : "";
}
