/* Where the daemon's sockets are: --runtime-dir, HBM_RUNTIME_DIR, /run/hbmd if it is there, $XDG_RUNTIME_DIR/hbmd.
 */
#pragma once

#include <stddef.h>

#include "client/ctl/cli.h"

/* 0, or the exit status after it was told that there is no such place. */
int runtime_dir(const struct cli *cli, char *path, size_t size);
/* The group whose members a socket, or where that cannot be seen its directory, lets pass; NULL where it is root alone, or
 * nothing can be seen. Until the next call. */
const char *socket_group(const char *socket, const char *directory);
