/* A seeded simulation: the real core and its ledger under clients, workers, a store and a clock that are made up,
 * all driven by one random number. Beside it a model, kept by what clients were told and no more, says what must
 * hold.
 *
 * Contents are numbers: each write of a client's puts a new one at both ends of a buffer; jobs move what they find.
 * So whatever is lost, swapped or stale is seen. */
#pragma once

#include "tests/fuzz/life.h"
#include "tests/fuzz/world.h"
#include "tests/sim/random.h"

#define CLIENTS 6
#define VIEWS 48   /* arenas a client maps at once */
#define HOLDINGS 4 /* buffers of a model */
#define HISTORY 16

/* How a buffer lies in its extent. */
struct form {
    uint64_t offset, size, scale_offset, zero_offset, outliers_offset;
    struct hbm_encoding encoding;
};

/* ---- What clients have: client.c ---- */

/* A slot of the session's page, as its client has it. */
struct view {
    uint32_t slot;
    unsigned leases;    /* 0: the view is free */
    bool present, busy; /* busy: a lock of it is under way */
    enum { EARLY_NOT, EARLY_COMES, EARLY_FAILED } early; /* memory without its bytes is mapped there: what is to be said next */
    bool frozen;        /* its arena took another form: it keeps the old one */
    uint64_t arena, ino;
    int fd;
    enum hbm_access access;
};

enum client_state {
    CLIENT_NONE,
    CLIENT_GREETS, /* its HELLO is not answered yet */
    CLIENT_UP,
    CLIENT_DOWN, /* the owner went; it has not come back yet */
    CLIENT_GONE, /* hung up; its process, or what it left on the GPU, may still write */
};

struct client {
    struct principal who;
    int32_t pid;
    struct life life;
    enum client_state state;
    unsigned incarnation;
    uint64_t session;
    uint8_t secret[32];
    int page_fd;
    _Atomic uint64_t *words, *words_at_death;  /* the second: as they were when the owner died */
    bool kicked, clean, process_ended, listed; /* listed: by NVML */
    bool unheard;                              /* the owner died before it had noted that this one had hung up */
    uint64_t ended_at, releases, last_release[LOCKWORD_SLOTS];
    struct view views[VIEWS];
};

/* ---- What is known of the core by its answers: model.c ---- */

struct known {
    struct list node;
    uint64_t id, model; /* model: id, 0 if none */
    struct owner owner;
    bool shared, keep, freed, lost;
    bool opaque;  /* a private copy of scales: its bytes are no number */
    bool damaged; /* while it lay off the device */
    uint32_t mode;
    char name[32];
    uint64_t tag, was[HISTORY], until[HISTORY]; /* earlier tags, and the step in which each ended */
    unsigned n_was;
    /* As last seen. */
    struct hbm_encoding encoding;
    uint32_t version;
    uint64_t arena;
};

struct known_model {
    struct list node;
    uint64_t id;
    struct owner owner;
    bool shared, sealed, listed;
    char name[16];
};

/* A buffer in a lease. */
struct holding {
    uint64_t buffer;
    uint32_t slot;
    struct form form;
    uint64_t step, extent; /* of the grant */
    bool frozen;
    uint64_t tag; /* when it froze */
};

/* A lease, from the core's answer on. */
struct held {
    struct list node;
    struct client *client;
    uint64_t id, buffer, model; /* one of these two; of a part, the encoded buffer's */
    uint64_t part;              /* 0: it is on none */
    bool builder, delivered, on_gpu;
    enum hbm_access access;
    unsigned n_slots, n_holdings;
    uint32_t slots[HOLDINGS];
    struct holding holdings[HOLDINGS];
};

/* ---- Requests: ask.c ---- */

enum ask_kind {
    ASK_ALLOC,
    ASK_ATTACH,
    ASK_MODEL, /* attach or publish */
    ASK_COMMIT,
    ASK_DETACH,
    ASK_FREE,
    ASK_LOCK,
    ASK_EARLY,
    ASK_ARRIVED,
    ASK_OP,
    ASK_RENAME,
    ASK_RM,
    ASK_KICK,
};

struct ask {
    struct call call;
    struct list node; /* sim.asks */
    enum ask_kind kind;
    struct client *client; /* NULL: an operator */
    unsigned incarnation;
    uint64_t step, before; /* before: the client's releases when it asked */
    uint64_t id;           /* of what it is about: lease, buffer or model */
    bool commits, unlocked;
    char to[32];
    uint32_t slots[4], n_slots;
};

/* What the client gets to read of a lease's or lock's answer. */
struct letter {
    struct list node; /* sim.letters */
    struct client *client;
    unsigned incarnation;
    uint64_t lease, before; /* lease 0: of a lock */
    bool locks;
    unsigned n;
    struct {
        uint32_t slot;
        uint64_t arena;
        bool present;
        int fd;
        enum hbm_access access;
    } at[HOLDINGS];
};

/* An op that runs. */
struct running {
    struct list node;
    uint64_t id, step;
    bool recodes, hashes;
    unsigned n;
    uint64_t originals[64];
};

/* Whose an extent's memory is. */
struct memory {
    uint64_t extent, ino;
    struct owner owner;
};
#define MEMORY 1024
#define GIVEN 512
#define LATE 16

struct sim {
    struct world world;
    struct random random;
    uint64_t step, next_tag;
    struct client clients[CLIENTS];
    struct list known, models, held, asks, letters, running;
    uint64_t recoded;  /* the last step in which an op that changes forms ended well */
    uint64_t lost[64]; /* extents whose fds are not with the store any more */
    unsigned n_lost;
    struct memory memory[MEMORY];
    uint64_t given[GIVEN]; /* ids of buffers */
    unsigned n_given;
    uint64_t damaged[64]; /* inodes */
    unsigned n_damaged;
    int blocks[256]; /* cuda-ipc memory, by token - 1 */
    bool mute;       /* NVML does not tell */
    struct {
        int fd;
        uint64_t at;
    } late[LATE]; /* what workers that were killed and have not ended will still write */
    unsigned n_late;
    struct {
        bool any; /* an owner died in the midst of something; what it was about may be done or not */
        bool frees, renames, makes;
        uint64_t lease; /* that was being given up */
    } doing;
    struct {
        bool full;       /* the ledger's file system */
        bool behind;     /* the ledger was, when the owner died */
        unsigned die_in; /* the n-th write from now is the owner's last; 0: none */
        unsigned last;   /* bytes of that one that are written; UINT32_MAX: all */
    } disk;
    struct {
        uint64_t restarts, deaths, answers, refusals, grants, moves, parts, writes;
    } count;
};
extern struct sim sim;

static inline struct core *core(void)
{
    return sim.world.core;
}

__attribute__((format(printf, 1, 2))) void trace(const char *format, ...);
/* For people: without the epoch, which is another each time. */
static inline unsigned long long number(uint64_t id)
{
    return id & 0xffffffffffffull;
}

/* contents.c */
struct form form_of(const struct buffer *buffer);
/* The same, as it lies where its arena is now: packed, maybe. */
struct form form_there(const struct buffer *buffer);
void contents_write(int fd, const struct form *form, uint64_t tag);
uint64_t contents_read(int fd, const struct form *form); /* UINT64_MAX: not a whole number */
int extent_fd(const struct extent *extent);
void contents_perform(struct world *world, struct job *job);
void contents_damage(const struct arena *arena);
void contents_write_late(void);

/* client.c */
bool client_is(const struct client *client, unsigned incarnation);
struct session *client_session(const struct client *client);
struct view *client_view(struct client *client, uint32_t slot);
bool client_writes_on(const struct client *client); /* its process, or its kernels */
void client_connect(struct client *client);
void client_hang_up(struct client *client, bool clean);
void client_process_ends(struct client *client);
void client_resume(struct client *client);
void client_forget(struct client *client);
void client_comes_down(struct client *client);
void client_lets_go(struct client *client);
void client_reads(struct letter *letter);
void client_leaves(struct held *held);
void client_locks(struct client *client);
void client_unlocks(struct client *client);
void client_writes(struct client *client);
void client_looks(struct client *client);
void letter_free(struct letter *letter);

/* ask.c */
void ask_something(struct client *client);
void ask_as_operator(void);
void asks_poll(void); /* ops that have ended since */
void ask_early(struct client *client, uint32_t slot);
void ask_lock(struct client *client, const uint32_t *slots, uint32_t n);
void ask_free_all(void);

/* answer.c */
void answered(struct call *call, int error, void *result);

/* model.c */
struct known *known_get(uint64_t id);
struct known *known_add(const struct buffer *buffer, uint64_t tag);
struct known_model *known_model(uint64_t id);
struct held *held_get(uint64_t id);
void known_write(struct known *known, uint64_t tag);
bool known_had(const struct known *known, uint64_t tag, uint64_t since);
void held_drop(struct held *held);
bool is_leased(const struct known *known);
bool model_is_leased(const struct known_model *model);
bool may_write(const struct principal *who, const struct known *known);
void held_add(struct held *held, const struct lease *lease);
void model_forget(void);
void model_give_up(const struct client *client); /* what it was building */
/* A restart: what was being built goes; what the dying owner was about is taken as it has come out. */
void model_meets_restart(void);

/* check.c */
void check_all(void);
void check_at_rest(void);

/* main.c */
void sim_settle_in(void);

/* restart.c */
void owner_dies(void);
void disk_arm(void);
