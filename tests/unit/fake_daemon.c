#include "tests/unit/fake_daemon.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "tests/unit/fake_answers.h"

struct fake fake;

/* Answers if told to, then the process dies, and another starts that goes by what the words say. An arena that is
 * mapped nowhere has moved before its client turns round. */
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

int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, path);
    MUST(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    MUST(listen(fd, 8) == 0);
    return fd;
}

int start_fake(void **state)
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

int stop_fake(void **state)
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

void daemon_dies(void)
{
    int socket = fake.socket;

    if (socket >= 0)
        shutdown(socket, SHUT_RDWR);
}

void daemon_moves(bool away)
{
    char here[96], there[96];

    snprintf(here, sizeof(here), "%s/hbmd.sock", fake.dir);
    snprintf(there, sizeof(there), "%s/away.sock", fake.dir);
    MUST(rename(away ? here : there, away ? there : here) == 0);
}
