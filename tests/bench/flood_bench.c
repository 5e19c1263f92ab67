/* One client's request while another floods the daemon, beside the same with nobody else there: batches take turns
 * in the same run, the flooding process stopped for the quiet ones. The flooder runs as the same user, so what
 * keeps the two apart is the turns that the daemon gives to connections, not an account. usage: flood_bench */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/messages.h"
#include "proto/packet.h"
#include "tests/bench/bench.h"

#define BATCHES 20u
#define BATCH 200u
#define SAMPLES ((size_t)BATCHES * BATCH)
#define SUBSCRIBERS 8

static int connect_to(const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", getenv("HBM_RUNTIME_DIR"), name);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return close(fd), -1;
    return fd;
}

static void wait_for(int fd, short events)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};

    poll(&poll_fd, 1, 1000);
}

static int greeted(void)
{
    static struct packet packet;
    struct packet_header header = {.opcode = WIRE_HELLO, .serial = 1};
    struct wire_hello_request hello = {.version = WIRE_VERSION, .client = "flood"};
    int fd = connect_to("hbmd.sock", SOCK_SEQPACKET);

    if (fd < 0 || packet_send(fd, &header, &hello, sizeof(hello), NULL, 0) || packet_receive(fd, &packet))
        return close(fd), -1;
    packet_close_fds(&packet);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static int ask(int fd)
{
    struct packet_header header = {.opcode = WIRE_DEVICE, .serial = 2};
    struct wire_device_request device = {0};

    return packet_send(fd, &header, &device, sizeof(device), NULL, 0);
}

/* As many requests as the sockets hold, all the time. */
static void pipeline(void)
{
    unsigned char reply[PACKET_BYTES_MAX];
    int fd = greeted();

    for (;;) {
        while (!ask(fd))
            ;
        wait_for(fd, POLLIN);
        while (recv(fd, reply, sizeof(reply), 0) > 0)
            ;
    }
}

/* Requests whose answers nobody reads, until it is dropped or the daemon looks away; then the next. */
static void unread(void)
{
    for (;;) {
        int fd = greeted();
        for (unsigned i = 0; i < 5000 && !ask(fd); i++)
            ;
        close(fd);
    }
}

static void connects(void)
{
    for (;;)
        close(connect_to("hbmd.sock", SOCK_SEQPACKET));
}

/* Events for subscribers that do not read them. */
static void subscriptions(void)
{
    static const char subscribe[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hbm.subscribe\"}\n";
    hbm_session *session = bench_open(0);

    for (unsigned i = 0; i < SUBSCRIBERS; i++) {
        int fd = connect_to("control.sock", SOCK_STREAM);
        if (fd < 0 || send(fd, subscribe, strlen(subscribe), 0) < 0)
            perror("control.sock"), exit(1);
    }
    for (;;) {
        struct hbm_spec spec = {.size = 4096, .dtype = HBM_U8, .device = HBM_DEVICE_ANY};
        hbm_lease *lease = NULL;
        bench_must(hbm_alloc(session, &spec, &lease), "hbm_alloc");
        bench_must(hbm_detach(lease), "hbm_detach");
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} floods[] = {
    {"pipelined requests", pipeline},
    {"requests whose answers it does not read", unread},
    {"connects", connects},
    {"allocations, with 8 subscribers that do not read", subscriptions},
};

static void batch(hbm_session *session, double *samples)
{
    struct hbm_device_info info;

    for (unsigned i = 0; i < BATCH; i++) {
        double start = bench_now();
        bench_must(hbm_device_get(session, 0, &info), "hbm_device_get");
        samples[i] = bench_now() - start;
    }
}

static void measure(const char *name, void (*run)(void))
{
    static double quiet[SAMPLES], flooded[SAMPLES];
    char what[128];
    struct bench_row row = {.what = what,
                            .unit = "us",
                            .beside_what = "p99 with nobody else",
                            .aim = BENCH_OURS_AT_MOST,
                            .bound = 10000};
    pid_t child = fork(); /* before the session: its thread does not survive a fork */

    if (child == 0) {
        if (freopen("/dev/null", "w", stderr))
            run();
        _exit(1);
    }
    hbm_session *session = bench_open(0);
    usleep(100000); /* it has begun */
    for (size_t at = 0; at < SAMPLES; at += BATCH) {
        kill(child, SIGSTOP);
        usleep(5000); /* what it asked is answered */
        batch(session, quiet + at);
        kill(child, SIGCONT);
        usleep(2000);
        batch(session, flooded + at);
    }
    if (waitpid(child, NULL, WNOHANG) != 0)
        fprintf(stderr, "the flood of %s ended by itself\n", name), exit(1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    snprintf(what, sizeof(what), "request while another floods with %s, p99", name);
    bench_take(&row, flooded, SAMPLES, 0.99, 1e6);
    row.beside = bench_quantile(quiet, SAMPLES, 0.99) * 1e6;
    bench_print(&row);
    hbm_close(session);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof(floods) / sizeof(floods[0]); i++)
        measure(floods[i].name, floods[i].run);
    return 0;
}
