/* What must be in the daemon, in a file that all of the storm's processes map and that none of their deaths takes.
 * storm.py maps it too, by the offsets that `client layout` prints.
 *
 * A row is read by who holds its record lock shared, changed by who holds it alone; the kernel drops those locks
 * with their process. `by` is who is changing what the row speaks of. If that one dies, what it asked for may still
 * be on its way: nobody touches the row until storm.py has seen its session released, and clears `by`. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NAMED 8 /* kept buffers "b0", ...; then as many bf16 copies of them, "b0.bf16", ... */
#define BUFFERS (2 * NAMED)
#define MODELS 3        /* "m0", ... */
#define TENSORS 4       /* each in a group of its own */
#define ERRORS 64       /* error numbers, by which failures are counted */
#define FROZEN 8        /* a power of two */
#define GONE UINT32_MAX /* as a version: that there is none */

enum presence { ABSENT, UNSURE, THERE };

struct buffer_truth {
    _Atomic uint32_t presence; /* UNSURE: the call that makes or frees it ended with nobody knowing how */
    _Atomic int32_t by;
    _Atomic uint32_t version;        /* what was written last; 0: nothing yet, it is zero */
    _Atomic uint32_t next;           /* 0, or what is being written: each word is of this or of `version` */
    _Atomic uint32_t births;         /* how often it was made or freed, or that was tried */
    _Atomic uint32_t recodes;        /* how often its encoding was replaced, or that was tried */
    _Atomic uint64_t id;             /* when it was last seen; 0: never */
    _Atomic uint64_t size;           /* of its raw form */
    _Atomic uint32_t frozen[FROZEN]; /* the version at each replacement: a reader may still hold that memory */
};

struct model_truth {
    _Atomic int32_t by;
    _Atomic uint32_t sealed; /* its version, which is in its metadata; 0: there is none */
    _Atomic uint32_t next;   /* 0, or what a commit is making of it; GONE: it is being removed */
    _Atomic uint32_t unused;
};

struct truth {
    _Atomic uint32_t stop; /* all clients shall end in good order */
    _Atomic uint32_t versions;
    _Atomic uint64_t done, checked, checked_bytes, torn; /* torn: buffers whose writer had died in the middle */
    _Atomic uint64_t errors[ERRORS];
    struct buffer_truth buffers[BUFFERS];
    struct model_truth models[MODELS];
};

extern struct truth *truth;

/* false: a sentence is on stderr. */
bool truth_open(const char *path);

/* Rows are locked by their number, models after buffers. Never waits, but for `patiently`. */
#define MODEL_ROW(i) (BUFFERS + (i))
bool row_share(unsigned row);
bool row_own(unsigned row);
bool row_own_patiently(unsigned row);
void row_leave(unsigned row);

uint32_t new_version(void);
