#include "tests/fuzz/client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "proto/memfd.h"
#include "tests/fuzz/world.h"

#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                        \
    static void fill_##name(struct input *in, const struct known_ids *known,                                       \
                            struct wire_##name##_request *request)                                                 \
    {                                                                                                              \
        (void)known;                                                                                               \
        NAME##_REQUEST(FILL_FIELD, FILL_ARRAY)                                                                     \
    }
#include "proto/messages.def"
#undef MESSAGE

static void fill(struct input *in, const struct known_ids *known, uint32_t opcode, void *body)
{
    switch (opcode) {
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                        \
    case WIRE_##NAME:                                                                                              \
        fill_##name(in, known, body);                                                                              \
        break;
#include "proto/messages.def"
#undef MESSAGE
    }
}

void client_hear(struct client *client)
{
    static struct packet packet;

    while (client->fd >= 0 && !packet_receive(client->fd, &packet)) {
        const struct packet_header *header = &packet.header;
        const struct wire_row *row = wire_row(header->opcode);
        uint64_t ids[2] = {0};

        if (header->status) {
            CHECK(packet.body_size == sizeof(struct packet_refusal) && !packet.n_fds);
            CHECK(strcmp(hbm_error_name(header->status), "UNKNOWN") && memchr(packet.body, 0, packet.body_size));
            if (getenv("VERBOSE"))
                fprintf(stderr, "  opcode %u is refused: %s\n", header->opcode, (const char *)packet.body);
        } else if (row && row->opcode >= WIRE_EVENT_FIRST) {
            CHECK(!header->serial && packet.body_size == row->request_size && !packet.n_fds);
        } else {
            CHECK(row && header->serial && packet.body_size == row->reply_size && packet.n_fds <= row->fds_out_max);
            memcpy(ids, packet.body, packet.body_size < sizeof(ids) ? packet.body_size : sizeof(ids));
            know(&client->known, ids[1]);
            know(&client->known, ids[0]);
            if (header->opcode == WIRE_HELLO) {
                const struct wire_hello_reply *reply = (const void *)packet.body;
                client->session = reply->session;
                memcpy(client->secret, reply->secret, sizeof(client->secret));
            }
        }
        packet_close_fds(&packet);
    }
}

static void reach(struct client *client, struct wire_server *server)
{
    struct peer peer = {
        .who = client->who, .pid = client->pid, .pidfd = fcntl(client->life.pidfd, F_DUPFD_CLOEXEC, 3)};
    const int few = 4096; /* so that a client that does not read has answers waiting for it soon */
    int ends[2];

    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &few, sizeof(few)));
    client->fd = ends[0];
    client->link = link_new(server, ends[1], &peer);
    CHECK(client->link);
}

void client_connect(struct client *client, struct wire_server *server, struct principal who, int32_t pid)
{
    *client = (struct client){.reads = true, .who = who, .pid = pid};
    life_begin(&client->life);
    reach(client, server);
}

static void send_to(struct client *client, uint32_t opcode, const void *body, size_t size, const int *fds,
                    unsigned n)
{
    static uint32_t serial;
    struct packet_header header = {.opcode = opcode, .serial = wire_is_one_way(opcode) ? 0 : ++serial | 1};

    if (client->fd >= 0)
        (void)packet_send(client->fd, &header, body, size, fds, n);
}

void client_hello(struct client *client)
{
    struct wire_hello_request request = {.version = WIRE_VERSION};

    send_to(client, WIRE_HELLO, &request, sizeof(request), NULL, 0);
}

/* Of the ids that it knows those whose bit is set, then the slots that it says it maps something in. */
static int take_leases(struct input *in, const struct client *client, uint32_t *n)
{
    uint64_t said[16 + LOCKWORD_SLOTS / 64] = {0};
    unsigned chosen = take_byte(in) | (unsigned)take_byte(in) << 8;

    *n = 0;
    for (unsigned i = 0; i < 16; i++)
        if (chosen >> i & 1)
            said[(*n)++] = client->known.ids[(client->known.next - 1 - i) % 16];
    said[*n] = take_number(in);
    return memfd_sealed("leases", said, sizeof(said[0]) * (*n + LOCKWORD_SLOTS / 64));
}

void client_come_back(struct client *client, struct wire_server *server, struct input *in)
{
    struct wire_resume_request request = {.session = client->session, .version = WIRE_VERSION, .client = "back"};
    int fd = take_leases(in, client, &request.n_leases);

    memcpy(request.secret, client->secret, sizeof(request.secret));
    client->fd = fd_close(client->fd);
    reach(client, server);
    send_to(client, WIRE_RESUME, &request, sizeof(request), &fd, 1);
    close(fd);
}

/* The fds that the request takes, or others. */
static unsigned take_fds(struct input *in, const struct client *client, uint32_t opcode, int fds[4])
{
    uint8_t choice = take_byte(in);
    unsigned n = 0;

    if (choice < 0xf0 && opcode == WIRE_PUBLISH) {
        fds[n++] = take_table(in);
    } else if (choice < 0xf0 && opcode == WIRE_TRANSFER) {
        const struct known_ids *known = &client->known;
        struct wire_range ranges[2] = {{.buffer = known->ids[(known->next - 1 - (choice & 7)) % 16]},
                                       {.buffer = known->ids[(known->next - 1 - (choice >> 3 & 7)) % 16]}};
        ranges[0].bytes = take_number(in);
        ranges[1].file_offset = take_number(in);
        fds[n++] = memfd_create("file", MFD_CLOEXEC);
        fds[n++] = memfd_sealed("ranges", ranges, sizeof(ranges[0]) * (1 + (choice >> 6 & 1)));
    } else if (choice >= 0xf0) {
        while (n < (choice & 3u))
            fds[n++] = choice & 4 ? memfd_fixed("odd", 4096) : dup(choice & 8 ? client->life.pidfd : STDERR_FILENO);
    }
    return n;
}

void client_say(struct client *client, struct input *in, uint32_t opcode)
{
    unsigned char body[PACKET_BYTES_MAX] __attribute__((aligned(8))) = {0};
    const struct wire_row *row = wire_row(opcode);
    int fds[4];

    if (row)
        fill(in, &client->known, opcode, body);
    unsigned n = take_fds(in, client, opcode, fds);
    send_to(client, opcode, body, row ? row->request_size : take_byte(in), fds, n);
    while (n)
        fd_close(fds[--n]);
}

void client_say_noise(struct client *client, struct input *in)
{
    unsigned char bytes[512];
    size_t size = take_number(in) % (sizeof(bytes) + 1);

    take(in, bytes, size);
    if (client->fd >= 0)
        (void)send(client->fd, bytes, size, MSG_NOSIGNAL);
}

static struct link *link_of(struct wire_server *server, const struct client *client)
{
    list_for_each (node, &server->links)
        if (list_entry(node, struct link, node) == client->link)
            return client->link;
    return NULL;
}

void client_scribble(struct client *client, struct wire_server *server, struct input *in)
{
    struct link *link = link_of(server, client);
    uint8_t how = take_byte(in), slot = take_byte(in) & 7;

    if (!link || !link->session)
        return;
    _Atomic uint64_t *word = &link->session->words[slot];
    if (how < 0x60)
        lockword_lock(word);
    else if (how < 0xa0)
        lockword_unlock(word);
    else if (how < 0xe0 && lockword_try_release(word))
        send_to(client, WIRE_RELEASED, &(struct wire_released_request){.slot = slot}, 8, NULL, 0);
    else if (how >= 0xe0)
        *word = take_number(in);
}
