#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/listener.h"
#include "daemon/wire/handlers.h"
#include "proto/memfd.h"

#define SLOTS_BYTES (LOCKWORD_SLOTS / 8)

/* One guess a connection. */
static void turn_away(struct link *link, const struct packet_header *header, int error, const char *why)
{
    link_turn_away(link, header->opcode, header->serial, error, why);
}

static int answer(struct link *link, const struct packet_header *header, const struct session *session,
                  const struct resume *resume)
{
    struct wire_resume_reply reply = {.epoch = link->core->ids.epoch,
                                      .n_lost = resume->n_lost,
                                      .n_devices = listener_n_devices(session->account->listener, link->core)};
    _cleanup_fd_ int lost = -1;

    if (resume->n_lost) {
        lost = memfd_sealed("hbm-lost", resume->lost, resume->n_lost * sizeof(*resume->lost));
        if (lost < 0)
            return lost;
    }
    link_reply(link, header->opcode, header->serial, &reply, sizeof(reply), lost);
    return 0;
}

/* `bytes`: the ids, then the slots. */
static void resume(struct link *link, const struct packet_header *header, const struct wire_resume_request *request,
                   const uint64_t *bytes)
{
    _cleanup_free_ uint64_t *lost = calloc(request->n_leases + 1, sizeof(*lost));
    _cleanup_free_ uint64_t *sorted = calloc(request->n_leases + 1, sizeof(*sorted));
    struct resume resume = {.leases = bytes,
                            .n_leases = request->n_leases,
                            .slots = bytes + request->n_leases,
                            .lost = lost,
                            .sorted = sorted};
    const struct peer *peer = &link->peer;
    struct session *session =
        session_to_resume(link->core, request->session, request->secret, &peer->who, peer->pid, peer->pidfd);

    if (!session) {
        turn_away(link, header, HBM_E_NOT_FOUND, "no session of that id waits for you");
        return;
    }
    if (!lost || !sorted) {
        turn_away(link, header, HBM_E_NO_MEMORY, "the daemon has no memory for the session");
        return;
    }
    session_compare(session, &resume);
    if (answer(link, header, session, &resume)) {
        turn_away(link, header, HBM_E_NO_MEMORY, "the daemon has no memory for the session");
        return;
    }
    timer_stop(link->core, &link->hello);
    link->state = LINK_OPEN;
    link_take_session(link, session);
    session_resume(session, &peer->who, peer->pid, request->client, &resume);
}

void handle_resume(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(resume);
    size_t size = 0, expected = request->n_leases * sizeof(uint64_t) + SLOTS_BYTES;

    if (request->version != WIRE_VERSION) {
        turn_away(link, header, HBM_E_BAD_VERSION, "the library speaks another protocol version");
        return;
    }
    if (request->n_leases > WIRE_RESUME_LEASES_MAX) {
        turn_away(link, header, HBM_E_LIMIT, "more leases than a session can take up again");
        return;
    }
    void *bytes = memfd_map_sealed(packet->fds[0], expected, &size);
    if (bytes && size == expected)
        resume(link, header, request, bytes);
    else
        turn_away(link, header, HBM_E_INVALID, "the leases are not in a sealed memfd of the right size");
    if (bytes)
        munmap(bytes, size);
}
