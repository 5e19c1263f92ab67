#include "client/ctl/rpc_client.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "client/ctl/json_text.h"
#include "client/ctl/runtime_dir.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

#define METHOD_NOT_FOUND (-32601) /* JSON-RPC's own */

struct rpc {
    const struct cli *cli;
    int fd;
    unsigned id;
    char *bytes; /* received and not yet used */
    size_t used, room;
    bool mute;     /* asked something beside what the verb is about: a refusal of that is not told */
    cJSON *events; /* notifications that came before an answer */
};

/* The daemon is trusted more than a file, but a broken line must not pass for an answer. */
static const struct json_rules line_rules = {.depth_max = 200};

static bool clients_alone(const char *directory)
{
    _cleanup_free_ char *clients = text_new("%s/hbmd.sock", directory);
    _cleanup_free_ char *operators = text_new("%s/control.sock", directory);

    return clients && operators && access(clients, F_OK) == 0 && access(operators, F_OK) < 0 && errno == ENOENT;
}

bool rpc_clients_alone(const struct cli *cli)
{
    char directory[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

    return runtime_dir(cli, directory, sizeof(directory)) == 0 && clients_alone(directory);
}

static int tell_denied(const struct cli *cli, const char *path, const char *directory)
{
    const char *group = socket_group(path, directory);

    if (!group)
        return report(cli, HBM_E_DENIED, "%s may not be opened by this user; ask as root", path);
    return report(cli, HBM_E_DENIED, "%s may be opened by members of group %s alone; ask as one of them, or as root", path, group);
}

int rpc_open(const struct cli *cli, struct rpc **ret)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char directory[sizeof(address.sun_path) - sizeof("/control.sock") + 1];
    int status = runtime_dir(cli, directory, sizeof(directory));

    if (status)
        return status;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/control.sock", directory);
    _cleanup_(rpc_closep) struct rpc *rpc = calloc(1, sizeof(*rpc));
    if (!rpc)
        return report(cli, HBM_E_SYSTEM, "there is no memory for a connection; free some and try again");
    rpc->cli = cli;
    rpc->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (rpc->fd < 0)
        return report(cli, HBM_E_SYSTEM, "no socket can be made: %m; close files or raise the limit");
    if (connect(rpc->fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        if (errno == EACCES || errno == EPERM)
            return tell_denied(cli, address.sun_path, directory);
        if (errno == ENOENT && clients_alone(directory))
            return report(
                cli, HBM_E_NO_DAEMON,
                "%s serves clients alone (load, save, put, get, attach): ask hbmd's own directory, on the "
                "host, with --runtime-dir or HBM_RUNTIME_DIR",
                directory);
        return report(cli, HBM_E_NO_DAEMON,
                      "no daemon answers at %s: %m; start hbmd, or name its directory with --runtime-dir or "
                      "HBM_RUNTIME_DIR",
                      address.sun_path);
    }
    *ret = TAKE_PTR(rpc);
    return 0;
}

struct rpc *rpc_close(struct rpc *rpc)
{
    if (rpc) {
        if (rpc->fd >= 0)
            close(rpc->fd);
        cJSON_Delete(rpc->events);
        free(rpc->bytes);
        free(rpc);
    }
    return NULL;
}

static int disconnected(struct rpc *rpc, int error)
{
    return report(
        rpc->cli, HBM_E_DISCONNECTED,
        "the daemon closed the connection before it answered: %s; see its log, and ask again when it is back",
        error ? strerror(error) : "end of stream");
}

static int send_text(struct rpc *rpc, const char *text, size_t size)
{
    while (size) {
        ssize_t n = send(rpc->fd, text, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return disconnected(rpc, errno);
        text += n;
        size -= (size_t)n;
    }
    return 0;
}

/* More bytes from the daemon. EINTR goes on: who wants to stop on a signal does so between calls. */
static int receive_some(struct rpc *rpc)
{
    if (rpc->used == rpc->room) {
        size_t room = rpc->room ? rpc->room * 2 : 65536;
        char *grown = realloc(rpc->bytes, room);
        if (!grown)
            return report(rpc->cli, HBM_E_SYSTEM, "there is no memory for the daemon's answer; ask for less");
        rpc->bytes = grown;
        rpc->room = room;
    }
    for (;;) {
        ssize_t n = recv(rpc->fd, rpc->bytes + rpc->used, rpc->room - rpc->used, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return disconnected(rpc, n < 0 ? errno : 0);
        rpc->used += (size_t)n;
        return 0;
    }
}

/* The next line: so many of rpc->bytes, and a newline. */
static int receive_line(struct rpc *rpc, size_t *length)
{
    size_t looked = 0;
    char *newline;

    while (!(newline = rpc->used ? memchr(rpc->bytes + looked, '\n', rpc->used - looked) : NULL)) {
        looked = rpc->used;
        int status = receive_some(rpc);
        if (status)
            return status;
    }
    *length = (size_t)(newline - rpc->bytes);
    return 0;
}

static void drop_line(struct rpc *rpc, size_t length)
{
    rpc->used -= length + 1;
    memmove(rpc->bytes, rpc->bytes + length + 1, rpc->used);
}

static int tell_broken(struct rpc *rpc, const char *why)
{
    return report(rpc->cli, HBM_E_INTERNAL, "the daemon's answer %s; check that hbmctl and hbmd are of one release",
                  why);
}

/* A line as a tree. */
static int parse_line(struct rpc *rpc, size_t length, cJSON **ret)
{
    const char *why;

    *ret = json_parse(rpc->bytes, length, &line_rules, &why);
    drop_line(rpc, length);
    return *ret ? 0 : tell_broken(rpc, why);
}

static int receive(struct rpc *rpc, cJSON **ret)
{
    size_t length;
    int status = receive_line(rpc, &length);

    return status ? status : parse_line(rpc, length, ret);
}

static char *member_text(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* What this build asks for and that daemon does not have. */
static int tell_versions(struct rpc *rpc, const char *method)
{
    _cleanup_json_ cJSON *status = NULL;

    rpc->mute = true;
    rpc_call(rpc, "hbm.status", NULL, &status);
    rpc->mute = false;
    const char *version = member_text(status, "version");
    return report(rpc->cli, HBM_E_BAD_VERSION,
                  "hbmd is of %s and does not know %s, which hbmctl of " HBM_VERSION
                  " asks for; install both of one release, and `systemctl restart hbmd`: that keeps all memory",
                  version ? version : "another release", method);
}

/* Answers "RPC" where JSON-RPC itself refused: an unknown method, say, has no name of ours. */
static int tell_refusal(struct rpc *rpc, const char *method, const cJSON *error)
{
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(error, "data");
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(error, "code");
    struct rpc_error told = {
        .code = cJSON_IsNumber(code) ? (int)code->valuedouble : HBM_E_INTERNAL,
        .name = member_text(data, "error"),
        .message = member_text(error, "message"),
        .detail = member_text(data, "detail"),
        .remedy = member_text(data, "remedy"),
    };

    if (rpc->mute)
        return EXIT_REFUSED;
    if (told.code == METHOD_NOT_FOUND && strcmp(rpc->cli->verb->name, "rpc"))
        return tell_versions(rpc, method);
    if (!told.name)
        told.name = "RPC";
    if (!told.message)
        told.message = "the daemon refused without a reason; see its log";
    return report_rpc(rpc->cli, &told);
}

/* Keeps a notification for rpc_next_event; false if the line is none. */
static bool keep_event(struct rpc *rpc, cJSON *line)
{
    const char *method = member_text(line, "method");

    if (!method)
        return false;
    if (!strcmp(method, "hbm.event")) {
        if (!rpc->events)
            rpc->events = cJSON_CreateArray();
        cJSON_AddItemToArray(rpc->events, cJSON_DetachItemFromObjectCaseSensitive(line, "params"));
    }
    return true;
}

static int send_request(struct rpc *rpc, const char *method, cJSON *params)
{
    _cleanup_json_ cJSON *request = cJSON_CreateObject();

    cJSON_AddStringToObject(request, "jsonrpc", "2.0");
    cJSON_AddNumberToObject(request, "id", ++rpc->id);
    cJSON_AddStringToObject(request, "method", method);
    if (params)
        cJSON_AddItemToObject(request, "params", params);
    _cleanup_free_ char *text = cJSON_PrintUnformatted(request);
    if (!text)
        return report(rpc->cli, HBM_E_SYSTEM, "there is no memory for the request; free some and try again");
    int status = send_text(rpc, text, strlen(text));
    return status ? status : send_text(rpc, "\n", 1);
}

/* An answer's result, or what it says instead. */
static int result_of(struct rpc *rpc, const char *method, cJSON *line, cJSON **result)
{
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(line, "error");

    if (error)
        return tell_refusal(rpc, method, error);
    *result = cJSON_DetachItemFromObjectCaseSensitive(line, "result");
    return *result ? 0 : tell_broken(rpc, "has neither result nor error");
}

int rpc_call(struct rpc *rpc, const char *method, cJSON *params, cJSON **result)
{
    int status = send_request(rpc, method, params);

    while (!status) {
        _cleanup_json_ cJSON *line = NULL;
        status = receive(rpc, &line);
        if (!status && !keep_event(rpc, line))
            return result_of(rpc, method, line, result);
    }
    return status;
}

/* How long the object is that begins here: to the brace that closes it, or to the end. */
static size_t object_size(const char *text, size_t size)
{
    unsigned depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < size; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && text[i] == '{')
            depth++;
        else if (!quoted && text[i] == '}' && --depth == 0)
            return i + 1;
    }
    return size;
}

/* What lies between the brackets of a list. */
static int each_row(struct rpc *rpc, const char *text, size_t size, void (*row)(void *context, const cJSON *row),
                    void *context)
{
    while (size) {
        const char *why;
        size_t length = object_size(text, size);
        _cleanup_json_ cJSON *tree = json_parse(text, length, &line_rules, &why);
        if (!tree)
            return tell_broken(rpc, why);
        if (length < size && text[length++] != ',')
            return tell_broken(rpc, "has no comma between rows");
        row(context, tree);
        text += length;
        size -= length;
    }
    return 0;
}

int rpc_rows(struct rpc *rpc, const char *method, cJSON *params, void (*row)(void *context, const cJSON *row),
             void *context)
{
    int status = send_request(rpc, method, params);

    while (!status) {
        _cleanup_json_ cJSON *line = NULL, *result = NULL;
        const cJSON *each;
        char begin[64];
        size_t length;
        status = receive_line(rpc, &length);
        if (status)
            break;
        /* As hbmd writes a list; anything else, a refusal say, is small. */
        size_t head =
            (size_t)snprintf(begin, sizeof(begin), "{\"jsonrpc\":\"2.0\",\"id\":%u,\"result\":[", rpc->id);
        if (length > head + 2 && !memcmp(rpc->bytes, begin, head) && !memcmp(rpc->bytes + length - 2, "]}", 2)) {
            status = each_row(rpc, rpc->bytes + head, length - head - 2, row, context);
            drop_line(rpc, length);
            return status;
        }
        status = parse_line(rpc, length, &line);
        if (status || keep_event(rpc, line))
            continue;
        status = result_of(rpc, method, line, &result);
        cJSON_ArrayForEach(each, result) row(context, each);
        return status;
    }
    return status;
}

int rpc_next_event(struct rpc *rpc, cJSON **event)
{
    while (!rpc->events || !rpc->events->child) {
        _cleanup_json_ cJSON *line = NULL;
        int status = receive(rpc, &line);
        if (status)
            return status;
        keep_event(rpc, line);
    }
    *event = cJSON_DetachItemFromArray(rpc->events, 0);
    return 0;
}
