#include "daemon/worker/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/worker/job.h"

#define PATIENCE_MS 1000
#define EXIT_MUTE 5

void channel_init(struct channel *channel, int fd)
{
    int flags = fcntl(fd, F_GETFL);

    channel->fd = fd;
    pthread_mutex_init(&channel->mutex, NULL);
    /* Whoever made the pair may have made both ends non-blocking; our threads have nothing else to wait for. */
    if (flags >= 0 && (flags & O_NONBLOCK))
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

/* What passes: memory of the kernel's, or the owner's other packets with fds in flight. */
static bool may_pass(int error)
{
    return error == -ENOMEM || error == -ENOBUFS || error == -ETOOMANYREFS;
}

/* An answer that cannot be given would be waited for: then the worker ends, and the owner knows. Only if the owner
 * itself is gone nothing is done: the control thread sees the end of file. */
static void answer(struct channel *channel, const struct packet_header *header, const void *body, size_t size,
                   const int *fds, unsigned n_fds)
{
    int error, left_ms = PATIENCE_MS;

    pthread_mutex_lock(&channel->mutex);
    while (may_pass(error = packet_send(channel->fd, header, body, size, fds, n_fds)) && left_ms-- > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    pthread_mutex_unlock(&channel->mutex);
    if (!error || error == -EPIPE)
        return;
    log_error("an answer cannot be sent (%s): this worker ends, the owner starts another", strerror(-error));
    _exit(EXIT_MUTE);
}

void channel_refuse(struct channel *channel, uint32_t opcode, uint32_t serial, int error, const char *detail)
{
    struct packet_header header = {.opcode = opcode, .serial = serial, .status = error};
    struct packet_refusal refusal = {0};

    snprintf(refusal.detail, sizeof(refusal.detail), "%s", detail);
    answer(channel, &header, &refusal, sizeof(refusal), NULL, 0);
}

void channel_reply(struct channel *channel, const struct job *job)
{
    struct packet_header header = {.opcode = job->opcode, .serial = job->serial};

    if (job->failure.error)
        channel_refuse(channel, job->opcode, job->serial, job->failure.error, job->failure.detail);
    else
        answer(channel, &header, &job->reply, job_row(job->opcode)->reply_size, &job->reply_fd, job->reply_fd >= 0);
}

void channel_progress(struct channel *channel, uint32_t serial, uint64_t bytes)
{
    struct packet_header header = {.opcode = JOB_PROGRESS};
    struct job_progress_request progress = {.serial = serial, .bytes = bytes};

    /* Should it not leave, the next one tells more. */
    pthread_mutex_lock(&channel->mutex);
    (void)packet_send(channel->fd, &header, &progress, sizeof(progress), NULL, 0);
    pthread_mutex_unlock(&channel->mutex);
}
