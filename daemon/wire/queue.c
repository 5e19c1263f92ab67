#include "daemon/wire/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/listener.h"
#include "daemon/wire/unread.h"

struct queued {
    struct list node;
    struct packet_header header;
    unsigned n_fds;
    size_t size;
    int *fds;
    unsigned char body[]; /* fds follow it */
};

static struct queued *queued_free(struct queued *queued)
{
    for (unsigned i = 0; i < queued->n_fds; i++)
        fd_close(queued->fds[i]);
    free(queued);
    return NULL;
}

DEFINE_FREEP(struct queued, queued_free)

static struct queued *queued_new(const struct packet_header *header, const void *body, size_t size, const int *fds,
                                 unsigned n_fds)
{
    size_t padded = (size + sizeof(int) - 1) / sizeof(int) * sizeof(int);
    _cleanup_(queued_freep) struct queued *queued = calloc(1, sizeof(*queued) + padded + n_fds * sizeof(int));

    if (!queued)
        return NULL;
    queued->header = *header;
    queued->size = size;
    if (size)
        memcpy(queued->body, body, size);
    queued->fds = (int *)(void *)(queued->body + padded);
    for (; queued->n_fds < n_fds; queued->n_fds++) {
        queued->fds[queued->n_fds] = fcntl(fds[queued->n_fds], F_DUPFD_CLOEXEC, 3);
        if (queued->fds[queued->n_fds] < 0)
            return NULL;
    }
    list_init(&queued->node);
    return TAKE_PTR(queued);
}

static void drop_first(struct link *link)
{
    struct queued *first = list_entry(list_first(&link->queue), struct queued, node);

    list_unlink(&first->node);
    link->n_packets--;
    link->n_bytes -= (unsigned)first->size;
    link->n_fds -= first->n_fds;
    account_release(link->account, ACCOUNT_QUEUE_BYTES, first->size);
    queued_free(first);
}

void queue_forget_fds(struct link *link)
{
    account_release(link->account, ACCOUNT_UNREAD_FDS, link->unread_fds);
    link->unread_fds = 0;
}

void queue_forget_if_read(struct link *link)
{
    int unread;

    if (link->unread_fds && !(ioctl(link->fd, SIOCOUTQ, &unread) == 0 && unread))
        queue_forget_fds(link);
}

/* Never more than half of what the others leave: whoever comes next finds room. */
static bool is_fair(const struct account *account, uint64_t all, uint64_t most, unsigned n_fds)
{
    uint64_t own = account->use[ACCOUNT_UNREAD_FDS], others = all - own;

    return others < most && own + n_fds <= (most - others) / 2;
}

/* The kernel lets the processes of a user have so many fds in flight and no more, and a worker that cannot send what it
 * made is of no use: neither one link's nor one user's nor one listener's may become everyone's. */
static bool leaves_room(const struct link *link, unsigned n_fds)
{
    const struct account *whole = &link->account->listener->whole;
    struct rlimit limit;
    uint64_t all = 0;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return true;
    list_for_each (node, &link->core->listeners)
        all += list_entry(node, struct listener, node)->whole.use[ACCOUNT_UNREAD_FDS];
    uint64_t most = limit.rlim_cur - limit.rlim_cur / 8;
    return is_fair(link->account, all, most, n_fds) && is_fair(whole, all, most, n_fds);
}

static bool charge_account(struct link *link, unsigned n_fds)
{
    char detail[HBM_DETAIL_MAX];

    return leaves_room(link, n_fds) && !account_charge(link->account, ACCOUNT_UNREAD_FDS, n_fds, detail);
}

static int charge_fds(struct link *link, unsigned n_fds)
{
    queue_forget_if_read(link);
    if (link->unread_fds + n_fds > LINK_UNREAD_FDS)
        return -ETOOMANYREFS;
    if (!charge_account(link, n_fds)) {
        wire_servers_forget_read();
        if (!charge_account(link, n_fds))
            return -ETOOMANYREFS;
    }
    link->unread_fds += n_fds;
    return 0;
}

static int send_now(struct link *link, const struct packet_header *header, const void *body, size_t size,
                    const int *fds, unsigned n_fds)
{
    int error = n_fds ? charge_fds(link, n_fds) : 0;

    if (error)
        return error;
    error = packet_send(link->fd, header, body, size, fds, n_fds);
    if (error && n_fds) {
        link->unread_fds -= n_fds;
        account_release(link->account, ACCOUNT_UNREAD_FDS, n_fds);
    }
    return error;
}

/* True: the link was past help, and ends. Want of room, its own or the kernel's, passes. */
static bool doom_if_past_help(struct link *link, int error)
{
    if (!error || error == -EAGAIN || error == -ENOMEM || error == -ENOBUFS)
        return false;
    if (error == -ETOOMANYREFS)
        link_doom(link, HBM_E_LIMIT, "too many file descriptors wait unread in its sockets (account_unread_fds)");
    else
        link_doom(link, HBM_E_DISCONNECTED, strerror(-error));
    return true;
}

void queue_flush(struct link *link)
{
    struct list *node;

    while ((node = list_first(&link->queue))) {
        struct queued *first = list_entry(node, struct queued, node);
        int error = send_now(link, &first->header, first->body, first->size, first->fds, first->n_fds);
        if (error) {
            (void)doom_if_past_help(link, error);
            return;
        }
        drop_first(link);
    }
}

void queue_clear(struct link *link)
{
    while (!list_empty(&link->queue))
        drop_first(link);
}

/* With copies of the fds, and at the account's expense. */
static void enqueue(struct link *link, const struct packet_header *header, const void *body, size_t size,
                    const int *fds, unsigned n_fds)
{
    char detail[HBM_DETAIL_MAX];

    if (link->n_packets + 1 > LINK_QUEUE_PACKETS || link->n_bytes + size > LINK_QUEUE_BYTES ||
        link->n_fds + n_fds > LINK_QUEUE_FDS) {
        link_doom(link, HBM_E_LIMIT, "it does not read what is sent to it");
        return;
    }
    int refused = account_charge(link->account, ACCOUNT_QUEUE_BYTES, size, detail);
    if (refused) {
        link_doom(link, refused, detail);
        return;
    }
    struct queued *queued = queued_new(header, body, size, fds, n_fds);
    if (!queued) {
        account_release(link->account, ACCOUNT_QUEUE_BYTES, size);
        link_doom(link, HBM_E_NO_MEMORY, "the daemon has no memory or file descriptors to queue an answer");
        return;
    }
    list_append(&link->queue, &queued->node);
    link->n_packets++;
    link->n_bytes += (unsigned)size;
    link->n_fds += n_fds;
    link_balance(link);
}

void link_send(struct link *link, const struct packet_header *header, const void *body, size_t size, const int *fds,
               unsigned n_fds)
{
    if (link->doomed || link->closed)
        return;
    if (list_empty(&link->queue)) {
        int error = send_now(link, header, body, size, fds, n_fds);
        if (!error || doom_if_past_help(link, error))
            return;
    }
    enqueue(link, header, body, size, fds, n_fds);
}
