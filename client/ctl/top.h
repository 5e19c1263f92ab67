/* What `hbmctl top` shows, as text. */
#pragma once

#include "client/ctl/cli.h"

/* What the daemon answered, and how it is to be shown. */
struct top {
    const struct cli *cli;
    cJSON *status, *models, *sessions, *ops;
    const char *sort; /* bytes, name or age */
    unsigned width;   /* columns; 0: no limit */
    unsigned height;  /* lines; 0: no limit */
    bool live;        /* keys work */
};

/* To stdout, in no more lines than there are. */
void top_show(const struct top *top);
