/* What an earlier life left: the directory, the ledger and its copy in the store, fds. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/server.h"

#define LEDGER_COPY "ledger" /* in the store */

static void copy_stored(struct store_request *request)
{
    (void)request;
}

/* Where the memory goes, the ledger goes too. */
static void keep_ledger(struct server *server, int kept)
{
    struct store_request *request = &server->ledger_copy;
    int copy = ledger_keep_copy(server->ledger, kept);

    if (copy < 0 && kept >= 0) { /* whatever it was, it is no copy */
        store_remove(server->store, LEDGER_COPY);
        kept = -1;
        copy = ledger_keep_copy(server->ledger, kept);
    }
    if (copy < 0) {
        log_warning("there is no copy of the ledger beside its file: %s", strerror(-copy));
    } else if (kept < 0) {
        snprintf(request->name, sizeof(request->name), "%s", LEDGER_COPY);
        request->fd = copy;
        request->done = copy_stored;
        store_put(server->store, request);
    }
}

static int take_ledger(struct server *server)
{
    _cleanup_fd_ int kept = passed_take_fd(&server->passed, LEDGER_COPY);
    int error = ledger_open(server->dir_fd, &server->ledger);

    if (!error)
        error = ledger_recover(server->ledger, kept);
    if (!error)
        keep_ledger(server, TAKE_FD(kept));
    return error;
}

bool server_take_directories(struct server *server)
{
    char why[320];

    if (!runtime_dir_path(server->config.runtime_dir, server->runtime_dir, why) ||
        !state_dir_path(server->config.state_dir, server->state_dir, why) ||
        (server->dir_fd = runtime_dir_open(server->runtime_dir, &server->lock_fd, why)) < 0 ||
        !state_dir_make(server->state_dir, why)) {
        server_fail(server, why);
        return false;
    }
    int error = take_ledger(server);
    if (!error)
        return true;
    if (error == -EPROTO)
        snprintf(why, sizeof(why),
                 "cannot use %.120s/ledger: a newer hbmd wrote it; install that version, or stop "
                 "hbmd and remove the file with all memory",
                 server->runtime_dir);
    else
        snprintf(why, sizeof(why),
                 "cannot use %.120s/ledger: %s; mend that, or move it away: then the copy is used "
                 "that is kept with the memory",
                 server->runtime_dir, strerror(-error));
    server_fail(server, why);
    return false;
}

/* The store's copy of what no row speaks of goes too: it would come back for ever. */
void server_drop_surplus(struct server *server)
{
    unsigned dropped = 0;

    for (size_t i = 0; i < server->passed.n_kept; i++) {
        struct kept_fd *kept = &server->passed.kept[i];
        if (kept->fd < 0)
            continue;
        store_remove(server->store, kept->name);
        kept->fd = fd_close(kept->fd);
        dropped++;
    }
    if (dropped)
        log_warning("%u kept fds belong to nothing in the ledger and are dropped", dropped);
}
