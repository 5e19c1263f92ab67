/* What stdout and stderr are: how wide, whether they take colour, whether someone watches. */
#pragma once

#include <stdbool.h>

#include "client/ctl/cli.h"

unsigned terminal_width(void); /* of stdout; 0 = no terminal, no limit */
unsigned terminal_height(void); /* of stdout; 0 = no terminal, no limit */
bool terminal_watched(void);   /* stderr is a terminal */
const char *terminal_bold(const struct cli *cli);
const char *terminal_plain(const struct cli *cli);
