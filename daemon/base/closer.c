#include "daemon/base/closer.h"

#include <pthread.h>
#include <signal.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/list.h"

struct closing {
    struct list node;
    int fd;
    void (*closed)(void *argument);
    void *argument;
};

struct closer {
    void (*notify)(void *context);
    void *context;
    unsigned pending; /* the caller's thread alone */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct list queue, done;
    pthread_t thread;
    bool running;   /* there is a thread: from the first fd on */
    bool closing;   /* it is in a close */
    bool abandoned; /* it ends when the queue is empty, and frees us unless it is waited for */
    bool waited_for;
};

static struct closer *destroy(struct closer *closer)
{
    struct list *node;

    while ((node = list_first(&closer->done))) {
        list_unlink(node);
        free(list_entry(node, struct closing, node));
    }
    pthread_cond_destroy(&closer->changed);
    pthread_mutex_destroy(&closer->mutex);
    free(closer);
    return NULL;
}

/* With the mutex held. */
static void close_first(struct closer *closer, struct list *node)
{
    struct closing *closing = list_entry(node, struct closing, node);

    list_unlink(node);
    closer->closing = true;
    pthread_mutex_unlock(&closer->mutex);
    closing->fd = fd_close(closing->fd);
    pthread_mutex_lock(&closer->mutex);
    closer->closing = false;
    list_append(&closer->done, node);
    if (!closer->abandoned)
        closer->notify(closer->context);
}

static void *closer_main(void *argument)
{
    struct closer *closer = argument;

    pthread_mutex_lock(&closer->mutex);
    for (;;) {
        struct list *node = list_first(&closer->queue);
        if (node)
            close_first(closer, node);
        else if (closer->abandoned)
            break;
        else
            pthread_cond_wait(&closer->changed, &closer->mutex);
    }
    bool left_alone = !closer->waited_for;
    pthread_mutex_unlock(&closer->mutex);
    if (left_alone)
        destroy(closer);
    return NULL;
}

/* Every signal is the loop's. */
static bool start_thread(struct closer *closer)
{
    pthread_attr_t attributes;
    sigset_t all;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, &all);
    bool started = !pthread_create(&closer->thread, &attributes, closer_main, closer);
    pthread_attr_destroy(&attributes);
    return started;
}

struct closer *closer_new(void (*notify)(void *context), void *context)
{
    struct closer *closer = calloc(1, sizeof(*closer));

    if (!closer)
        return NULL;
    closer->notify = notify;
    closer->context = context;
    pthread_mutex_init(&closer->mutex, NULL);
    pthread_cond_init(&closer->changed, NULL);
    list_init(&closer->queue);
    list_init(&closer->done);
    return closer;
}

/* False if nobody would close it. */
static bool enqueue(struct closer *closer, struct closing *closing)
{
    pthread_mutex_lock(&closer->mutex);
    list_append(&closer->queue, &closing->node);
    if (!closer->running)
        closer->running = start_thread(closer);
    bool taken = closer->running;
    if (!taken)
        list_unlink(&closing->node);
    pthread_cond_signal(&closer->changed);
    pthread_mutex_unlock(&closer->mutex);
    return taken;
}

void closer_put(struct closer *closer, int fd, void (*closed)(void *argument), void *argument)
{
    struct closing *closing = calloc(1, sizeof(*closing));

    if (closing) {
        *closing = (struct closing){.fd = fd, .closed = closed, .argument = argument};
        list_init(&closing->node);
        closer->pending++;
        if (enqueue(closer, closing))
            return;
        closer->pending--;
        free(closing);
    }
    fd_close(fd);
    if (closed)
        closed(argument);
}

void closer_reap(struct closer *closer)
{
    struct list done, *node;

    pthread_mutex_lock(&closer->mutex);
    list_move_all(&done, &closer->done);
    pthread_mutex_unlock(&closer->mutex);
    while ((node = list_first(&done))) {
        struct closing closing = *list_entry(node, struct closing, node);
        list_unlink(node);
        free(list_entry(node, struct closing, node));
        closer->pending--;
        if (closing.closed)
            closing.closed(closing.argument);
    }
}

unsigned closer_pending(const struct closer *closer)
{
    return closer->pending;
}

struct closer *closer_free(struct closer *closer)
{
    if (!closer)
        return NULL;
    pthread_mutex_lock(&closer->mutex);
    bool running = closer->running, busy = closer->closing || !list_empty(&closer->queue);
    pthread_t thread = closer->thread;
    closer->abandoned = true;
    closer->waited_for = running && !busy;
    pthread_cond_signal(&closer->changed);
    pthread_mutex_unlock(&closer->mutex);
    if (running && busy) {
        pthread_detach(thread);
        return NULL;
    }
    if (running)
        pthread_join(thread, NULL);
    return destroy(closer);
}
