#include "tests/fuzz/owner.h"

#include <errno.h>
#include <poll.h>

#include "daemon/base/cleanup.h"

#define PATIENCE_MS 20000

struct piece pieces[4] = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}};
int owner_fd;
static uint32_t serial;

void owner_begin(int fd)
{
    owner_fd = fd;
    serial = 0; /* it says where a created extent is kept: the same for the same input */
}

void owner_keep(unsigned place, int fd, struct job_extent extent)
{
    struct piece *piece = &pieces[place % 4];

    fd_close(piece->fd);
    *piece = (struct piece){fd, extent};
}

/* Progress is news; anything else is the answer to the one question that is open. */
static void await(uint32_t opcode, const struct job_create_request *created)
{
    static struct packet packet;
    struct pollfd readable = {.fd = owner_fd, .events = POLLIN};
    int ready;

    do {
        do
            ready = poll(&readable, 1, PATIENCE_MS);
        while (ready < 0 && errno == EINTR); /* by libFuzzer's own alarm */
        CHECK(ready == 1);
        CHECK(!packet_receive(owner_fd, &packet));
    } while (packet.header.opcode == JOB_PROGRESS && !packet.header.serial);
    const struct job_row *row = job_row(packet.header.opcode);
    if (packet.header.status)
        CHECK(packet.body_size == sizeof(struct packet_refusal) && !packet.n_fds);
    if (getenv("VERBOSE"))
        fprintf(stderr, "  opcode %u: %s\n", opcode, packet.header.status ? (const char *)packet.body : "done");
    if (!packet.header.status)
        CHECK(row && packet.header.opcode == opcode && packet.body_size == row->reply_size);
    if (!packet.header.status && created) {
        struct job_create_reply reply;
        memcpy(&reply, packet.body, sizeof(reply));
        CHECK(packet.n_fds == 1 && reply.size >= created->size);
        owner_keep(serial, packet_take_fd(&packet, 0),
                   (struct job_extent){.kind = created->kind, .size = reply.size});
    }
    packet_close_fds(&packet);
}

void owner_ask(uint32_t opcode, const void *body, size_t size, const int *fds, unsigned n_fds,
               const struct job_create_request *created)
{
    struct packet_header header = {.opcode = opcode, .serial = opcode == JOB_CANCEL ? 0 : ++serial};

    CHECK(!packet_send(owner_fd, &header, body, size, fds, n_fds));
    if (header.serial)
        await(opcode, created);
}
