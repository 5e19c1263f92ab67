#include "client/lib/fetch.h"

#include "client/lib/error.h"

/* fd is borrowed. */
static int bring_back(struct mapping *mapping, bool fetched, int fd)
{
    if (!fetched || fd < 0)
        return set_error(HBM_E_INTERNAL, "the daemon sent no memory for slot %u", mapping->slot);
    mapping->place.host = *mapping->word & LOCKWORD_HOST;
    return mapping->place.backend->map(&mapping->place, fd);
}

/* Asks, maps and locks: all or nothing. CONN_CUT: the connection ended before what came counted as mapped. */
static int fetch(hbm_session *session, struct wire_lock_request *request, struct mapping *const *away,
                 const uint32_t *locks)
{
    struct wire_lock_reply reply;
    unsigned next_fd = 0;
    CONN_FDS fds = {0};
    int error = conn_call_again(&session->conn, WIRE_LOCK, request, &request->timeout_ms, &reply, &fds);
    /* A reply that came without its descriptors was granted all the same. */
    bool granted = !error || reply.n != 0;

    for (unsigned i = 0; i < request->n && !error; i++) {
        bool fetched = reply.fetched[i / 64] >> (i % 64) & 1;
        int CLOSE_FD fd = fetched ? conn_take_fd(&fds, next_fd++) : -1;
        error = bring_back(away[i], fetched, fd);
    }
    if (granted && !mapping_land(session, away, request->n, fds.life) && !error)
        return CONN_CUT;
    for (unsigned i = 0; i < request->n; i++) {
        if (away[i]->place.mapped)
            lockword_arrive(away[i]->word, error ? 0 : locks[i]);
        else if (granted)
            mapping_send_released(session, away[i]->slot);
    }
    return error;
}

int fetch_away(hbm_session *session, const struct want *wants, unsigned n, uint32_t timeout_ms)
{
    struct wire_lock_request request = {.timeout_ms = timeout_ms};
    struct mapping *away[WIRE_SLOTS_MAX];
    uint32_t locks[WIRE_SLOTS_MAX];
    int error;

    for (unsigned i = 0; i < n; i++)
        if (wants[i].away) {
            away[request.n] = wants[i].mapping;
            locks[request.n] = wants[i].locks;
            request.slots[request.n++] = wants[i].mapping->slot;
        }
    if (request.n == 0)
        return 0;
    do
        error = fetch(session, &request, away, locks);
    while (error == CONN_CUT);
    return error;
}
