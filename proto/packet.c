#include "proto/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for one fd accepts two because of alignment; the surplus is counted and refused below. */
#define CONTROL_BYTES CMSG_SPACE(sizeof(int) * PACKET_FDS_MAX)

void packet_close_fds(struct packet *packet)
{
    for (unsigned i = 0; i < packet->n_fds; i++)
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    packet->n_fds = 0;
}

int packet_take_fd(struct packet *packet, unsigned i)
{
    if (i >= packet->n_fds)
        return -1;
    int fd = packet->fds[i];
    packet->fds[i] = -1; /* consume fd */
    return fd;
}

static void collect_fds(struct msghdr *message, struct packet *packet)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        const unsigned char *data = CMSG_DATA(c);
        for (unsigned i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, data + i * sizeof(int), sizeof(int));
            if (packet->n_fds < PACKET_FDS_MAX)
                packet->fds[packet->n_fds++] = fd;
            else
                close(fd);
        }
    }
}

int packet_receive_keeping_fds(int socket, struct packet *packet)
{
    union {
        struct cmsghdr align;
        char bytes[CONTROL_BYTES];
    } control;
    struct iovec parts[2] = {
        {.iov_base = &packet->header, .iov_len = sizeof(packet->header)},
        {.iov_base = packet->body, .iov_len = sizeof(packet->body)},
    };
    struct msghdr message = {
        .msg_iov = parts,
        .msg_iovlen = 2,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };
    ssize_t size;

    packet->n_fds = 0;
    packet->body_size = 0;
    do
        size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : errno == ECONNRESET ? -EPIPE : -errno;
    collect_fds(&message, packet);

    if ((size_t)size >= sizeof(packet->header))
        packet->body_size = (size_t)size - sizeof(packet->header);
    if (message.msg_flags & MSG_CTRUNC)
        return -EMFILE;
    if (size == 0)
        return -EPIPE; /* end of file and a zero-length packet read the same; both end the link */
    if ((size_t)size < sizeof(packet->header) || (message.msg_flags & MSG_TRUNC))
        return -EPROTO;
    if (packet->header.n_fds != packet->n_fds)
        return -EPROTO;
    return 0;
}

int packet_receive(int socket, struct packet *packet)
{
    int error = packet_receive_keeping_fds(socket, packet);

    if (error)
        packet_close_fds(packet);
    return error;
}

int packet_send(int socket, const struct packet_header *header, const void *body, size_t body_size, const int *fds,
                unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CONTROL_BYTES];
    } control;
    struct packet_header copy = *header;
    struct iovec parts[2] = {
        {.iov_base = &copy, .iov_len = sizeof(copy)},
        {.iov_base = (void *)body, .iov_len = body_size},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = body_size ? 2 : 1};
    ssize_t size;

    if (n_fds > PACKET_FDS_MAX || body_size > PACKET_BYTES_MAX - sizeof(copy))
        return -EMSGSIZE;
    copy.n_fds = (uint16_t)n_fds;
    if (n_fds) {
        memset(&control, 0, CMSG_SPACE(sizeof(int) * n_fds));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    do
        size = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : errno == ECONNRESET ? -EPIPE : -errno;
    return 0;
}
