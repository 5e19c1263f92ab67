#include "daemon/worker/channel.h"

#include <fcntl.h>
#include <stdio.h>

#include "daemon/worker/job.h"

void channel_init(struct channel *channel, int fd)
{
    int flags = fcntl(fd, F_GETFL);

    channel->fd = fd;
    pthread_mutex_init(&channel->mutex, NULL);
    /* Whoever made the pair may have made both ends non-blocking; our threads have nothing else to wait for. */
    if (flags >= 0 && (flags & O_NONBLOCK))
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

/* A failed send is not handled: the owner is gone, and the control thread sees the end of file. */
static void send_locked(struct channel *channel, const struct packet_header *header, const void *body, size_t size,
                        const int *fds, unsigned n_fds)
{
    pthread_mutex_lock(&channel->mutex);
    (void)packet_send(channel->fd, header, body, size, fds, n_fds);
    pthread_mutex_unlock(&channel->mutex);
}

void channel_refuse(struct channel *channel, uint32_t opcode, uint32_t serial, int error, const char *detail)
{
    struct packet_header header = {.opcode = opcode, .serial = serial, .status = error};
    struct packet_refusal refusal = {0};

    snprintf(refusal.detail, sizeof(refusal.detail), "%s", detail);
    send_locked(channel, &header, &refusal, sizeof(refusal), NULL, 0);
}

void channel_reply(struct channel *channel, const struct job *job)
{
    struct packet_header header = {.opcode = job->opcode, .serial = job->serial};

    if (job->failure.error)
        channel_refuse(channel, job->opcode, job->serial, job->failure.error, job->failure.detail);
    else
        send_locked(channel, &header, &job->reply, job_row(job->opcode)->reply_size, &job->reply_fd,
                    job->reply_fd >= 0);
}

void channel_progress(struct channel *channel, uint32_t serial, uint64_t bytes)
{
    struct packet_header header = {.opcode = JOB_PROGRESS};
    struct job_progress_request progress = {.serial = serial, .bytes = bytes};

    send_locked(channel, &header, &progress, sizeof(progress), NULL, 0);
}
