/* `hbmctl metrics`: to standard output, or to whoever asks by HTTP on the loopback address. */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/metrics.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/verbs.h"

#define PATIENCE_SECONDS 3 /* Prometheus waits for 10 */
#define REQUEST_BYTES 8192
#define CHILDREN_MAX 16

static int ask(const struct cli *cli, cJSON **status)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    int exit_status = rpc_open(cli, &rpc);

    return exit_status ? exit_status : rpc_call(rpc, cli->verb->method, NULL, status);
}

/* ---- HTTP ---- */

/* Reads to the end of the request's head; false where none came. */
static bool read_head(int fd, char head[REQUEST_BYTES + 1])
{
    size_t used = 0;

    while (used < REQUEST_BYTES) {
        ssize_t n = recv(fd, head + used, REQUEST_BYTES - used, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        used += (size_t)n;
        head[used] = 0;
        if (strstr(head, "\r\n\r\n") || strstr(head, "\n\n"))
            return true;
    }
    return false;
}

static void respond(FILE *out, const char *status, const char *type, const char *body, size_t size, bool body_too)
{
    fprintf(out,
            "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            status, type, size);
    if (body_too)
        fwrite(body, 1, size, out);
}

static void respond_metrics(const struct cli *cli, FILE *out, bool body_too)
{
    _cleanup_json_ cJSON *status = NULL;
    _cleanup_free_ char *body = NULL;
    size_t size = 0;

    ask(cli, &status);
    FILE *text = open_memstream(&body, &size);
    if (!text)
        out_of_memory();
    metrics_write(text, status);
    if (fclose(text))
        out_of_memory();
    respond(out, "200 OK", "text/plain; version=0.0.4; charset=utf-8", body, size, body_too);
}

static void serve(const struct cli *cli, int fd)
{
    static const char elsewhere[] = "the metrics are at /metrics\n", cannot[] = "this takes GET and HEAD\n";
    char head[REQUEST_BYTES + 1], method[8], path[256];
    FILE *out = fdopen(fd, "w");

    if (!out || !read_head(fd, head) || sscanf(head, "%7s %255[^? \r\n]", method, path) != 2)
        return;
    bool get = !strcmp(method, "GET"), known = get || !strcmp(method, "HEAD");
    if (!known)
        respond(out, "405 Method Not Allowed\r\nAllow: GET, HEAD", "text/plain", cannot, strlen(cannot), true);
    else if (strcmp(path, "/metrics"))
        respond(out, "404 Not Found", "text/plain", elsewhere, strlen(elsewhere), get);
    else
        respond_metrics(cli, out, get);
    fclose(out);
}

/* ---- The loop ---- */

static int listen_on(const struct cli *cli, double port, int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int yes = 1;

    if (port > 65535 || port != floor(port)) {
        report(cli, HBM_E_INVALID,
               "--listen wants a port, 1 to 65535, or 0 for any that is free; see `hbmctl help metrics`");
        return EXIT_USAGE;
    }
    address.sin_port = htons((uint16_t)port);
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
        bind(*fd, (struct sockaddr *)&address, length) < 0 || listen(*fd, CHILDREN_MAX) < 0 ||
        getsockname(*fd, (struct sockaddr *)&address, &length) < 0)
        return report(cli, HBM_E_SYSTEM, "port %.0f cannot be listened on: %m; choose another, or end what has it",
                      port);
    printf("http://127.0.0.1:%u/metrics\n", ntohs(address.sin_port));
    fflush(stdout);
    return 0;
}

/* A process for each: whoever is slow, and a daemon that hangs, hold up nobody else, and for so long. */
static int listen_for_ever(const struct cli *cli)
{
    _cleanup_fd_ int fd = -1;
    unsigned children = 0;
    int status = listen_on(cli, cli_number(cli, "--listen", 0), &fd);

    while (!status) {
        _cleanup_fd_ int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        while (children && waitpid(-1, NULL, children < CHILDREN_MAX ? WNOHANG : 0) > 0)
            children--;
        if (peer < 0) {
            if (errno != EINTR && errno != ECONNABORTED)
                status = report(cli, HBM_E_SYSTEM, "no connection can be taken: %m; start it again");
            continue;
        }
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_SECONDS);
            close(fd);
            serve(cli, peer);
            _exit(0);
        }
        children += child > 0;
    }
    return status;
}

int run_metrics(const struct cli *cli)
{
    _cleanup_json_ cJSON *result = NULL;

    if (cli_value(cli, "--listen"))
        return listen_for_ever(cli);
    int status = ask(cli, &result);
    if (!cli->json)
        metrics_write(stdout, result);
    else if (result)
        report_json(result);
    return status;
}
