#include "daemon/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/base/cleanup.h"

#define FDS_A_DATAGRAM 253
#define FIRST_FD 3

int keeper_open(struct keeper *keeper)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(address.sun_family);
    int on = 1;

    *keeper = (struct keeper){.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    /* The kernel picks a free abstract name: nothing is left behind in any directory. */
    if (keeper->socket < 0 || bind(keeper->socket, (struct sockaddr *)&address, size) < 0 ||
        setsockopt(keeper->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
        return -errno;
    size = sizeof(address);
    if (getsockname(keeper->socket, (struct sockaddr *)&address, &size) < 0)
        return -errno;
    int length = (int)(size - offsetof(struct sockaddr_un, sun_path) - 1);
    snprintf(keeper->address, sizeof(keeper->address), "@%.*s", length, address.sun_path + 1);
    return 0;
}

/* For all that the next datagram may bring. */
static bool make_room(struct keeper *keeper)
{
    unsigned room = keeper->room * 2 + FDS_A_DATAGRAM;

    if (keeper->room - keeper->n >= FDS_A_DATAGRAM)
        return true;
    struct kept *grown = realloc(keeper->kept, room * sizeof(*grown));
    if (!grown)
        return false;
    keeper->kept = grown;
    keeper->room = room;
    return true;
}

static void keep(struct keeper *keeper, const char *name, int fd)
{
    struct kept *kept = &keeper->kept[keeper->n++];

    snprintf(kept->name, sizeof(kept->name), "%s", name);
    kept->fd = fd;
}

static void drop(struct keeper *keeper, const char *name)
{
    unsigned left = 0;

    for (unsigned i = 0; i < keeper->n; i++) {
        if (!strcmp(keeper->kept[i].name, name))
            fd_close(keeper->kept[i].fd);
        else
            keeper->kept[left++] = keeper->kept[i];
    }
    keeper->n = left;
}

/* What a datagram brought beside its text. */
struct ancillary {
    pid_t sender;
    int fds[FDS_A_DATAGRAM];
    unsigned n;
};

/* Not packet.c's form: sd_notify sends text and credentials. */
static ssize_t receive(int socket, char *text, size_t room, struct ancillary *with)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS_A_DATAGRAM) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {.iov_base = text, .iov_len = room - 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);

    with->n = 0;
    with->sender = 0;
    if (size < 0)
        return size;
    text[size] = '\0';
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            struct ucred ids;
            memcpy(&ids, CMSG_DATA(c), sizeof(ids));
            with->sender = ids.pid;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            unsigned n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(with->fds, CMSG_DATA(c), n * sizeof(int));
            with->n = n;
        }
    }
    return size;
}

static void obey(struct keeper *keeper, char *text, struct ancillary *with)
{
    const char *name = "";
    bool store = false, remove = false;
    char *line;

    while ((line = strsep(&text, "\n"))) {
        if (!strncmp(line, "FDNAME=", 7))
            name = line + 7;
        store |= !strcmp(line, "FDSTORE=1");
        remove |= !strcmp(line, "FDSTOREREMOVE=1");
        keeper->ready |= !strcmp(line, "READY=1");
    }
    if (remove)
        drop(keeper, name);
    for (unsigned i = 0; store && i < with->n; i++) {
        keep(keeper, name, with->fds[i]);
        with->fds[i] = -1; /* consume fd */
    }
}

void keeper_receive(struct keeper *keeper, pid_t child)
{
    static char text[4096];
    static struct ancillary with;

    /* Without memory it stays in the socket, unconfirmed, until there is some. */
    while (make_room(keeper) && receive(keeper->socket, text, sizeof(text), &with) >= 0) {
        if (with.sender == child)
            obey(keeper, text, &with);
        /* A barrier's pipe is among them: closing it is the answer. */
        while (with.n)
            fd_close(with.fds[--with.n]);
    }
}

static int set_number(const char *name, unsigned value)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", value);
    return setenv(name, text, 1);
}

int keeper_pass_on(const struct keeper *keeper)
{
    _cleanup_free_ char *names = calloc(keeper->n + 1, sizeof(keeper->kept[0].name) + 1);
    char *end = names;

    if (!names)
        return -ENOMEM;
    /* First out of the way of the numbers they are to have. */
    for (unsigned i = 0; i < keeper->n; i++) {
        keeper->kept[i].fd = fcntl(keeper->kept[i].fd, F_DUPFD_CLOEXEC, FIRST_FD + (int)keeper->n);
        if (keeper->kept[i].fd < 0)
            return -errno;
    }
    for (unsigned i = 0; i < keeper->n; i++) {
        if (dup2(keeper->kept[i].fd, FIRST_FD + (int)i) < 0)
            return -errno;
        end += sprintf(end, "%s%s", i ? ":" : "", keeper->kept[i].name);
    }
    if (setenv("NOTIFY_SOCKET", keeper->address, 1))
        return -errno;
    if (keeper->n == 0) /* LISTEN_FDS=0 is no valid word */
        return unsetenv("LISTEN_FDS") ? -errno : 0;
    if (set_number("LISTEN_FDS", keeper->n) || set_number("LISTEN_PID", (unsigned)getpid()) ||
        setenv("LISTEN_FDNAMES", names, 1))
        return -errno;
    return 0;
}
