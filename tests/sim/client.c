/* A client: its process, its half of the session's page, and the memory it maps, by the rules of client/lib. What
 * it is sent is read later (letters), as from a socket. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "tests/sim/sim.h"

bool client_is(const struct client *client, unsigned incarnation)
{
    return client->incarnation == incarnation;
}

struct session *client_session(const struct client *client)
{
    return client->session ? session_get(core(), client->session) : NULL;
}

struct view *client_view(struct client *client, uint32_t slot)
{
    for (unsigned i = 0; i < VIEWS; i++)
        if (client->views[i].leases && client->views[i].slot == slot)
            return &client->views[i];
    return NULL;
}

static _Atomic uint64_t *word_of(const struct client *client, const struct view *view)
{
    return &client->words[view->slot];
}

static void unmap(struct view *view)
{
    view->fd = fd_close(view->fd);
    view->present = false;
}

/* ---- Coming and going ---- */

static void heard_reclaim(struct session *session, uint32_t slot, uint32_t deadline_ms)
{
    (void)session;
    (void)deadline_ms;
    CHECK(slot < LOCKWORD_SLOTS); /* the word says the rest */
}

static void heard_op_ended(struct session *session, uint64_t op, int error)
{
    (void)session;
    (void)error;
    CHECK(op);
}

static void kicked(struct session *session, int error, const char *reason)
{
    CHECK(error && *reason);
    ((struct client *)session->link)->kicked = true;
}

static void take_link(struct client *client, struct session *session)
{
    session->link = client;
    session->send_reclaim = heard_reclaim;
    session->send_op_ended = heard_op_ended;
    session->kick = kicked;
}

static void greeted(struct session *session, int error)
{
    struct client *client = session->link;

    CHECK(!error && client->session == session->id && client->state == CLIENT_GREETS);
    if (sim.world.dead)
        return;
    client->state = CLIENT_UP;
    memcpy(client->secret, session->secret, sizeof(client->secret));
    client->page_fd = fcntl(session->page_fd, F_DUPFD_CLOEXEC, 3);
    client->words = mmap(NULL, LOCKWORD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, client->page_fd, 0);
    CHECK(client->words != MAP_FAILED);
}

void client_connect(struct client *client)
{
    static const struct principal people[] = {
        {.owner = {0, 1000}}, {.owner = {0, 1001}}, {.owner = {1, 1000}}, {.owner = {0, 0}, .admin = true}};
    static int32_t pids = 100;
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;

    *client = (struct client){.who = people[random_below(&sim.random, 4)],
                              .pid = random_one_in(&sim.random, 12) ? 0 : ++pids,
                              .incarnation = client->incarnation + 1,
                              .page_fd = -1};
    life_begin(&client->life);
    int pidfd = fcntl(client->life.pidfd, F_DUPFD_CLOEXEC, 3);
    struct session *session = session_new(core(), client->who, client->pid, pidfd, "client", &error, detail);
    trace("connects as %u/%u pid %d: %d", client->who.owner.listener, client->who.owner.uid, client->pid, error);
    if (!session) {
        CHECK((error == HBM_E_LIMIT || error == HBM_E_DEGRADED) && *detail);
        close(pidfd);
        client_forget(client);
        return;
    }
    client->session = session->id;
    client->state = CLIENT_GREETS;
    client->listed = client->pid > 0;
    take_link(client, session);
    session->ready = greeted;
    session_start(session);
}

static void burn_letters(const struct client *client)
{
    list_for_each_safe (node, &sim.letters) {
        struct letter *letter = list_entry(node, struct letter, node);
        if (letter->client == client)
            letter_free(letter);
    }
}

void letter_free(struct letter *letter)
{
    list_unlink(&letter->node);
    for (unsigned i = 0; i < letter->n; i++)
        fd_close(letter->at[i].fd);
    free(letter);
}

/* Its process is gone, and all that it had. */
void client_forget(struct client *client)
{
    burn_letters(client);
    for (unsigned i = 0; i < VIEWS; i++)
        if (client->views[i].leases)
            unmap(&client->views[i]);
    if (client->words)
        munmap(client->words, LOCKWORD_PAGE_BYTES);
    free(client->words_at_death);
    life_forget(&client->life);
    fd_close(client->page_fd);
    *client = (struct client){.incarnation = client->incarnation + 1, .page_fd = -1};
}

void client_hang_up(struct client *client, bool clean)
{
    struct session *session = client_session(client);

    trace("client %td %s", client - sim.clients, clean ? "says goodbye" : "hangs up");
    burn_letters(client);
    if (clean)
        for (unsigned i = 0; i < VIEWS; i++)
            if (client->views[i].leases)
                unmap(&client->views[i]);
    client->state = CLIENT_GONE;
    client->clean = clean;
    model_give_up(client);
    if (session)
        session_gone(session, clean, clean ? "it said goodbye" : "it hung up");
    if (clean && !sim.world.dead)
        CHECK(!session || !client_session(client) || session->free_when_stored);
}

void client_process_ends(struct client *client)
{
    struct session *session;

    trace("the process of client %td ends", client - sim.clients);
    sim.count.deaths++;
    client->process_ended = true;
    client->ended_at = sim.world.now;
    life_end(&client->life);
    if (client->state == CLIENT_UP || client->state == CLIENT_GREETS)
        client_hang_up(client, false);
    client->state = CLIENT_GONE;
    burn_letters(client);
    session = sim.world.dead ? NULL : client_session(client);
    if (session)
        session_process_ended(session);
}

bool client_writes_on(const struct client *client)
{
    if (client->state == CLIENT_NONE || client->state == CLIENT_GREETS)
        return false;
    if (!client->process_ended)
        return true;
    /* Where the driver says nothing, kernels are as short as those that were measured. */
    return client->listed && (!sim.mute || sim.world.now < client->ended_at + 60);
}

/* ---- What it maps ---- */

static void send_released(struct client *client, struct view *view)
{
    struct session *session = client->state == CLIENT_UP && !sim.world.dead ? client_session(client) : NULL;

    if (session)
        verb_released(core(), session, view->slot);
    client->last_release[view->slot] = ++client->releases;
}

static void map(struct view *view, int fd)
{
    struct stat status;

    CHECK(fd >= 0 && !fstat(fd, &status));
    fd_close(view->fd);
    view->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    view->ino = status.st_ino;
    view->present = true;
}

static struct view *view_for(struct client *client, const struct letter *letter, unsigned i)
{
    struct view *view = client_view(client, letter->at[i].slot);

    for (unsigned j = 0; j < VIEWS && !view; j++) {
        if (client->views[j].leases)
            continue;
        view = &client->views[j];
        *view = (struct view){
            .slot = letter->at[i].slot, .arena = letter->at[i].arena, .access = letter->at[i].access, .fd = -1};
        lockword_turn_back(word_of(client, view)); /* away, and no locks */
    }
    CHECK(view && view->arena == letter->at[i].arena && view->access == letter->at[i].access);
    view->leases++;
    return view;
}

/* As client/lib/mapping.c joins a mapping. */
static void join(struct client *client, const struct letter *letter, unsigned i)
{
    struct view *view = view_for(client, letter, i);
    _Atomic uint64_t *word = word_of(client, view);

    if (!(*word & LOCKWORD_AWAY)) {
        if (letter->locks)
            lockword_lock(word);
        return;
    }
    if (!letter->at[i].present)
        return;
    if (client->last_release[view->slot] <= letter->before) {
        map(view, letter->at[i].fd);
        lockword_land(word);
        lockword_arrive(word, letter->locks);
    } else {
        send_released(client, view);
    }
}

/* As client/lib/fetch.c ends a lock. */
static void fetch(struct client *client, const struct letter *letter)
{
    for (unsigned i = 0; i < letter->n; i++) {
        struct view *view = client_view(client, letter->at[i].slot);
        CHECK(view && view->busy && !view->present);
        view->busy = false;
        if (letter->at[i].fd < 0) { /* lost: granted all the same */
            send_released(client, view);
            continue;
        }
        map(view, letter->at[i].fd);
        lockword_land(word_of(client, view));
        lockword_arrive(word_of(client, view), 1);
    }
}

/* Who maps a slot waits for whoever fetches it. */
static bool is_busy(const struct letter *letter)
{
    for (unsigned i = 0; i < letter->n && letter->lease; i++) {
        const struct view *view = client_view(letter->client, letter->at[i].slot);
        if (view && view->busy)
            return true;
    }
    return false;
}

void client_reads(struct letter *letter)
{
    struct client *client = letter->client;
    struct held *held = letter->lease ? held_get(letter->lease) : NULL;

    if (is_busy(letter))
        return;
    if (client_is(client, letter->incarnation) && client->state == CLIENT_UP) {
        if (!letter->lease) {
            fetch(client, letter);
        } else if (held) {
            held->delivered = true;
            for (unsigned i = 0; i < letter->n; i++)
                join(client, letter, i);
            for (unsigned i = 0; i < held->n_holdings; i++)
                client_view(client, held->holdings[i].slot)->frozen |= held->holdings[i].frozen;
        }
    }
    letter_free(letter);
}

/* Its last lease on an arena unmaps it; before the DETACH that follows. */
void client_leaves(struct held *held)
{
    for (unsigned i = 0; i < held->n_slots && held->delivered; i++) {
        struct view *view = client_view(held->client, held->slots[i]);
        CHECK(view);
        if (--view->leases)
            continue;
        lockword_turn_back(word_of(held->client, view));
        unmap(view);
    }
    held->delivered = false;
}

static bool let_go(struct client *client, struct view *view)
{
    if (view->busy || !view->present || !lockword_try_release(word_of(client, view)))
        return false;
    unmap(view);
    send_released(client, view);
    return true;
}

/* A safe point, or its thread at work. */
void client_lets_go(struct client *client)
{
    for (unsigned i = 0; i < VIEWS && client->state == CLIENT_UP && !sim.world.dead; i++)
        if (client->views[i].leases)
            let_go(client, &client->views[i]);
}

void client_locks(struct client *client)
{
    uint32_t slots[4], n = 0;

    for (unsigned i = 0; i < VIEWS && n < 4; i++) {
        struct view *view = &client->views[i];
        if (!view->leases || view->busy || random_one_in(&sim.random, 2))
            continue;
        if (lockword_lock(word_of(client, view)) == LOCKWORD_DONE)
            continue;
        /* What the daemon waits for goes first. */
        if (!(*word_of(client, view) & LOCKWORD_AWAY) && (client->state != CLIENT_UP || !let_go(client, view)))
            continue;
        if (client->state == CLIENT_UP && !sim.world.dead)
            slots[n++] = view->slot;
    }
    for (unsigned i = 0; i < n; i++)
        client_view(client, slots[i])->busy = true;
    if (n == 1 && random_one_in(&sim.random, 2))
        ask_early(client, slots[0]);
    else if (n)
        ask_lock(client, slots, n);
}

void client_unlocks(struct client *client)
{
    for (unsigned i = 0; i < VIEWS; i++) {
        struct view *view = &client->views[i];
        if (view->leases && view->present && !random_one_in(&sim.random, 3) &&
            lockword_unlock(word_of(client, view)) == LOCKWORD_RELEASE)
            let_go(client, view);
    }
}

/* ---- Its work ---- */

/* A live one writes under a lock; of a dead one, kernels go on. */
void client_writes(struct client *client)
{
    list_for_each (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->client != client || !held->delivered || held->access != HBM_RW || held->part)
            continue;
        for (unsigned i = 0; i < held->n_holdings; i++) {
            struct holding *holding = &held->holdings[i];
            struct view *view = client_view(client, holding->slot);
            struct known *known = known_get(holding->buffer);
            if (!view || !view->present || !(*word_of(client, view) & LOCKWORD_COUNT) || view->frozen || !known ||
                known->opaque || random_one_in(&sim.random, 3))
                continue;
            contents_write(view->fd, &holding->form, ++sim.next_tag);
            known_write(known, sim.next_tag);
            sim.count.writes++;
        }
    }
}

/* Whatever it has mapped is what was written last. */
void client_looks(struct client *client)
{
    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        if (held->client != client || !held->delivered || held->part)
            continue;
        for (unsigned i = 0; i < held->n_holdings; i++) {
            const struct holding *holding = &held->holdings[i];
            const struct view *view = client_view(client, holding->slot);
            const struct known *known = known_get(holding->buffer);
            if (!view || !view->present || !known || known->opaque || known->damaged)
                continue;
            CHECK(contents_read(view->fd, &holding->form) == (holding->frozen ? holding->tag : known->tag));
        }
    }
}

/* ---- The owner goes, and is back ---- */

/* Its page is as it was when the owner died: the core's own end is none that a SIGKILL leaves time for. */
void client_comes_down(struct client *client)
{
    burn_letters(client);
    for (unsigned i = 0; i < VIEWS; i++) {
        client->views[i].busy = false;
        client->views[i].early = EARLY_NOT;
    }
    if (client->words)
        memcpy((void *)client->words, (void *)client->words_at_death, LOCKWORD_PAGE_BYTES);
    client->kicked = false;
    client->unheard |= client->state == CLIENT_GONE && sim.doing.any;
    if (client->state == CLIENT_UP)
        client->state = CLIENT_DOWN;
    if (client->state == CLIENT_GREETS) { /* it will greet the next one, as another process */
        client->state = CLIENT_GONE;
        life_end(&client->life);
        client->process_ended = client->unheard = true;
        client->ended_at = sim.world.now;
    }
}

/* As client/lib/resume.c presents itself. */
void client_resume(struct client *client)
{
    uint64_t ids[256], sorted[256], lost[256], used[LOCKWORD_SLOTS / 64] = {0};
    struct resume resume = {.leases = ids, .slots = used, .lost = lost, .sorted = sorted};
    struct session *session =
        session_to_resume(core(), client->session, client->secret, &client->who, client->pid, client->life.pidfd);

    trace("client %td %s", client - sim.clients, session ? "is back" : "is not let back in");
    CHECK(session || !client->pid); /* a process of another namespace, and no pidfd that tells it from others */
    if (!session) {
        client_process_ends(client);
        return;
    }
    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        if (held->client == client && held->delivered && resume.n_leases < 256)
            ids[resume.n_leases++] = held->id;
    }
    for (unsigned i = 0; i < VIEWS; i++)
        if (client->views[i].leases)
            used[client->views[i].slot / 64] |= (uint64_t)1 << (client->views[i].slot % 64);
    session_compare(session, &resume);
    CHECK(!resume.n_lost); /* what was granted had been written before */
    client->state = CLIENT_UP;
    take_link(client, session);
    session_resume(session, &client->who, client->pid, "client", &resume);
    list_for_each_safe (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->client == client && !held->delivered && !sim.world.dead)
            held_drop(held);
    }
    for (unsigned i = 0; i < VIEWS && !sim.world.dead; i++)
        if (client->views[i].leases && (*word_of(client, &client->views[i]) & LOCKWORD_AWAY))
            send_released(client, &client->views[i]);
}
