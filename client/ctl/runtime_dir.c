#include "client/ctl/runtime_dir.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/report.h"

static const char *environment(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

int runtime_dir(const struct cli *cli, char *path, size_t size)
{
    const char *given = cli->runtime_dir ? cli->runtime_dir : environment("HBM_RUNTIME_DIR");
    const char *user = environment("XDG_RUNTIME_DIR");
    int length;

    if (given)
        length = snprintf(path, size, "%s", given);
    else if (access("/run/hbmd", F_OK) == 0)
        length = snprintf(path, size, "/run/hbmd");
    else if (user)
        length = snprintf(path, size, "%s/hbmd", user);
    else
        return report(
            cli, HBM_E_NO_DAEMON,
            "no daemon answers: there is no /run/hbmd and XDG_RUNTIME_DIR is not set; start hbmd, or name "
            "its directory with --runtime-dir or HBM_RUNTIME_DIR");
    if ((size_t)length >= size)
        return report(
            cli, HBM_E_INVALID,
            "the runtime directory's name is too long: a socket's path has at most 107 bytes; name a shorter "
            "one with --runtime-dir");
    return 0;
}

const char *socket_group(const char *socket, const char *directory)
{
    const struct group *group;
    struct stat status;

    if (stat(socket, &status) < 0 && stat(directory, &status) < 0)
        return NULL;
    group = status.st_gid ? getgrgid(status.st_gid) : NULL;
    return group ? group->gr_name : NULL;
}
