/* The allocator that PyTorch's CUDAPluggableAllocator wraps. torch gives neither back but the pointer, so what is there is
 * kept in a list by pointer; it holds few and large ones, as torch cuts tensors out of them itself. */
#include <errno.h>
#include <string.h>

#include "client/lib/cuda_place.h"
#include "client/lib/error.h"
#include "client/lib/lease.h"

/* What one request takes: hbm_lock_many's limit. */
#define LOCKS_MAX 128u

struct block {
    struct node node;
    void *pointer;
    hbm_lease *lease;
    hbm_claim *claim;
    bool is_cuda;
    char group[HBM_GROUP_MAX];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards blocks and own; order: before a session's */
static struct node blocks = {&blocks, &blocks};
static hbm_claim *own;

static _Thread_local struct {
    hbm_claim *session;
    char group[HBM_GROUP_MAX];
} into;

int hbm_torch_use(hbm_claim *session, const char *group)
{
    int error = group ? check_text("group", group, sizeof(into.group)) : 0;

    if (error)
        return error;
    into.session = session;
    memset(into.group, 0, sizeof(into.group));
    if (group)
        memcpy(into.group, group, strlen(group));
    return 0;
}

/* For what is allocated outside of every hbm_torch_use: it lasts as long as the process. */
static int open_own(void)
{
    hbm_session *session;
    int error = own ? 0 : hbm_open(NULL, &session);

    if (!error && !own) {
        error = hbm_claim_session(session, &own);
        if (error)
            hbm_close(session);
    }
    return error;
}

static int choose_session(hbm_claim **ret)
{
    int error = 0;

    if (!into.session) {
        pthread_mutex_lock(&mutex);
        error = open_own();
        pthread_mutex_unlock(&mutex);
    }
    *ret = into.session ? into.session : own;
    return error;
}

/* torch numbers the GPUs that this process sees, the daemon those that it serves; without any, host memory. */
static int find_device(hbm_session *session, int ordinal, uint32_t *index, bool *is_cuda)
{
    const struct device_table *table = session->devices;

    *is_cuda = false;
    for (uint32_t i = 0; i < table->n; i++)
        *is_cuda |= table->devices[i].is_cuda;
    for (uint32_t i = 0; i < table->n; i++) {
        const struct known_device *device = &table->devices[i];
        if (*is_cuda ? device->is_cuda && cuda_is(ordinal, device->uuid) : (int)i == ordinal) {
            *index = i;
            return 0;
        }
    }
    return set_error(HBM_E_NO_DEVICE, "device %d of this process is none that the daemon serves", ordinal);
}

static int allocate(struct block *block, size_t size, int device)
{
    struct hbm_spec spec = {.size = size, .group = *into.group ? into.group : NULL};
    hbm_claim *under;
    int error = choose_session(&under);

    if (error)
        return error;
    error = find_device(claim_session(under), device, &spec.device, &block->is_cuda);
    if (!error)
        error = hbm_alloc(claim_session(under), &spec, &block->lease);
    if (error)
        return error;
    error = hbm_claim_lease(block->lease, under, &block->claim);
    if (error) {
        hbm_detach(block->lease);
        return error;
    }
    block->pointer = hbm_pointer(block->lease);
    memcpy(block->group, into.group, sizeof(block->group));
    return 0;
}

void *hbm_torch_alloc(size_t size, int device, void *stream)
{
    struct block *block = calloc(1, sizeof(*block));

    (void)stream; /* it is zeroed before it comes, and nobody else uses it */
    if (!block) {
        set_system_error("malloc", ENOMEM);
        return NULL;
    }
    if (allocate(block, size, device) < 0) {
        free(block);
        return NULL;
    }
    void *pointer = block->pointer;
    pthread_mutex_lock(&mutex);
    node_append(&blocks, &block->node);
    pthread_mutex_unlock(&mutex);
    return pointer;
}

static struct block *take(const void *pointer)
{
    struct block *found = NULL;

    pthread_mutex_lock(&mutex);
    for (struct node *node = blocks.next; node != &blocks && !found; node = node->next)
        if (CONTAINER(node, struct block, node)->pointer == pointer)
            found = CONTAINER(node, struct block, node);
    if (found)
        node_unlink(&found->node);
    pthread_mutex_unlock(&mutex);
    return found;
}

void hbm_torch_free(void *pointer, size_t size, int device, void *stream)
{
    FREE struct block *block = pointer ? take(pointer) : NULL;

    (void)size;
    if (!block)
        return;
    if (block->is_cuda)
        cuda_wait_stream_of(device, stream); /* as cudaFree would. What fails here is a context that is lost */
    hbm_claim_unref(block->claim);
}

/* The next at most LOCKS_MAX leases of the group from `node` on, which moves behind them. */
static unsigned some_of(const char *group, const struct node **node, hbm_lease *leases[LOCKS_MAX])
{
    unsigned n = 0;

    for (; *node != &blocks && n < LOCKS_MAX; *node = (*node)->next) {
        const struct block *block = CONTAINER(*node, const struct block, node);
        if (!strcmp(block->group, group))
            leases[n++] = block->lease;
    }
    return n;
}

/* Of those before `end`. */
static int unlock_until(const char *group, const struct node *end, void *const *streams, unsigned n)
{
    int error = 0;

    for (const struct node *node = blocks.next; node != end; node = node->next) {
        const struct block *block = CONTAINER(node, const struct block, node);
        if (!strcmp(block->group, group)) {
            int failed = hbm_unlock(block->lease, streams, n);
            error = error ? error : failed;
        }
    }
    return error;
}

int hbm_torch_unlock(const char *group, void *const *streams, unsigned n)
{
    int error = check_text("group", group, HBM_GROUP_MAX);

    if (error)
        return error;
    pthread_mutex_lock(&mutex);
    error = unlock_until(group, &blocks, streams, n);
    pthread_mutex_unlock(&mutex);
    return error;
}

int hbm_torch_lock(const char *group, uint32_t timeout_ms)
{
    hbm_lease *leases[LOCKS_MAX];
    int error = check_text("group", group, HBM_GROUP_MAX);
    unsigned n;

    if (error)
        return error;
    pthread_mutex_lock(&mutex);
    const struct node *next = blocks.next, *begun = next;
    while (!error && (n = some_of(group, &next, leases))) {
        error = hbm_lock_many(leases, n, timeout_ms);
        if (!error)
            begun = next;
    }
    if (error) {
        struct error_kept kept;
        error_keep(&kept);
        unlock_until(group, begun, NULL, 0);
        error_restore(&kept);
    }
    pthread_mutex_unlock(&mutex);
    return error;
}
