#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"

/* The names come back in one environment string, LISTEN_FDNAMES, and Linux takes none of 128 KiB or more: with more
 * in the store the restart itself would fail, and everything be lost. */
#define NAMES_BYTES_MAX ((size_t)120 * 1024)
#define BARRIER_MS 5000 /* a keeper that is busy for so long is not waited for */
#define PARTS 16        /* new memory leaves two of so many to moves and sessions, and a move one to sessions */
#define AGAIN_MS 100    /* when a name that could not be taken back is tried again */

/* An fd that the keeper has. */
struct stored {
    struct list node; /* unwanted, once it is */
    char name[STORE_NAME_MAX];
};

struct store {
    uv_loop_t *loop;
    bool kept; /* there is a keeper */
    uint32_t max, n;
    size_t names_bytes;
    void *names;          /* tsearch, struct stored's: what it refused is not there to be taken back */
    struct list unwanted; /* struct stored: to be taken back, but the word could not be sent */
    uv_timer_t again;
    bool full_said;
    struct list unsent; /* struct store_request: tried again, for as long as a barrier is waited for */
    unsigned tries;
    struct list sent;   /* not covered by a barrier yet */
    struct list fenced; /* covered by the one under way */
    int barrier_fd;     /* -1: none */
    uv_poll_t barrier;
    uv_timer_t patience;
    bool barrier_open, flushed;
    unsigned open_handles;
};

static void start_barrier(struct store *store);

int store_new(uv_loop_t *loop, uint32_t max, struct store **ret)
{
    struct store *store = calloc(1, sizeof(*store));
    const char *limit = getenv("FDSTORE"); /* systemd 254 and newer say it */

    if (!store)
        return -ENOMEM;
    store->loop = loop;
    store->kept = getenv("NOTIFY_SOCKET") != NULL;
    store->max = limit && strtoul(limit, NULL, 10) ? (uint32_t)strtoul(limit, NULL, 10) : max;
    store->barrier_fd = -1;
    list_init(&store->unsent);
    list_init(&store->sent);
    list_init(&store->fenced);
    list_init(&store->unwanted);
    uv_timer_init(loop, &store->patience);
    uv_timer_init(loop, &store->again);
    store->patience.data = store->again.data = store->barrier.data = store;
    store->open_handles = 2;
    *ret = store;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Room for it in the books is there before it is with the keeper. NULL: memory is out. */
static struct stored *stored_new(struct store *store, const char *name)
{
    struct stored *stored = calloc(1, sizeof(*stored));

    if (!stored)
        return NULL;
    list_init(&stored->node);
    snprintf(stored->name, sizeof(stored->name), "%s", name);
    if (!tsearch(stored->name, &store->names, by_name)) {
        free(stored);
        return NULL;
    }
    store->n++;
    store->names_bytes += strlen(name) + 1;
    return stored;
}

static void stored_free(struct store *store, struct stored *stored)
{
    list_unlink(&stored->node);
    store->n--;
    store->names_bytes -= strlen(stored->name) + 1;
    free(stored);
}

int store_count(struct store *store, const char *name)
{
    return tfind(name, &store->names, by_name) || stored_new(store, name) ? 0 : -ENOMEM;
}

static bool has_room(const struct store *store, const struct store_request *request)
{
    uint64_t parts = PARTS - request->use, max = store->max * parts / PARTS, bytes = NAMES_BYTES_MAX * parts / PARTS;

    return store->n < max && store->names_bytes + strlen(request->name) + 1 <= bytes;
}

static void refuse(struct store *store, struct store_request *request)
{
    if (!store->full_said)
        log_write(LOG_LEVEL_WARNING, MESSAGE_STORE_FULL,
                  "the fd store is full at %u fds: nothing is taken on that the next restart would lose; free "
                    "something, raise FileDescriptorStoreMax= and store_max, or publish fewer, larger groups",
                    store->n);
    store->full_said = true;
    request->refused = true;
    request->done(request);
}

static void finish(struct list *requests)
{
    struct list done, *node;

    /* Moved aside first: done may put the next ones. */
    list_init(&done);
    while ((node = list_first(requests))) {
        list_unlink(node);
        list_append(&done, node);
    }
    while ((node = list_first(&done))) {
        struct store_request *request = list_entry(node, struct store_request, node);
        list_unlink(node);
        request->done(request);
    }
}

static void barrier_closed(uv_handle_t *handle)
{
    struct store *store = handle->data;

    store->barrier_open = false;
    if (--store->open_handles == 0) {
        free(store);
        return;
    }
    if (!list_empty(&store->sent))
        start_barrier(store);
}

static void end_barrier(struct store *store)
{
    uv_timer_stop(&store->patience);
    uv_close((uv_handle_t *)&store->barrier, barrier_closed);
    store->barrier_fd = fd_close(store->barrier_fd);
    finish(&store->fenced);
}

static void on_barrier(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    end_barrier(poll->data);
}

static void out_of_patience(uv_timer_t *timer)
{
    log_warning(
        "the service manager did not confirm in %d s that it keeps our memory; going on without: see its own log",
        BARRIER_MS / 1000);
    end_barrier(timer->data);
}

/* The keeper closes the pipe's end when it has handled all that came before. */
static void start_barrier(struct store *store)
{
    int pair[2];

    while (!list_empty(&store->sent)) {
        struct list *node = list_first(&store->sent);
        list_unlink(node);
        list_append(&store->fenced, node);
    }
    fd_reserve_lift(true); /* what is with the keeper is safe only after it */
    int made = pipe2(pair, O_CLOEXEC | O_NONBLOCK);
    fd_reserve_lift(false);
    if (made < 0) {
        log_warning("cannot wait for the service manager: %s; going on without", strerror(errno));
        finish(&store->fenced);
        return;
    }
    int error = sd_pid_notify_with_fds(0, 0, "BARRIER=1", &pair[1], 1);
    fd_close(pair[1]);
    store->barrier_fd = pair[0];
    uv_poll_init(store->loop, &store->barrier, store->barrier_fd);
    store->barrier_open = true;
    store->open_handles++;
    if (error <= 0)
        log_warning("cannot reach the service manager: %s; going on without", strerror(-error));
    /* Should the message not have left, our closing the only writer ends the wait at once. */
    uv_poll_start(&store->barrier, UV_READABLE | UV_DISCONNECT, on_barrier);
    uv_timer_start(&store->patience, out_of_patience, BARRIER_MS, 0);
}

/* As sd_notify: above 0 if the keeper has it; -ENOSPC if it is full. */
static int give(struct store *store, const struct store_request *request)
{
    struct stored *stored = has_room(store, request) ? stored_new(store, request->name) : NULL;
    char words[STORE_NAME_MAX + 64];

    if (!stored)
        return has_room(store, request) ? -ENOMEM : -ENOSPC;
    snprintf(words, sizeof(words), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", request->name);
    int error = sd_pid_notify_with_fds(0, 0, words, &request->fd, 1);
    if (error <= 0) {
        tdelete(stored->name, &store->names, by_name);
        stored_free(store, stored);
    }
    return error;
}

static void given(struct store *store, struct store_request *request)
{
    if (store->flushed) {
        request->done(request);
        return;
    }
    list_append(&store->sent, &request->node);
    if (!store->barrier_open)
        start_barrier(store);
}

/* As sd_notify: above 0 if the word was sent. */
static int take_back(const struct stored *stored)
{
    char words[STORE_NAME_MAX + 32];

    snprintf(words, sizeof(words), "FDSTOREREMOVE=1\nFDNAME=%s", stored->name);
    return sd_notify(0, words);
}

static void give_up(struct store_request *request, int error)
{
    log_warning("%s could not be given to the service manager: %s; a restart loses it", request->name,
                strerror(-error));
    request->done(request);
}

/* last: nobody waits for another try. */
static void put(struct store *store, struct store_request *request, bool last)
{
    int error = give(store, request);

    if (error > 0)
        given(store, request);
    else if (error == -ENOSPC)
        refuse(store, request);
    else if (last)
        give_up(request, error);
    else
        list_append(&store->unsent, &request->node);
}

static void try_again(uv_timer_t *timer)
{
    struct store *store = timer->data;
    struct list unsent;

    list_for_each_safe (node, &store->unwanted) {
        struct stored *stored = list_entry(node, struct stored, node);
        if (take_back(stored) > 0)
            stored_free(store, stored);
    }
    /* Moved aside first: done may put the next ones. */
    list_move_all(&unsent, &store->unsent);
    store->tries = list_empty(&unsent) ? 0 : store->tries + 1;
    for (struct list *node; (node = list_first(&unsent));) {
        list_unlink(node);
        put(store, list_entry(node, struct store_request, node),
            store->flushed || store->tries >= BARRIER_MS / AGAIN_MS);
    }
    if (!list_empty(&store->unwanted) || !list_empty(&store->unsent))
        uv_timer_start(&store->again, try_again, AGAIN_MS, 0);
}

void store_put(struct store *store, struct store_request *request)
{
    list_init(&request->node);
    if (!store->kept) {
        request->done(request);
        return;
    }
    put(store, request, store->flushed);
    if (!list_empty(&store->unsent) && !uv_is_active((uv_handle_t *)&store->again))
        uv_timer_start(&store->again, try_again, AGAIN_MS, 0);
}

bool store_keeps(const struct store *store)
{
    return store->kept;
}

void store_remove(struct store *store, const char *name)
{
    char **found = tfind(name, &store->names, by_name);

    if (!found)
        return;
    struct stored *stored = container_of(*found, struct stored, name);
    tdelete(name, &store->names, by_name);
    store->full_said = false;
    int error = take_back(stored);
    if (error > 0) {
        stored_free(store, stored);
        return;
    }
    log_warning("%s cannot be taken back from the service manager yet: %s; trying again", name, strerror(-error));
    list_append(&store->unwanted, &stored->node);
    uv_timer_start(&store->again, try_again, AGAIN_MS, 0);
}

bool store_ends_with_unit(const struct store *store)
{
    const char *socket = getenv("NOTIFY_SOCKET");

    return store->kept && socket && *socket == '/'; /* `hbmd --supervise` speaks at an abstract address */
}

void store_flush(struct store *store)
{
    store->flushed = true;
    try_again(&store->again);
    finish(&store->fenced);
    finish(&store->sent);
}

static void free_name(void *name)
{
    free(container_of(name, struct stored, name));
}

struct store *store_free(struct store *store)
{
    if (!store)
        return NULL;
    list_for_each_safe (node, &store->unwanted)
        stored_free(store, list_entry(node, struct stored, node));
    tdestroy(store->names, free_name);
    store->names = NULL;
    if (store->barrier_open && !uv_is_closing((uv_handle_t *)&store->barrier)) {
        uv_close((uv_handle_t *)&store->barrier, barrier_closed);
        store->barrier_fd = fd_close(store->barrier_fd);
    }
    uv_close((uv_handle_t *)&store->patience, barrier_closed);
    uv_close((uv_handle_t *)&store->again, barrier_closed);
    return NULL;
}
