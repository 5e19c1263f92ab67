/* A daemon of a few hundred lines for libhbm's tests: speaks the protocol with memfds, and misbehaves when told to.
 * Buffer "bN" is arena N in slot N + 3; "model" has all arenas, tensors "t0".. in groups "g0".. . One session at a
 * time. */
#pragma once

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/hbm.h"
#include "proto/lockword.h"
#include "proto/memfd.h"
#include "proto/messages.h"
#include "proto/table.h"

/* cmocka's asserts jump, which only the test's own thread may do: in others this ends the program. */
#define MUST(condition)                                                                                            \
    do {                                                                                                           \
        if (!(condition)) {                                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, hbm_last_error_detail());           \
            abort();                                                                                               \
        }                                                                                                          \
    } while (0)

#define ARENAS 8
#define BYTES 8192
#define SLOT(arena) ((arena) + 3)

static struct {
    char dir[64];
    int listener, words_fd;
    _Atomic int socket;
    pthread_t thread;
    _Atomic uint64_t *words;
    _Atomic int fds[ARENAS];
    _Atomic bool away[ARENAS];
    _Atomic unsigned requests, detached, released, locks, commits;
    _Atomic uint32_t attach_flags; /* of the last */
    /* what it is told to do */
    _Atomic bool defer;       /* the next reply goes out after the one that follows it */
    _Atomic bool event_first; /* an event before each reply */
    _Atomic bool vanish;      /* GOODBYE and close at the next ATTACH */
    _Atomic int refuse_lock;  /* error of every LOCK */
    _Atomic bool refuse_hello;
    _Atomic bool move_in_attach; /* between an ATTACH and its reply the arena moves */
    _Atomic int ask_during_lock; /* arena asked back while a LOCK waits, -1 none */
    _Atomic unsigned cut_at;     /* opcode: the next such request is read, and the process dies */
    _Atomic unsigned cut_after;  /* likewise, its reply having been sent */
    _Atomic bool dying;          /* cut_after is at work: test_resume.c's readers are slow meanwhile */
    _Atomic bool hang_up;        /* on all who connect */
    _Atomic int refuse_resume;   /* error of every RESUME */
    _Atomic unsigned n_devices;  /* "host", "host1", ... */
    _Atomic bool stopping;       /* refuses ATTACH, then goes */
    _Atomic bool cuda;           /* its device is a GPU */
    _Atomic bool comes;          /* LOCK_EARLY gives memory without its bytes; ARRIVED is not answered before fake_arrive */
    int early_fd;
    _Atomic uint32_t early_slot, arriving; /* arriving: serial of the ARRIVED that waits, 0 none */
    _Atomic unsigned lose;       /* of the leases in a RESUME, the first so many are unknown */
    /* what RESUME said */
    _Atomic unsigned connects, resumes, listed, byes;
    uint64_t listed_ids[64], listed_slots[LOCKWORD_SLOTS / 64];
    /* what AHEAD said last */
    _Atomic unsigned aheads;
    struct wire_ahead_request ahead;
    /* and BEHIND, all of it since it was last set to "" */
    _Atomic unsigned behinds;
    char behind[256];
    char order[32];
    _Atomic int refuse_window; /* error of every WINDOW */
    _Atomic bool knows_no_buffer; /* that a TRANSFER names */
} fake;

static void fake_send(const struct packet_header *header, const void *body, size_t size, const int *fds, unsigned n)
{
    packet_send(fake.socket, header, body, size, fds, n);
}

static void fake_event(uint32_t opcode, const void *body)
{
    fake_send(&(struct packet_header){.opcode = opcode}, body, wire_row(opcode)->request_size, NULL, 0);
}

static inline void ask_back(unsigned arena)
{
    lockword_request(&fake.words[SLOT(arena)]);
    fake_event(WIRE_RECLAIM, &(struct wire_reclaim_request){.slot = SLOT(arena)});
}

static void fake_refuse(const struct packet_header *request, int error, const char *detail)
{
    struct packet_refusal refusal = {0};

    strcpy(refusal.detail, detail);
    fake_send(&(struct packet_header){.opcode = request->opcode, .serial = request->serial, .status = error},
              &refusal, sizeof(refusal), NULL, 0);
}

/* Other memory, same bytes. */
static int fake_copy(unsigned arena)
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

/* The bytes are there, or never will be. */
static void fake_arrive(int error)
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

/* Answers if told to, then the process dies, and another starts that goes by what the words say. An arena that is
 * mapped nowhere has moved before its client turns round. */
static void fake_answer(struct packet *packet);
static void fake_die(struct packet *last)
{
    int copies[ARENAS];

    for (unsigned i = 0; i < ARENAS; i++)
        copies[i] = fake_copy(i);
    fake.dying = last;
    if (last)
        fake_answer(last);
    shutdown(fake.socket, SHUT_RDWR);
    for (unsigned i = 0; i < ARENAS; i++) {
        bool away = lockword_withdraw(&fake.words[SLOT(i)]) & LOCKWORD_AWAY;
        int old = away ? fake.fds[i] : copies[i];
        if (away)
            fake.fds[i] = copies[i];
        fake.away[i] = away;
        copies[i] = old;
    }
    for (unsigned i = 0; i < ARENAS; i++)
        close(copies[i]);
    fake.dying = false;
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

static void fake_answer(struct packet *packet)
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

static void fake_step(struct packet *packet)
{
    static struct packet held;
    static bool holding;

    if (packet->header.opcode == WIRE_ATTACH && fake.vanish) {
        fake_event(WIRE_GOODBYE,
                   &(struct wire_goodbye_request){.error = HBM_E_LIMIT, .detail = "you ask too much"});
        shutdown(fake.socket, SHUT_RDWR);
        return;
    }
    if (packet->header.opcode == WIRE_ATTACH && fake.stopping) {
        fake.stopping = false;
        fake_refuse(&packet->header, HBM_E_SHUTTING_DOWN, "nothing new is granted");
        usleep(20000);
        fake_event(WIRE_GOODBYE, &(struct wire_goodbye_request){.error = HBM_E_SHUTTING_DOWN});
        shutdown(fake.socket, SHUT_RDWR);
        return;
    }
    if (packet->header.opcode == fake.cut_at) {
        fake.cut_at = 0;
        fake_die(NULL);
        return;
    }
    if (fake.event_first && packet->header.serial)
        fake_event(WIRE_RECLAIM, &(struct wire_reclaim_request){.slot = 4000});
    if (fake.defer && packet->header.opcode == WIRE_ATTACH) {
        held = *packet;
        holding = true;
        fake.defer = false;
        return;
    }
    if (packet->header.opcode == fake.cut_after) {
        fake.cut_after = 0;
        fake_die(packet);
        return;
    }
    fake_answer(packet);
    if (holding) {
        holding = false;
        fake_answer(&held);
    }
}

static void *fake_run(void *unused)
{
    static struct packet packet;

    (void)unused;
    while ((fake.socket = accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        fake.connects++;
        while (!fake.hang_up && packet_receive(fake.socket, &packet) == 0) {
            fake.requests++;
            fake_step(&packet);
            packet_close_fds(&packet);
        }
        close(atomic_exchange(&fake.socket, -1));
    }
    return NULL;
}

static inline int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, path);
    MUST(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    MUST(listen(fd, 8) == 0);
    return fd;
}

static int start_fake(void **state)
{
    char path[96];

    (void)state;
    memset(&fake, 0, sizeof(fake));
    fake.ask_during_lock = fake.socket = -1;
    fake.n_devices = 1;
    strcpy(fake.dir, "/tmp/test_libhbm.XXXXXX");
    MUST(mkdtemp(fake.dir));
    snprintf(path, sizeof(path), "%s/hbmd.sock", fake.dir);
    fake.listener = listen_at(path);
    fake.words_fd = memfd_fixed("words", LOCKWORD_PAGE_BYTES);
    fake.words = mmap(NULL, LOCKWORD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fake.words_fd, 0);
    for (unsigned i = 0; i < ARENAS; i++) {
        fake.fds[i] = memfd_fixed("arena", BYTES);
        fake.away[i] = false;
    }
    return pthread_create(&fake.thread, NULL, fake_run, NULL);
}

static int stop_fake(void **state)
{
    char path[96];

    (void)state;
    shutdown(fake.listener, SHUT_RDWR);
    if (fake.socket >= 0)
        shutdown(fake.socket, SHUT_RDWR); /* of a test that failed with its session open */
    pthread_join(fake.thread, NULL);
    close(fake.listener);
    close(fake.words_fd);
    munmap((void *)fake.words, LOCKWORD_PAGE_BYTES);
    for (unsigned i = 0; i < ARENAS; i++)
        close(fake.fds[i]);
    snprintf(path, sizeof(path), "%s/hbmd.sock", fake.dir);
    unlink(path);
    rmdir(fake.dir);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_fake, stop_fake)

/* ---- Helpers ---- */

static hbm_session *open_with(unsigned flags)
{
    hbm_session *session;

    MUST(hbm_open(&(struct hbm_options){.runtime_dir = fake.dir, .flags = flags}, &session) == 0);
    return session;
}

static inline hbm_lease *attach(hbm_session *session, const char *name)
{
    hbm_lease *lease = NULL;

    MUST(hbm_attach(session, name, HBM_RW, 0, 1000, &lease) == 0);
    return lease;
}

#define EVENTUALLY(condition)                                                                                      \
    do {                                                                                                           \
        for (int tries_ = 0; tries_ < 4000 && !(condition); tries_++)                                              \
            usleep(1000);                                                                                          \
        MUST(condition);                                                                                           \
    } while (0)

static inline bool is_mapped(const void *address)
{
    return msync((void *)((uintptr_t)address & ~(uintptr_t)4095), 4096, MS_ASYNC) == 0;
}

static inline uint64_t word_of(unsigned arena)
{
    return fake.words[SLOT(arena)];
}

static inline unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}
