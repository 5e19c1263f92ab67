/* control.sock, for what libhbm has no call for: one line there, one line back. */
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/bench.h"

struct control {
    int fd;
    char answer[65536]; /* the last one */
};

static inline void control_open(struct control *control)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/control.sock", getenv("HBM_RUNTIME_DIR"));
    control->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (control->fd < 0 || connect(control->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        perror(address.sun_path), exit(1);
}

/* The answer's line, an error's too; ends the program where there is none. */
static inline const char *control_ask(struct control *control, const char *method, const char *params)
{
    char line[512];
    size_t size = 0;
    ssize_t n;

    snprintf(line, sizeof(line), "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"%s\",\"params\":%s}\n", method,
             params);
    if (send(control->fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
        perror("control.sock"), exit(1);
    while ((n = recv(control->fd, control->answer + size, sizeof(control->answer) - 1 - size, 0)) > 0) {
        size += (size_t)n;
        control->answer[size] = 0;
        if (control->answer[size - 1] == '\n')
            return control->answer;
    }
    fprintf(stderr, "%s: no whole answer\n", method);
    exit(1);
}

/* What follows `"key":` the first time after `from`; "" if it is not there. */
static inline const char *control_value(const char *from, const char *key)
{
    char mark[64];

    snprintf(mark, sizeof(mark), "\"%s\":", key);
    const char *at = strstr(from, mark);
    return at ? at + strlen(mark) : "";
}
