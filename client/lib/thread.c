/* The session's own thread: reader of last resort. It sleeps without a timer until something comes unasked. */
#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>

#include "client/lib/error.h"
#include "client/lib/session.h"

#define STACK_BYTES ((size_t)256 * 1024) /* a packet, and what the CUDA driver needs to unmap */

static void *run(void *argument)
{
    hbm_session *session = argument;
    struct epoll_event event;

    while (!session->closing)
        if (epoll_wait(session->conn.epoll, &event, 1, -1) == 1 && !session->closing)
            session_dispatch(session);
    return NULL;
}

int thread_start(hbm_session *session)
{
    pthread_attr_t attributes;
    sigset_t all, old;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int number = pthread_create(&session->thread, &attributes, run, session);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    if (number)
        return set_system_error("pthread_create", number);
    pthread_setname_np(session->thread, "hbm-events");
    session->has_thread = true;
    return 0;
}

void thread_stop(hbm_session *session)
{
    if (!session->has_thread)
        return;
    session->closing = true;
    conn_wake(&session->conn);
    pthread_join(session->thread, NULL);
    session->has_thread = false;
}
