#include "tests/unit/fake_answers.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "proto/table.h"
#include "tests/unit/fake_daemon.h"

static void fake_send(const struct packet_header *header, const void *body, size_t size, const int *fds, unsigned n)
{
    packet_send(fake.socket, header, body, size, fds, n);
}

void fake_event(uint32_t opcode, const void *body)
{
    fake_send(&(struct packet_header){.opcode = opcode}, body, wire_row(opcode)->request_size, NULL, 0);
}

void ask_back(unsigned arena)
{
    lockword_request(&fake.words[SLOT(arena)]);
    fake_event(WIRE_RECLAIM, &(struct wire_reclaim_request){.slot = SLOT(arena)});
}

void fake_refuse(const struct packet_header *request, int error, const char *detail)
{
    struct packet_refusal refusal = {0};

    strcpy(refusal.detail, detail);
    fake_send(&(struct packet_header){.opcode = request->opcode, .serial = request->serial, .status = error},
              &refusal, sizeof(refusal), NULL, 0);
}

/* Other memory, same bytes. */
int fake_copy(unsigned arena)
{
    char bytes[BYTES];
    int fd = memfd_fixed("moved", BYTES);

    MUST(pread(fake.fds[arena], bytes, BYTES, 0) == BYTES);
    MUST(pwrite(fd, bytes, BYTES, 0) == BYTES);
    return fd;
}

static void fake_move(unsigned arena)
{
    int fd = fake_copy(arena);

    close(fake.fds[arena]);
    fake.fds[arena] = fd;
}

static void fake_attach(const struct packet_header *header, const struct wire_attach_request *request)
{
    struct wire_attach_reply reply = {0};
    unsigned arena = request->name[1] - '0';
    int fd;

    fake.attach_flags = request->flags;
    if (request->name[0] != 'b' || arena >= ARENAS)
        return fake_refuse(header, HBM_E_NOT_FOUND, "no buffer of that name");
    reply.grant = (struct wire_grant){
        .lease = ((uint64_t)(arena + 1) << 32) + fake.requests,
        .buffer = 100 + arena,
        .arena = 1000 + arena,
        .arena_size = BYTES,
        .offset = 256,
        .size = 4096,
        .slot = SLOT(arena),
        .access = request->access,
        .rank = 1,
        .dims = {4096},
        .present = !(request->flags & WIRE_UNLOCKED) || !fake.away[arena],
    };
    strcpy(reply.grant.name, request->name);
    fd = fake.move_in_attach ? dup(fake.fds[arena]) : fake.fds[arena];
    if (fake.move_in_attach) {
        /* Let go of before the reply goes out: the descriptor in it is of memory that the arena has left. */
        struct packet packet;
        ask_back(arena);
        MUST(packet_receive(fake.socket, &packet) == 0);
        MUST(packet.header.opcode == WIRE_RELEASED);
        fake_move(arena);
        fake.move_in_attach = false;
        fake.away[arena] = true;
    } else if (reply.grant.present) {
        fake.away[arena] = false;
    }
    fake_send(&(struct packet_header){.opcode = header->opcode, .serial = header->serial}, &reply, sizeof(reply),
              &fd, reply.grant.present);
    if (fd != fake.fds[arena])
        close(fd);
}

static int fake_table(bool building)
{
    struct table_builder builder = {0};
    char name[16];

    for (unsigned i = 0; i < ARENAS; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        table_add_arena(
            &builder, &(struct table_arena){.arena = 1000 + i, .size = BYTES, .slot = SLOT(i), .present = 1}, name);
        snprintf(name, sizeof(name), "t%u", i);
        table_add_buffer(
            &builder,
            &(struct table_buffer){.buffer = 100 + i, .arena = i, .size = 4096, .rank = 1, .dims = {4096}}, name);
    }
    if (!building)
        table_set_metadata(&builder, "{\"k\":1}", 7);
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    return fd;
}

/* Three descriptors a packet. */
static void fake_model(const struct packet_header *header, bool building)
{
    struct wire_attach_model_reply reply = {
        .lease = (uint64_t)99 << 32, .model = 5, .n_fds_total = ARENAS + 1, .must_build = building};
    int fds[ARENAS + 1] = {fake_table(building)};

    for (unsigned i = 0; i < ARENAS; i++)
        fds[i + 1] = fake.fds[i];
    for (unsigned at = 0; at < ARENAS + 1; at += 3) {
        struct packet_header packet = {
            .opcode = header->opcode, .serial = header->serial, .more = at + 3 < ARENAS + 1};
        fake_event(WIRE_OP_ENDED, &(struct wire_op_ended_request){0});
        fake_send(&packet, &reply, sizeof(reply), fds + at, 3);
    }
    close(fds[0]);
}

static void fake_lock(const struct packet_header *header, const struct wire_lock_request *request)
{
    struct wire_lock_reply reply = {.n = request->n};
    int fds[128];
    unsigned n = 0;

    fake.locks++;
    if (fake.ask_during_lock >= 0) {
        struct packet packet;
        ask_back((unsigned)fake.ask_during_lock);
        MUST(packet_receive(fake.socket, &packet) == 0);
        MUST(packet.header.opcode == WIRE_RELEASED);
        fake.away[fake.ask_during_lock] = true;
        fake.released++;
        fake.ask_during_lock = -1;
    }
    if (fake.refuse_lock)
        return fake_refuse(header, fake.refuse_lock, "the device is full of locked memory");
    for (unsigned i = 0; i < request->n; i++) {
        unsigned arena = request->slots[i] - 3;
        lockword_withdraw(&fake.words[request->slots[i]]);
        reply.fetched[i / 64] |= (uint64_t)1 << (i % 64);
        fake.away[arena] = false;
        fds[n++] = fake.fds[arena];
    }
    fake_send(&(struct packet_header){.opcode = header->opcode, .serial = header->serial}, &reply, sizeof(reply),
              fds, n);
}

static void fake_lock_early(const struct packet_header *header, const struct wire_lock_early_request *request)
{
    struct wire_lock_early_reply reply = {.coming = fake.comes};
    unsigned arena = request->slot - 3;

    fake.locks++;
    if (fake.refuse_lock)
        return fake_refuse(header, fake.refuse_lock, "the device is full of locked memory");
    if (fake.comes) {
        fake.early_fd = memfd_fixed("early", BYTES);
        fake.early_slot = request->slot;
    } else {
        fake.away[arena] = false;
    }
    fake_send(&(struct packet_header){.opcode = header->opcode, .serial = header->serial}, &reply, sizeof(reply),
              fake.comes ? &fake.early_fd : (int[]){fake.fds[arena]}, 1);
}

void fake_arrive(int error)
{
    struct packet_header header = {.opcode = WIRE_ARRIVED, .serial = fake.arriving};
    unsigned arena = fake.early_slot - 3;
    struct wire_arrived_reply reply = {0};
    char bytes[BYTES];

    fake.arriving = 0;
    if (error) {
        close(fake.early_fd);
        fake_refuse(&header, error, "it did not come");
        return;
    }
    MUST(pread(fake.fds[arena], bytes, BYTES, 0) == BYTES);
    MUST(pwrite(fake.early_fd, bytes, BYTES, 0) == BYTES);
    close(fake.fds[arena]);
    fake.fds[arena] = fake.early_fd;
    fake.away[arena] = false;
    fake_send(&header, &reply, sizeof(reply), NULL, 0);
}

static void fake_resume(const struct packet_header *header, struct packet *packet)
{
    const struct wire_resume_request *request = (const void *)packet->body;
    struct wire_resume_reply reply = {.n_devices = fake.n_devices, .n_lost = fake.lose};
    size_t size;
    int lost = -1;

    if (fake.refuse_resume)
        return fake_refuse(header, fake.refuse_resume, "no session of that id waits for you");
    MUST(request->session == 1 && request->secret[5] == 77 && request->version == WIRE_VERSION);
    uint64_t *ids = memfd_map_sealed(packet->fds[0], 1 << 20, &size);
    MUST(ids && size == request->n_leases * sizeof(*ids) + sizeof(fake.listed_slots) && request->n_leases <= 64);
    memcpy(fake.listed_ids, ids, request->n_leases * sizeof(*ids));
    memcpy(fake.listed_slots, ids + request->n_leases, sizeof(fake.listed_slots));
    munmap(ids, size);
    fake.listed = request->n_leases;
    if (fake.lose)
        lost = memfd_sealed("lost", fake.listed_ids, fake.lose * sizeof(*ids));
    fake.lose = 0;
    fake.resumes++;
    fake_event(WIRE_RECLAIM, &(struct wire_reclaim_request){.slot = 4000});
    fake_send(&(struct packet_header){.opcode = header->opcode, .serial = header->serial}, &reply, sizeof(reply),
              &lost, lost >= 0);
    if (lost >= 0)
        close(lost);
}

static void fake_hello(const struct packet_header *header, const struct wire_hello_request *request)
{
    struct wire_hello_reply reply = {
        .session = 1, .secret = {[5] = 77}, .slots = LOCKWORD_SLOTS, .n_devices = fake.n_devices};

    if (fake.refuse_hello || request->version != WIRE_VERSION)
        return fake_refuse(header, HBM_E_BAD_VERSION, "this daemon speaks version 2, you speak 1");
    fake_send(&(struct packet_header){.opcode = header->opcode, .serial = header->serial}, &reply, sizeof(reply),
              &fake.words_fd, 1);
}

static void fake_behind(const struct wire_behind_request *request)
{
    size_t at = strlen(fake.behind);

    for (uint32_t i = 0; i < request->n && at + 1 < sizeof(fake.behind); i++)
        fake.behind[at++] = (char)('0' + request->slots[i] - SLOT(0));
    fake.behind[at] = 0;
    fake.behinds++;
}

static void fake_order(const struct wire_order_request *request)
{
    MUST(request->at + request->n < sizeof(fake.order));
    for (uint32_t i = 0; i < request->n; i++)
        fake.order[request->at + i] = (char)('0' + request->slots[i] - SLOT(0));
    fake.order[request->at + request->n] = 0;
}

void fake_answer(struct packet *packet)
{
    const struct packet_header *header = &packet->header;
    struct packet_header answer = {.opcode = header->opcode, .serial = header->serial};
    union {
        unsigned char bytes[PACKET_BYTES_MAX];
        struct wire_device_reply device;
        struct wire_op_wait_reply wait;
        uint64_t op;
    } reply = {0};

    switch (header->opcode) {
    case WIRE_HELLO:
        return fake_hello(header, (void *)packet->body);
    case WIRE_RESUME:
        return fake_resume(header, packet);
    case WIRE_BYE:
        fake.byes++;
        break;
    case WIRE_ATTACH:
        return fake_attach(header, (void *)packet->body);
    case WIRE_ALLOC:
        return fake_attach(header, &(struct wire_attach_request){.access = HBM_RW, .name = "b0"});
    case WIRE_ATTACH_MODEL:
        return fake_model(header, false);
    case WIRE_PUBLISH:
        return fake_model(header, true);
    case WIRE_LOCK:
        return fake_lock(header, (void *)packet->body);
    case WIRE_LOCK_EARLY:
        return fake_lock_early(header, (void *)packet->body);
    case WIRE_ARRIVED:
        fake.arriving = header->serial;
        if (!fake.comes)
            fake_arrive(0);
        return;
    case WIRE_RELEASED:
        fake.away[((struct wire_released_request *)packet->body)->slot - 3] = true;
        fake_move(((struct wire_released_request *)packet->body)->slot - 3);
        fake.released++;
        return;
    case WIRE_AHEAD:
        fake.ahead = *(struct wire_ahead_request *)packet->body;
        fake.aheads++;
        return;
    case WIRE_BEHIND:
        fake_behind((void *)packet->body);
        return;
    case WIRE_ORDER:
        fake_order((void *)packet->body);
        return;
    case WIRE_WINDOW:
        if (fake.refuse_window)
            return fake_refuse(header, fake.refuse_window, "too much");
        break;
    case WIRE_DETACH:
        fake.detached++;
        break;
    case WIRE_COMMIT:
        fake.commits++;
        break;
    case WIRE_DEVICE:
        MUST(((struct wire_device_request *)packet->body)->index < fake.n_devices);
        strcpy(reply.device.uuid, "host");
        if (((struct wire_device_request *)packet->body)->index)
            strcpy(reply.device.uuid, "host1");
        if (fake.cuda)
            strcpy(reply.device.uuid, "GPU-00000000-0000-0000-0000-000000000000");
        reply.device.is_cuda = fake.cuda;
        strcpy(reply.device.name, "host memory");
        reply.device.ready = 1;
        break;
    case WIRE_TRANSFER:
        if (fake.knows_no_buffer)
            return fake_refuse(header, HBM_E_NOT_FOUND, "a buffer that is named");
        reply.op = 77;
        break;
    case WIRE_OFFLOAD:
        reply.op = 77;
        break;
    case WIRE_OP_WAIT:
        reply.wait.state =
            ((struct wire_op_wait_request *)packet->body)->timeout_ms ? WIRE_OP_DONE : WIRE_OP_RUNNING;
        reply.wait.bytes_done = 5;
        break;
    }
    fake_send(&answer, &reply, wire_row(header->opcode)->reply_size, NULL, 0);
}
