/* Host extents that stay mapped between jobs: mapping one for the device and the CPU takes 35 ms a GiB on an H200's
 * host, copying it 20. The owner's token says which extent it is; the owner bounds how many there are, and says
 * when one ends. */
#include <pthread.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/list.h"
#include "daemon/worker/cuda/extent.h"

struct kept {
    struct list all;
    uint64_t token;
    struct view view;
    unsigned users;
    bool forgotten; /* no longer in the list: its last user unmaps it */
};

static struct {
    pthread_mutex_t mutex;
    struct list all;
} keep = {.mutex = PTHREAD_MUTEX_INITIALIZER, .all = LIST_INIT(keep.all)};

/* With the mutex held. */
static struct kept *find(uint64_t token)
{
    list_for_each (node, &keep.all)
        if (list_entry(node, struct kept, all)->token == token)
            return list_entry(node, struct kept, all);
    return NULL;
}

static void lend(struct kept *kept, struct view *view)
{
    kept->users++;
    *view = kept->view;
    view->origin = VIEW_KEPT;
    view->handle = (uintptr_t)kept;
}

/* True if it is kept, or if asking for it so is an error. */
static bool take(const struct job_extent *extent, struct view *view, struct failure *failure)
{
    pthread_mutex_lock(&keep.mutex);
    struct kept *kept = find(extent->token);
    if (kept && kept->view.size == extent->size)
        lend(kept, view);
    else if (kept)
        fail(failure, HBM_E_BAD_REQUEST, "the extent of that token has %llu bytes, not %llu",
             (unsigned long long)kept->view.size, (unsigned long long)extent->size);
    pthread_mutex_unlock(&keep.mutex);
    return kept != NULL;
}

int keep_map(const struct job_extent *extent, int fd, struct view *view, struct failure *failure)
{
    _cleanup_free_ struct kept *kept = NULL;

    if (take(extent, view, failure))
        return failure->error;
    /* Without the mutex, as it takes long: two jobs that map the same extent for the first time map it twice. */
    if (map_extent(extent, fd, view, failure))
        return failure->error;
    kept = calloc(1, sizeof(*kept));
    if (!kept)
        return 0; /* for this job alone, then */
    kept->token = extent->token;
    kept->view = *view;
    pthread_mutex_lock(&keep.mutex);
    if (!find(extent->token)) {
        list_append(&keep.all, &kept->all);
        lend(TAKE_PTR(kept), view);
    }
    pthread_mutex_unlock(&keep.mutex);
    return 0;
}

static void unmap(struct kept *kept)
{
    unmap_extent(&kept->view);
    free(kept);
}

void keep_unmap(struct view *view)
{
    struct kept *kept = (struct kept *)(uintptr_t)view->handle;

    pthread_mutex_lock(&keep.mutex);
    bool last = --kept->users == 0 && kept->forgotten;
    pthread_mutex_unlock(&keep.mutex);
    if (last)
        unmap(kept);
}

static bool has(uint64_t token)
{
    pthread_mutex_lock(&keep.mutex);
    bool there = find(token) != NULL;
    pthread_mutex_unlock(&keep.mutex);
    return there;
}

int keep_forget(uint64_t token, struct failure *failure)
{
    /* What is kept has a context, and unmapping needs it in this thread; for the rest none should be made. */
    if (!has(token))
        return 0;
    if (device_enter(failure))
        return failure->error;
    pthread_mutex_lock(&keep.mutex);
    struct kept *kept = find(token); /* dropped meanwhile with an idle context: NULL */
    if (kept) {
        list_unlink(&kept->all);
        kept->forgotten = true;
        if (kept->users)
            kept = NULL;
    }
    pthread_mutex_unlock(&keep.mutex);
    if (kept)
        unmap(kept);
    device_leave();
    return 0;
}

void keep_drop(void)
{
    pthread_mutex_lock(&keep.mutex);
    list_for_each_safe (node, &keep.all) {
        struct kept *kept = list_entry(node, struct kept, all);

        list_unlink(node);
        unmap(kept);
    }
    pthread_mutex_unlock(&keep.mutex);
}
