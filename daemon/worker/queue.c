#include "daemon/worker/queue.h"

#include "daemon/worker/job.h"

static void *queue_main(void *argument)
{
    struct queue *queue = argument;

    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        struct list *first = list_first(&queue->jobs);

        if (first) {
            list_unlink(first);
            pthread_mutex_unlock(&queue->mutex);
            queue->run(list_entry(first, struct job, queued));
            pthread_mutex_lock(&queue->mutex);
        } else if (queue->stopping)
            break;
        else
            pthread_cond_wait(&queue->changed, &queue->mutex);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

int queue_start(struct queue *queue, unsigned n_threads, void (*run)(struct job *job))
{
    list_init(&queue->jobs);
    queue->run = run;
    queue->stopping = false;
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    for (queue->n_threads = 0; queue->n_threads < n_threads; queue->n_threads++) {
        int error = pthread_create(&queue->threads[queue->n_threads], NULL, queue_main, queue);
        if (error)
            return -error;
    }
    return 0;
}

void queue_push(struct queue *queue, struct job *job)
{
    pthread_mutex_lock(&queue->mutex);
    list_append(&queue->jobs, &job->queued);
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
}

void queue_stop(struct queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    for (unsigned i = 0; i < queue->n_threads; i++)
        pthread_join(queue->threads[i], NULL);
}
