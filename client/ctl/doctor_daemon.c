/* The daemon: whether it answers, to whom, and what it says of itself. */
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/member.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/runtime_dir.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

/* What connecting says: 0 or an errno. */
static int try_socket(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_fd_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno;
    if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >= sizeof(address.sun_path))
        return ENAMETOOLONG;
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? errno : 0;
}

/* Which group may pass: the socket's, or where that cannot be seen its directory's. */
static void find_denied(struct doctor *doctor, const char *path, const char *directory)
{
    const struct passwd *user = getpwuid(geteuid());
    const char *group = socket_group(path, directory);

    if (!group) {
        doctor_find(doctor, VERDICT_FAILED, "socket",
                    "ask as root; hbmd lets in members of the group that socket_group names",
                    "%s may not be opened by this user", path);
        return;
    }
    _cleanup_free_ char *fix =
        text_new("usermod -aG %s %s, and log in again", group, user ? user->pw_name : "USER");
    doctor_find(doctor, VERDICT_FAILED, "socket", fix ? fix : "", "%s may be opened by members of group %s alone",
                path, group);
}

static bool look_at_socket(struct doctor *doctor, const char *directory, const char *name, int type)
{
    _cleanup_free_ char *path = text_new("%s/%s", directory, name);
    int error = path ? try_socket(path, type) : ENOMEM;

    if (!error || error == EAGAIN) /* EAGAIN: others wait there already */
        return true;
    if (error == EACCES || error == EPERM)
        find_denied(doctor, path, directory);
    else
        doctor_find(
            doctor, VERDICT_FAILED, "daemon",
            "start hbmd (systemctl start hbmd), or name its directory with --runtime-dir or HBM_RUNTIME_DIR",
            "no daemon answers at %s: %s", path, strerror(error));
    return false;
}

static void judge_versions(struct doctor *doctor)
{
    const char *theirs = text_of(doctor->status, "version");

    if (strcmp(theirs, HBM_VERSION))
        doctor_find(doctor, VERDICT_WARNING, "versions",
                    "install both of one release, and `systemctl restart hbmd`: that keeps all memory",
                    "hbmctl is of %s, hbmd of %s", HBM_VERSION, theirs);
    else
        doctor_find(doctor, VERDICT_OK, "versions", "", "hbmctl and hbmd are both of %s", theirs);
}

static void judge_devices(struct doctor *doctor)
{
    const cJSON *row, *devices = member(doctor->status, "devices");

    cJSON_ArrayForEach(row, devices)
    {
        const char *state = text_of(row, "state"), *name = text_of(row, "name"), *uuid = text_of(row, "uuid");
        const char *ended = text_of(member(row, "worker_ended"), "why");
        if (!strcmp(state, "failed"))
            doctor_find(doctor, VERDICT_FAILED, "device", text_of(row, "remedy"), "%s (%s) is not served: %s", uuid,
                        name, text_of(row, "problem"));
        else if (!strcmp(state, "drained"))
            doctor_find(doctor, VERDICT_WARNING, "device", "`systemctl restart hbmd` serves it again",
                        "%s (%s) is drained", uuid, name);
        else if (*ended)
            doctor_find(doctor, VERDICT_NOTE, "device", "`hbmctl events` has what happened before",
                        "%s (%s) is %s; its last worker ended: %s", uuid, name, state, ended);
        else
            doctor_find(doctor, VERDICT_OK, "device", "", "%s (%s) is %s", uuid, name, state);
    }
}

static void judge_health(struct doctor *doctor)
{
    const cJSON *row, *degraded = member(doctor->status, "degraded"),
                      *listeners = member(doctor->status, "listeners");

    cJSON_ArrayForEach(row, degraded) doctor_find(doctor, VERDICT_FAILED, "health", text_of(row, "remedy"),
                                                  "nothing new is taken on: %s", text_of(row, "cause"));
    cJSON_ArrayForEach(row, listeners) if (cJSON_IsFalse(member(row, "serves")))
        doctor_find(doctor, VERDICT_FAILED, "listener", "hbmd's log says what is wrong with its directory",
                    "listener %s is not served", text_of(row, "listener"));
}

void doctor_daemon(struct doctor *doctor)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    char directory[PATH_MAX];

    if (runtime_dir(doctor->cli, directory, sizeof(directory))) {
        doctor_find(doctor, VERDICT_FAILED, "daemon",
                    "start hbmd, or name its directory with --runtime-dir or HBM_RUNTIME_DIR",
                    "there is no directory of a daemon");
        return;
    }
    bool clients = look_at_socket(doctor, directory, "hbmd.sock", SOCK_SEQPACKET);
    if (rpc_clients_alone(doctor->cli)) {
        doctor_find(doctor, VERDICT_NOTE, "daemon", "on the host, hbmd's own directory tells more",
                    "%s is a listener's directory, for clients alone", directory);
        return;
    }
    if (!clients || !look_at_socket(doctor, directory, "control.sock", SOCK_STREAM) ||
        rpc_open(doctor->cli, &rpc) || rpc_call(rpc, "hbm.status", NULL, &doctor->status) ||
        rpc_call(rpc, "hbm.config", NULL, &doctor->config))
        return;
    doctor_find(doctor, VERDICT_OK, "daemon", "", "hbmd answers at %s, and this user may use it", directory);
    judge_versions(doctor);
    judge_health(doctor);
    judge_devices(doctor);
}
