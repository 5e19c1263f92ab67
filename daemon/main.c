/* hbmd: the owner of the GPU buffers. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/crash.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/server.h"
#include "daemon/supervisor.h"

/* A closed stderr would become a socket's number, and the log be written into it. */
static void fill_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* Whoever started us may have had signals blocked, or SIGCHLD ignored, and exec hands that on: then no child's
 * death would be seen, and no SIGTERM. What is written past a limit is to fail, and not to kill. */
static void own_signals(void)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static int serve(const struct setup *setup, const struct config *config)
{
    struct server *server = NULL;
    int error = server_new(setup, config, &server);

    if (error) {
        log_error("cannot start: %s; %s", strerror(-error),
                  error == -EMFILE ? "raise LimitNOFILE or ulimit -n" : "mend that, and start it again");
        server_free(server);
        return EXIT_FAILURE;
    }
    server_start(server);
    int status = server_run(server);
    server_free(server);
    return status;
}

int main(int argc, char **argv)
{
    struct setup setup;
    _cleanup_(config_clear) struct config config = {0};
    int parsed = setup_parse(&setup, argc, argv);

    if (parsed)
        return parsed == 1 ? EXIT_SUCCESS : parsed;
    fill_standard_fds();
    crash_watch("hbmd");
    umask(077);
    own_signals();
    journal_attach();
    bool sound = setup_load(&setup, &config);
    if (setup.check) {
        if (sound)
            puts("configuration ok");
        return sound ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    if (!sound) {
        log_write(LOG_LEVEL_ERROR, MESSAGE_CONFIG_REFUSED,
                  "the configuration has errors; correct them (hbmd --check-config lists them)");
        return EXIT_FAILURE;
    }
    log_set_level(config.log_level);
    if (config.supervise && !setup.supervised)
        return supervise(argc, argv);
    fd_reserve_keep();
    return serve(&setup, &config);
}
