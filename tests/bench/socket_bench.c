/* A request's round trip, beside a bare SEQPACKET ping-pong of the same packet sizes between two processes. Both pairs
 * run on the same cores: once all on one, once each side on its own, since waking another core takes longer than all the
 * rest. Batches take turns, so that a change of the machine's mood hits both. usage: socket_bench DAEMON_PID */
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/messages.h"
#include "proto/packet.h"
#include "tests/bench/bench.h"

#define BATCHES 40u
#define BATCH 500u
#define SAMPLES ((size_t)BATCHES * BATCH)

static const size_t request_bytes = sizeof(struct packet_header) + sizeof(struct wire_device_request);
static const size_t reply_bytes = sizeof(struct packet_header) + sizeof(struct wire_device_reply);

static void echo(int socket)
{
    unsigned char packet[512];

    while (recv(socket, packet, sizeof(packet), 0) > 0)
        if (send(socket, packet, reply_bytes, MSG_NOSIGNAL) < 0)
            break;
    _exit(0);
}

static int start_echo(pid_t *child)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 || (*child = fork()) < 0)
        perror("bare ping-pong"), exit(1);
    if (*child == 0) {
        close(pair[0]);
        echo(pair[1]);
    }
    close(pair[1]);
    return pair[0];
}

static void bare(int socket, double *samples)
{
    unsigned char packet[512] = {0};

    for (unsigned i = 0; i < BATCH; i++) {
        double start = bench_now();
        if (send(socket, packet, request_bytes, 0) < 0 || recv(socket, packet, sizeof(packet), 0) <= 0)
            perror("bare ping-pong"), exit(1);
        samples[i] = bench_now() - start;
    }
}

static void device(hbm_session *session, double *samples)
{
    struct hbm_device_info info;

    for (unsigned i = 0; i < BATCH; i++) {
        double start = bench_now();
        bench_must(hbm_device_get(session, 0, &info), "hbm_device_get");
        samples[i] = bench_now() - start;
    }
}

/* The mapping is there already, held by another lease: what remains is the two round trips. */
static void attach(hbm_session *session, double *samples)
{
    for (unsigned i = 0; i < BATCH; i++) {
        hbm_lease *lease;
        double start = bench_now();
        bench_must(hbm_attach(session, "bench-socket", HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
        samples[i] = bench_now() - start;
        bench_must(hbm_detach(lease), "hbm_detach");
    }
}

static void pin(pid_t pid, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(pid, sizeof(set), &set) < 0)
        perror("sched_setaffinity"), exit(1);
}

static void row(const char *call, const char *where, double *ours, double *beside, double part, double bound)
{
    char what[96];
    struct bench_row row = {
        .what = what, .unit = "us", .beside_what = "bare ping-pong", .aim = BENCH_RATIO_AT_MOST, .bound = bound};

    snprintf(what, sizeof(what), "%s, %s, p%.0f", call, where, 100 * part);
    bench_take(&row, ours, SAMPLES, part, 1e6);
    row.beside = bench_quantile(beside, SAMPLES, part) * 1e6;
    bench_print(&row);
}

static void measure(hbm_session *session, int socket, const char *where)
{
    static double ping[SAMPLES], round_trip[SAMPLES], cached[SAMPLES], warm[BATCH];

    bare(socket, warm), device(session, warm), attach(session, warm);
    for (size_t at = 0; at < SAMPLES; at += BATCH) {
        bare(socket, ping + at);
        device(session, round_trip + at);
        attach(session, cached + at);
    }
    row("request round trip", where, round_trip, ping, 0.5, 1.5);
    row("request round trip", where, round_trip, ping, 0.99, 2);
    row("attach of what is mapped", where, cached, ping, 0.5, 1.5);
    row("attach of what is mapped", where, cached, ping, 0.99, 2);
}

int main(int argc, char **argv)
{
    cpu_set_t allowed;
    pid_t child, daemon;
    int cpus[2] = {-1, -1};

    if (argc != 2) {
        fprintf(stderr, "usage: socket_bench DAEMON_PID\n");
        return 2;
    }
    daemon = (pid_t)strtol(argv[1], NULL, 10);
    if (sched_getaffinity(daemon, sizeof(allowed), &allowed) < 0)
        return perror("sched_getaffinity"), 1;
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[n++] = cpu;
    int socket = start_echo(&child); /* before the session: its threads do not survive a fork */
    pin(0, cpus[0]);                 /* before it too: its thread stays with this one */
    hbm_session *session = bench_open(0);
    hbm_lease *held;

    bench_make(session, "bench-socket", 1 << 20);
    bench_must(hbm_attach(session, "bench-socket", HBM_RO, 0, HBM_FOREVER, &held), "hbm_attach");
    pin(child, cpus[0]), pin(daemon, cpus[0]);
    measure(session, socket, "one core");
    if (cpus[1] >= 0) {
        pin(child, cpus[1]), pin(daemon, cpus[1]);
        measure(session, socket, "two cores");
    }
    sched_setaffinity(daemon, sizeof(allowed), &allowed);
    bench_must(hbm_detach(held), "hbm_detach");
    bench_drop(session, "bench-socket");
    hbm_close(session);
    close(socket);
    waitpid(child, NULL, 0);
    return 0;
}
