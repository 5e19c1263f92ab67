#include "daemon/closers.h"

#include <errno.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/closer.h"
#include "daemon/base/list.h"

/* An ordinary file is closed in no time; but in a storm of connections the thread that closes may have to wait for a
 * processor. */
#define MANY_FDS 256
#define TOO_MANY_FDS 4096
#define STUCK_MS 1000

#define CLOSERS_A_LISTENER 32u /* for an owner each; from there on one for all who come */

struct closers {
    uv_async_t closed;
    bool stopped;
    struct closer *memory;
    struct list sent; /* struct sent: of owners for whom something is being closed */
};

struct sent {
    struct list node;
    struct owner owner;
    struct closer *closer;
    uint64_t moved_ms; /* when something of it was closed last */
};

static struct sent *sent_free(struct sent *sent)
{
    list_unlink(&sent->node);
    closer_free(sent->closer);
    free(sent);
    return NULL;
}

static void on_closed(uv_async_t *async)
{
    struct closers *closers = async->data;

    closer_reap(closers->memory);
    list_for_each_safe (node, &closers->sent) {
        struct sent *sent = list_entry(node, struct sent, node);
        unsigned before = closer_pending(sent->closer);
        closer_reap(sent->closer);
        if (closer_pending(sent->closer) < before)
            sent->moved_ms = uv_now(async->loop);
        if (!closer_pending(sent->closer))
            sent_free(sent);
    }
}

static void tell_loop(void *context)
{
    uv_async_send(context);
}

int closers_new(uv_loop_t *loop, struct closers **ret)
{
    struct closers *closers = calloc(1, sizeof(*closers));
    int error = closers ? uv_async_init(loop, &closers->closed, on_closed) : -ENOMEM;

    if (error) {
        free(closers);
        return error;
    }
    closers->closed.data = closers;
    list_init(&closers->sent);
    *ret = closers;
    closers->memory = closer_new(tell_loop, &closers->closed);
    return closers->memory ? 0 : -ENOMEM;
}

void closers_memory(struct closers *closers, int fd, void (*closed)(void *argument), void *argument)
{
    if (!closers->stopped) {
        closer_put(closers->memory, fd, closed, argument);
        return;
    }
    fd_close(fd);
    closed(argument);
}

/* Who shares its closer: as many users as a listener likes are no reason for as many threads. */
static struct owner sharer(const struct closers *closers, struct owner owner)
{
    unsigned n = 0;

    list_for_each (node, &closers->sent) {
        const struct sent *sent = list_entry(node, struct sent, node);
        if (owner_equal(sent->owner, owner))
            return owner;
        n += sent->owner.listener == owner.listener;
    }
    return n < CLOSERS_A_LISTENER ? owner : owner_shared(owner.listener);
}

static struct sent *sent_of(const struct closers *closers, struct owner owner)
{
    list_for_each (node, &closers->sent) {
        struct sent *sent = list_entry(node, struct sent, node);
        if (owner_equal(sent->owner, owner))
            return sent;
    }
    return NULL;
}

static struct sent *sent_new(struct closers *closers, struct owner owner)
{
    struct sent *sent = calloc(1, sizeof(*sent));

    if (!sent)
        return NULL;
    sent->owner = owner;
    sent->moved_ms = uv_now(closers->closed.loop);
    sent->closer = closer_new(tell_loop, &closers->closed);
    list_append(&closers->sent, &sent->node);
    return sent->closer ? sent : sent_free(sent);
}

static void tell_nobody(void *context)
{
    (void)context;
}

static void close_unwatched(int fd)
{
    struct closer *closer = closer_new(tell_nobody, NULL);

    if (closer)
        closer_put(closer, fd, NULL, NULL);
    else
        fd_close(fd);
    closer_free(closer);
}

static bool is_stuck(const struct closers *closers, const struct sent *sent)
{
    unsigned pending = closer_pending(sent->closer);

    return pending > TOO_MANY_FDS ||
           (pending > MANY_FDS && uv_now(closers->closed.loop) - sent->moved_ms >= STUCK_MS);
}

bool closers_sent(struct closers *closers, struct owner owner, int fd)
{
    if (closers->stopped) {
        close_unwatched(fd);
        return false;
    }
    owner = sharer(closers, owner);
    struct sent *sent = sent_of(closers, owner);
    if (fd >= 0 && !sent)
        sent = sent_new(closers, owner);
    if (fd >= 0 && sent)
        closer_put(sent->closer, fd, NULL, NULL);
    else
        fd_close(fd);
    return sent && is_stuck(closers, sent);
}

void closers_stop(struct closers *closers)
{
    closers->stopped = true;
    closers->memory = closer_free(closers->memory);
    list_for_each_safe (node, &closers->sent)
        sent_free(list_entry(node, struct sent, node));
    uv_close((uv_handle_t *)&closers->closed, NULL);
}

struct closers *closers_free(struct closers *closers)
{
    free(closers);
    return NULL;
}
