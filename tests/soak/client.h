/* One of the storm's clients: a session, what it holds, and the dice. */
#pragma once

#include "client/hbm.h"
#include "tests/soak/memory.h"
#include "tests/soak/truth.h"

#define ONE_OF(name) ((uint64_t)1 << -HBM_E_##name)

/* What a death anywhere, or another client's lease, may make of any call. */
#define EXPLAINED                                                                                                  \
    (ONE_OF(RETRY) | ONE_OF(WORKER_DIED) | ONE_OF(BUSY) | ONE_OF(LIMIT) | ONE_OF(NO_MEMORY) | ONE_OF(TIMEOUT) |    \
     ONE_OF(CANCELLED))

extern hbm_session *session;
extern bool no_thread; /* the session has none: hbm_dispatch() is ours */
extern int32_t self;   /* this process, in the truth's `by` */

uint32_t dice(uint32_t sides);
bool chance(unsigned percent);

/* Something is not as it must be: says it, and ends the process in a way that storm.py sees. */
__attribute__((noreturn, format(printf, 1, 2))) void broken(const char *format, ...);
/* Counts a call. True: it went well. One that failed otherwise than by `also` or EXPLAINED is broken. */
bool went_well(const char *call, int error, uint64_t also);
/* It has read these bytes and found them right. */
void count_checked(uint64_t bytes, bool mixed);

/* ---- buffers.c ---- */

void buffer_name(unsigned row, char name[32]);
/* One thing with the kept buffers, which all clients share. */
void do_make(void);
void do_write(void);
void do_read(void);
void do_free(void);
void do_copy(void);
void do_recode(void);
void do_move(void);
/* Finds out what became of a row whose `by` is nobody any more, and reads it; prints "NAME HASH" if it is there. */
void report_buffer(unsigned row);

/* ---- held.c: leases that are kept from one step to the next ---- */

struct held {
    hbm_lease *lease; /* NULL: a free place */
    unsigned row;     /* BUFFERS: a buffer of this process alone, with `version` in it */
    uint32_t recodes, version;
    bool rw, locked;
    bool doubtful; /* a safe point failed: it may be unlocked */
};

/* Keeps it or, by chance or for want of room, gives it up. */
void hold_or_drop(struct held held);
void do_private(void);
void do_held(void);
void do_lock_many(void);
void do_safepoint(void);
void check_held(const struct held *held);
void drop_all(void);

/* ---- models.c ---- */

void do_publish(void);
void do_model(void);
void do_held_model(void);
void report_model(unsigned m);
void drop_models(void);
