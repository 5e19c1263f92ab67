/* The closer: it closes what it is given, in its own time, and nobody waits for it. A socket that lingers takes as
 * long to close as its peer likes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/closer.h"

static sem_t closed;
static unsigned told;

static void notify(void *context)
{
    (void)context;
    sem_post(&closed);
}

static void count(void *argument)
{
    told += *(unsigned *)argument;
}

static int begin(void **state)
{
    (void)state;
    told = 0;
    return sem_init(&closed, 0, 0);
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Its close waits until the peer has read what it sent, or is gone. */
static int lingering(int *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct linger linger = {.l_onoff = 1, .l_linger = 60};
    socklen_t size = sizeof(address);
    static char bytes[1 << 16];
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, size), 0);
    *peer = accept(listener, NULL, NULL);
    close(listener);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (send(fd, bytes, sizeof(bytes), 0) > 0) {
    }
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void it_closes_what_it_is_given_and_says_so_when_asked(void **state)
{
    (void)state;
    struct closer *closer = closer_new(notify, NULL);
    int fds[3] = {dup(0), dup(0), dup(0)};
    unsigned values[3] = {1, 10, 100};

    for (unsigned i = 0; i < 3; i++)
        closer_put(closer, fds[i], count, &values[i]);
    for (unsigned i = 0; i < 3; i++)
        sem_wait(&closed);
    assert_int_equal(told, 0);
    assert_int_equal(closer_pending(closer), 3);
    closer_reap(closer);
    assert_int_equal(told, 111);
    assert_int_equal(closer_pending(closer), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_false(is_open(fds[i]));
    closer_put(closer, dup(0), NULL, NULL); /* nobody wants to know */
    sem_wait(&closed);
    closer_reap(closer);
    assert_int_equal(closer_pending(closer), 0);
    assert_null(closer_free(closer));
    assert_null(closer_free(NULL));
}

static void a_close_that_hangs_holds_up_its_own_queue_alone(void **state)
{
    (void)state;
    struct closer *stuck = closer_new(notify, NULL), *other = closer_new(notify, NULL);
    unsigned one = 1, ten = 10, hundred = 100;
    int peer, fd = lingering(&peer), behind = dup(0);
    double start = seconds();

    closer_put(stuck, fd, count, &one);
    closer_put(stuck, behind, count, &ten);
    closer_put(other, dup(0), count, &hundred);
    sem_wait(&closed);
    closer_reap(stuck);
    closer_reap(other);
    assert_int_equal(told, 100);
    assert_int_equal(closer_pending(stuck), 2);
    assert_true(is_open(behind));
    assert_true(seconds() - start < 30); /* the linger time is a minute */
    close(peer);
    sem_wait(&closed);
    sem_wait(&closed);
    closer_reap(stuck);
    assert_int_equal(told, 111);
    closer_free(stuck);
    closer_free(other);
}

static void its_end_waits_for_no_close_and_tells_nobody(void **state)
{
    (void)state;
    struct closer *closer = closer_new(notify, NULL);
    unsigned one = 1;
    int peer, fd = lingering(&peer), behind[2];
    struct pollfd hangs_up = {.events = POLLIN};
    double start = seconds();

    assert_int_equal(pipe(behind), 0);
    closer_put(closer, fd, count, &one);
    closer_put(closer, behind[1], count, &one);
    closer_free(closer);
    assert_true(seconds() - start < 30);
    close(peer);
    hangs_up.fd = behind[0];
    assert_int_equal(poll(&hangs_up, 1, 30000), 1); /* it is closed all the same */
    close(behind[0]);
    assert_int_equal(told, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_closes_what_it_is_given_and_says_so_when_asked, begin),
        cmocka_unit_test_setup(a_close_that_hangs_holds_up_its_own_queue_alone, begin),
        cmocka_unit_test_setup(its_end_waits_for_no_close_and_tells_nobody, begin),
    };

    return cmocka_run_group_tests_name("closer", tests, NULL, NULL);
}
