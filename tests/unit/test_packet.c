/* packet.c: one packet, one message, its fds; and that no fd is lost or leaked whatever the peer sends. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/packet.h"

struct pair {
    int here, there, fds_before;
};

static int open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(directory))
        n++;
    closedir(directory);
    return n;
}

static int make_pair(void **state)
{
    struct pair *pair = calloc(1, sizeof(*pair));
    int ends[2];

    pair->fds_before = open_fds();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    pair->here = ends[0];
    pair->there = ends[1];
    *state = pair;
    return 0;
}

static int end_pair(void **state)
{
    struct pair *pair = *state;
    int before = pair->fds_before;

    close(pair->here);
    close(pair->there);
    free(pair);
    return open_fds() == before ? 0 : -1;
}

static struct packet packet;

static void a_message_arrives_whole_with_its_fds_close_on_exec(void **state)
{
    struct pair *pair = *state;
    struct packet_header header = {.opcode = 7, .serial = 9, .status = -3, .more = 1};
    int fds[3] = {0, 1, 2};

    assert_int_equal(packet_send(pair->here, &header, "abc", 3, fds, 3), 0);
    assert_int_equal(packet_receive(pair->there, &packet), 0);
    assert_int_equal(packet.header.opcode, 7);
    assert_int_equal(packet.header.serial, 9);
    assert_int_equal(packet.header.status, -3);
    assert_int_equal(packet.header.more, 1);
    assert_int_equal(packet.body_size, 3);
    assert_memory_equal(packet.body, "abc", 3);
    assert_int_equal(packet.n_fds, 3);
    assert_true(fcntl(packet.fds[0], F_GETFD) & FD_CLOEXEC);
    int taken = packet_take_fd(&packet, 1);
    assert_int_equal(packet_take_fd(&packet, 3), -1);
    packet_close_fds(&packet);
    assert_true(fcntl(taken, F_GETFD) >= 0);
    close(taken);
}

static void the_most_fds_and_the_largest_body_pass_and_one_more_does_not(void **state)
{
    static unsigned char body[PACKET_BYTES_MAX];
    struct pair *pair = *state;
    struct packet_header header = {.opcode = 1};
    int fds[PACKET_FDS_MAX + 1] = {0};
    size_t most = PACKET_BYTES_MAX - sizeof(header);

    assert_int_equal(packet_send(pair->here, &header, body, most, fds, PACKET_FDS_MAX), 0);
    assert_int_equal(packet_receive(pair->there, &packet), 0);
    assert_int_equal(packet.n_fds, PACKET_FDS_MAX);
    assert_int_equal(packet.body_size, most);
    packet_close_fds(&packet);
    assert_int_equal(packet_send(pair->here, &header, body, most + 1, NULL, 0), -EMSGSIZE);
    assert_int_equal(packet_send(pair->here, &header, body, 0, fds, PACKET_FDS_MAX + 1), -EMSGSIZE);
}

static void empty_short_and_oversized_packets_are_told_apart(void **state)
{
    static unsigned char bytes[PACKET_BYTES_MAX + 1];
    struct pair *pair = *state;

    assert_int_equal(packet_receive(pair->there, &packet), -EAGAIN);
    send(pair->here, bytes, 15, 0);
    assert_int_equal(packet_receive(pair->there, &packet), -EPROTO);
    send(pair->here, bytes, 16, 0);
    assert_int_equal(packet_receive(pair->there, &packet), 0);
    assert_int_equal(packet.body_size, 0);
    send(pair->here, bytes, PACKET_BYTES_MAX + 1, 0);
    assert_int_equal(packet_receive(pair->there, &packet), -EPROTO);
    send(pair->here, bytes, 0, 0);
    assert_int_equal(packet_receive(pair->there, &packet), -EPIPE);
}

static void a_header_that_miscounts_its_fds_is_refused_and_they_are_closed(void **state)
{
    struct pair *pair = *state;
    struct packet_header header = {.opcode = 1, .n_fds = 3};
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec part = {&header, sizeof(header)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    int fds[2] = {0, 0}, before = open_fds();

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(c), fds, sizeof(fds));
    assert_int_equal(sendmsg(pair->here, &message, 0), sizeof(header));
    assert_int_equal(packet_receive(pair->there, &packet), -EPROTO);
    assert_int_equal(packet.n_fds, 0);
    assert_int_equal(open_fds(), before);
}

static void a_receiver_out_of_fds_says_so_and_keeps_none(void **state)
{
    struct pair *pair = *state;
    struct packet_header header = {.opcode = 1};
    struct rlimit limit, tight;
    int fds[8] = {0}, before = open_fds();

    assert_int_equal(packet_send(pair->here, &header, NULL, 0, fds, 8), 0);
    getrlimit(RLIMIT_NOFILE, &limit);
    tight = limit;
    tight.rlim_cur = (rlim_t)pair->there + 3;
    setrlimit(RLIMIT_NOFILE, &tight);
    int error = packet_receive(pair->there, &packet);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(error, -EMFILE);
    assert_int_equal(packet.n_fds, 0);
    assert_int_equal(open_fds(), before);
}

static void a_full_socket_would_block_and_a_closed_one_is_gone(void **state)
{
    static unsigned char body[4096];
    struct pair *pair = *state;
    struct packet_header header = {.opcode = 1};
    int error = 0, sent = 0, closed[2];

    while (!(error = packet_send(pair->here, &header, body, sizeof(body), NULL, 0)))
        sent++;
    assert_int_equal(error, -EAGAIN);
    assert_true(sent > 10);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, closed), 0);
    close(closed[1]);
    assert_int_equal(packet_send(closed[0], &header, NULL, 0, NULL, 0), -EPIPE);
    assert_int_equal(packet_receive(closed[0], &packet), -EPIPE);
    close(closed[0]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_pair, end_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_message_arrives_whole_with_its_fds_close_on_exec),
        TEST(the_most_fds_and_the_largest_body_pass_and_one_more_does_not),
        TEST(empty_short_and_oversized_packets_are_told_apart),
        TEST(a_header_that_miscounts_its_fds_is_refused_and_they_are_closed),
        TEST(a_receiver_out_of_fds_says_so_and_keeps_none),
        TEST(a_full_socket_would_block_and_a_closed_one_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
