/* `hbmd --supervise`: a tiny parent for machines without systemd. It speaks the same words: keeps the fds that the
 * child stores over NOTIFY_SOCKET, and passes them by LISTEN_FDS to the next child when one dies. */
#pragma once

#include <stdbool.h>

/* Runs this program again, with these arguments less --supervise, until it ends in good order. The exit status. */
int supervise(int argc, char **argv);
/* By the parent, which has said so. */
bool is_supervised(void);
