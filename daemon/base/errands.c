#include "daemon/base/errands.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct errands {
    void (*notify)(void *context);
    void *context;
    unsigned pending; /* the caller's thread alone */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct list queue, done;
    pthread_t thread;
    bool running;   /* there is a thread: from the first errand on */
    bool busy;      /* it is on one */
    bool abandoned; /* it ends when the queue is empty, and frees us unless it is waited for */
    bool waited_for;
};

static struct errands *destroy(struct errands *errands)
{
    struct list *node;

    while ((node = list_first(&errands->done))) {
        list_unlink(node);
        free(list_entry(node, struct errand, node));
    }
    pthread_cond_destroy(&errands->changed);
    pthread_mutex_destroy(&errands->mutex);
    free(errands);
    return NULL;
}

/* With the mutex held. */
static void run_first(struct errands *errands, struct list *node)
{
    struct errand *errand = list_entry(node, struct errand, node);

    list_unlink(node);
    errands->busy = true;
    pthread_mutex_unlock(&errands->mutex);
    errand->run(errand);
    pthread_mutex_lock(&errands->mutex);
    errands->busy = false;
    list_append(&errands->done, node);
    if (!errands->abandoned)
        errands->notify(errands->context);
}

static void *errands_main(void *argument)
{
    struct errands *errands = argument;

    pthread_mutex_lock(&errands->mutex);
    for (;;) {
        struct list *node = list_first(&errands->queue);
        if (node)
            run_first(errands, node);
        else if (errands->abandoned)
            break;
        else
            pthread_cond_wait(&errands->changed, &errands->mutex);
    }
    bool left_alone = !errands->waited_for;
    pthread_mutex_unlock(&errands->mutex);
    if (left_alone)
        destroy(errands);
    return NULL;
}

/* Every signal is the loop's. */
static bool start_thread(struct errands *errands)
{
    pthread_attr_t attributes;
    sigset_t all;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, &all);
    bool started = !pthread_create(&errands->thread, &attributes, errands_main, errands);
    pthread_attr_destroy(&attributes);
    return started;
}

struct errands *errands_new(void (*notify)(void *context), void *context)
{
    struct errands *errands = calloc(1, sizeof(*errands));

    if (!errands)
        return NULL;
    errands->notify = notify;
    errands->context = context;
    pthread_mutex_init(&errands->mutex, NULL);
    pthread_cond_init(&errands->changed, NULL);
    list_init(&errands->queue);
    list_init(&errands->done);
    return errands;
}

bool errands_put(struct errands *errands, struct errand *errand)
{
    pthread_mutex_lock(&errands->mutex);
    list_init(&errand->node);
    list_append(&errands->queue, &errand->node);
    if (!errands->running)
        errands->running = start_thread(errands);
    bool taken = errands->running;
    if (!taken)
        list_unlink(&errand->node);
    pthread_cond_signal(&errands->changed);
    pthread_mutex_unlock(&errands->mutex);
    errands->pending += taken;
    return taken;
}

void errands_reap(struct errands *errands)
{
    struct list done, *node;

    pthread_mutex_lock(&errands->mutex);
    list_move_all(&done, &errands->done);
    pthread_mutex_unlock(&errands->mutex);
    while ((node = list_first(&done))) {
        struct errand *errand = list_entry(node, struct errand, node);
        list_unlink(node);
        errands->pending--;
        errand->done(errand);
    }
}

unsigned errands_pending(const struct errands *errands)
{
    return errands->pending;
}

struct errands *errands_free(struct errands *errands)
{
    if (!errands)
        return NULL;
    pthread_mutex_lock(&errands->mutex);
    bool running = errands->running, busy = errands->busy || !list_empty(&errands->queue);
    pthread_t thread = errands->thread;
    errands->abandoned = true;
    errands->waited_for = running && !busy;
    pthread_cond_signal(&errands->changed);
    pthread_mutex_unlock(&errands->mutex);
    if (running && busy) {
        pthread_detach(thread);
        return NULL;
    }
    if (running)
        pthread_join(thread, NULL);
    return destroy(errands);
}
