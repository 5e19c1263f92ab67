#include "client/ctl/terminal.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

unsigned terminal_width(void)
{
    struct winsize size;

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        return 0;
    return size.ws_col;
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
