/* The world of a core under test: workers whose jobs run on memfds when the test says so, or fail, or are killed; a
 * clock that stands still; a store that outlives the core; clients that are structs. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/core/ledger.h"
#include "daemon/core/names.h"
#include "daemon/core/verbs.h"

#define MIB ((uint64_t)1 << 20)

struct kept {
    struct list node;
    char name[STORE_NAME_MAX];
    int fd;
};

struct slow_close {
    struct list node;
    int fd;
    void (*closed)(void *argument);
    void *argument;
};

struct world {
    struct core *core;
    struct device *device;
    struct device *peer; /* with `two`: reached from the device, and the other way */
    bool two;
    struct ledger *ledger;
    uint64_t now, wake;
    struct list jobs; /* submitted, oldest first */
    struct list store;
    struct list closes; /* struct slow_close, oldest first */
    bool slow;     /* memory's fds stay open until world_close_one */
    bool hold;     /* jobs stay where they are until world_step */
    unsigned store_is_full; /* 1: for new memory; 2: for all */
    bool keep_all; /* the store forgets nothing: for ledgers of the past */
    /* The n-th job of this opcode (from now, 1 = next) ends with this error. */
    unsigned fault_opcode, fault_in;
    int fault_error;
    bool fault_at_large; /* and its worker may still be there */
    bool fault_late; /* and it is a file that did not answer */
    unsigned ran[JOB_OPCODES]; /* jobs that were run, by opcode */
    struct job_calibration calibration; /* of the last ENCODE; and the elements in the counts that came with it */
    uint64_t observed;
    const char *device_name;
    uint64_t spill_key;
    char dir[64];
    int dir_fd;
    int copy; /* of the ledger, in the store; 0: none */
    unsigned fds_at_start;
    int blocks[16]; /* cuda-ipc: memfds by token - 1 */
    unsigned n_blocks;
    int32_t listed_pid; /* NVML still lists it */
    bool mute;          /* NVML does not tell */
    struct job_query_reply said; /* of the device */
};

/* The one that the cases of a file share, new for each. */
extern struct world w;
int world_setup(void **state);
int world_setup_two(void **state);
int world_teardown(void **state);

/* With a ledger in a directory of its own. */
void world_begin(struct world *world);
/* A second device, also after each restart. */
void world_add_peer(struct world *world);
/* Frees everything; the books must balance and no fd may be left. */
void world_end(struct world *world);
/* The oldest job runs and ends; false if there is none. */
bool world_step(struct world *world);
/* The oldest of the fds that are slow to close is closed; false if there is none. */
bool world_close_one(struct world *world);
/* Jobs and due timers, until nothing is left to do. */
void world_run(struct world *world);
void world_pass(struct world *world, uint64_t ms);
/* The process dies and another starts: only ledger and store are left. Returns what ledger_readopt does. */
int world_restart(struct world *world);
void world_crash(struct world *world);
int world_come_back(struct world *world);
/* The two halves of that: a core with its device, and what ledger and store have for it. */
void world_start(struct world *world);
int world_take_over(struct world *world);
void world_fail(struct world *world, unsigned opcode, unsigned in, int error);
struct kept *world_kept(struct world *world, const char *prefix);
void world_lose(struct world *world, const char *prefix);

/* Everything that must survive, as text (free it). */
char *world_picture(const struct world *world);
/* used[] of the device and bytes[] of the accounts are what the extents add up to. */
void world_check_books(struct world *world);

/* Does the job's work now. 0 or a negative hbm_error. */
int core_job_run(struct world *world, struct job *job);

/* ---- Clients ---- */

extern const struct principal alice, bob, root;
struct session *client(struct world *world, struct principal who);
/* It unmaps what it was asked to, where it holds no lock, and says so. */
void client_lets_go(struct world *world, struct session *session);
void client_locks(struct session *session, uint32_t slot);

struct ask {
    struct call call;
    unsigned answers;
    int error;
    uint64_t id;    /* of the op or lease that came */
    uint64_t value; /* of another result */
};
struct ask *ask(struct world *world, struct principal who, struct session *session);
/* The op of an ask, after all has run; the ask is freed. A refusal is given as its error, detail copied. */
struct op *op_of(struct world *world, struct ask *ask);
/* The same of what answers with a lease. */
uint64_t id_of(struct world *world, struct ask *ask);
int error_of(struct world *world, struct ask *ask);
extern char last_detail[HBM_DETAIL_MAX];

/* A buffer of F32 [rows, columns], filled with small numbers; leased rw by session. */
struct buffer *make_buffer(struct world *world, struct session *session, const char *name, uint64_t rows,
                           uint64_t columns, uint32_t flags);
/* The same, kept and leased by nobody. */
struct buffer *make_kept(struct world *world, const char *name, uint64_t rows, uint64_t columns);
/* A page of cuda-ipc memory, kept; the session of alice's that has it. */
struct session *make_cuda_ipc(struct world *world, const char *name);
/* "m" of n groups "layer.N" with tensors w [64, 256] and b [256] each, sealed, alice's. */
struct model *make_model(struct world *world, const char *name, unsigned groups);
/* Asks to build such a one. */
struct ask *ask_to_build(struct world *world, struct session *session, const char *name, unsigned groups, uint32_t flags);
/* The same, still being built by the session returned. */
struct session *build_model(struct world *world, const char *name, unsigned groups, uint32_t flags, uint64_t *lease);
struct buffer *named(struct world *world, const char *name);
struct lease *attach(struct world *world, struct session *session, const char *name, enum hbm_access access);
void detach(struct world *world, struct lease *lease);
/* The arena's bytes as they are now, from wherever they are. */
void buffer_bytes(const struct buffer *buffer, void *bytes);
void buffer_write(const struct buffer *buffer, const void *bytes);
void fill(const struct buffer *buffer, unsigned seed);
bool is_filled(const struct buffer *buffer, unsigned seed);

/* For verb_transfer, which takes them. */
struct wire_range *mapped_ranges(const struct wire_range *ranges, uint32_t n);
struct op *offload(struct world *world, const char *sel, enum hbm_tier tier, bool force);
struct op *restore(struct world *world, const char *sel);
struct op *compress(struct world *world, const char *sel, unsigned codec);
struct op *park(struct world *world, const char *sel, unsigned codec);
