/* What a session holds, told to the daemon that it goes on with, and what is lost of it. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/lease.h"
#include "client/lib/stock.h"
#include "proto/memfd.h"

static void list_leases(hbm_session *session, struct holdings *holdings)
{
    for (struct node *node = session->leases.next; node != &session->leases; node = node->next)
        if (!CONTAINER(node, hbm_lease, node)->lost)
            holdings->ids[holdings->n++] = CONTAINER(node, hbm_lease, node)->grant.lease;
    for (struct node *node = session->models.next; node != &session->models; node = node->next)
        if (!CONTAINER(node, hbm_model, node)->lost)
            holdings->ids[holdings->n++] = CONTAINER(node, hbm_model, node)->lease;
}

static size_t count_nodes(const struct node *list)
{
    size_t n = 0;

    for (const struct node *node = list->next; node != list; node = node->next)
        n++;
    return n;
}

int take_stock(hbm_session *session, struct holdings *holdings)
{
    pthread_mutex_lock(&session->mutex);
    size_t room = count_nodes(&session->leases) + count_nodes(&session->models);
    holdings->ids = calloc(room + LOCKWORD_SLOTS / 64, sizeof(*holdings->ids));
    if (holdings->ids) {
        list_leases(session, holdings);
        for (unsigned i = 0; i < LOCKWORD_SLOTS / 64; i++)
            holdings->ids[holdings->n + i] = session->used[i];
        pthread_mutex_lock(&session->conn.mutex);
        session->conn.life++;
        session->conn.presented = true;
        pthread_cond_broadcast(&session->conn.changed);
        pthread_mutex_unlock(&session->conn.mutex);
    }
    pthread_mutex_unlock(&session->mutex);
    return holdings->ids ? 0 : -ENOMEM;
}

static int by_number(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

void lose_leases(hbm_session *session, int fd, uint32_t n)
{
    size_t size = 0;
    uint64_t *lost = memfd_map_sealed(fd, n * sizeof(*lost), &size);
    FREE uint64_t *sorted = lost ? malloc(size) : NULL;

    if (sorted) {
        n = (uint32_t)(size / sizeof(*lost));
        memcpy(sorted, lost, size);
        qsort(sorted, n, sizeof(*sorted), by_number);
        pthread_mutex_lock(&session->mutex);
        for (struct node *node = session->leases.next; node != &session->leases; node = node->next) {
            hbm_lease *lease = CONTAINER(node, hbm_lease, node);
            if (bsearch(&lease->grant.lease, sorted, n, sizeof(*sorted), by_number))
                lease->lost = true;
        }
        for (struct node *node = session->models.next; node != &session->models; node = node->next) {
            hbm_model *model = CONTAINER(node, hbm_model, node);
            if (bsearch(&model->lease, sorted, n, sizeof(*sorted), by_number))
                model->lost = true;
        }
        pthread_mutex_unlock(&session->mutex);
    }
    if (lost)
        munmap(lost, size);
}
