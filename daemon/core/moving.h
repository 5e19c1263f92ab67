/* An op that is one transition: offload, restore, sleep, wake, compress and decompress. Built in three moves:
 * moving_new, then plans and rows, then moving_answer (or moving_run). */
#pragma once

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "daemon/core/op.h"

struct moving {
    struct core *core;
    uint64_t op;
    struct transition transition; /* plans: room for as many as moving_new was told; n counts those filled */
    struct op_row *rows;          /* likewise; the op's from moving_run on */
    size_t n_rows;
    bool quiet;              /* as the op's */
    struct arena_wait yielded; /* own: until a move of the daemon's own has given way */
    /* After a success, before the op ends. NULL: each row's buffer is looked up and the row says how it is now. */
    void (*fill)(struct moving *moving, struct op *op);
    void (*clear)(struct moving *moving); /* the verb's own, before the moving is freed */
    void *own;
};

struct moving *moving_new(struct core *core, size_t plans, size_t rows); /* NULL: memory is out */
struct moving *moving_free(struct moving *moving);
DEFINE_FREEP(struct moving, moving_free)
/* A row of what the buffer is now; skipped NULL or static. */
struct op_row *moving_row(struct moving *moving, const struct buffer *buffer, const struct principal *who,
                          const char *skipped);
/* Takes moving in any case; NULL moving: memory is out. NULL with error and detail. The op may have ended already.
 */
struct op *moving_run(struct moving *moving, const char *verb, const struct principal *who, struct session *session,
                      int *error, char *detail);
/* The same, with the call answered. */
void moving_answer(struct moving *moving, const char *verb, struct call *call);

/* The arenas that are not in that tier yet go there; a row for each buffer of all of them. who NULL: the daemon.
 * NULL: memory is out. */
struct moving *moving_arenas(struct core *core, const struct principal *who, struct arena *const *arenas, size_t n,
                             enum hbm_tier tier);
/* The same, parked (plan_move_as). */
struct moving *moving_arenas_as(struct core *core, const struct principal *who, struct arena *const *arenas, size_t n,
                                enum hbm_tier tier, const struct parking *park);

/* What a fill of NULL does. */
void moving_fill_rows(struct op *op);
/* How the buffer is now: in a new row, which is all zeros, and in one that is there. who NULL: the daemon. */
void op_row_begin(struct op_row *row, const struct buffer *buffer, const struct principal *who);
void op_row_show(struct op_row *row, const struct buffer *buffer);

/* The arenas of a selection, each once, in order of making. */
struct arenas {
    struct arena **at;
    size_t n;
};
/* 0, or an error with detail: NOT_READY (one of a model that is being built), NO_MEMORY. */
int arenas_of(const struct selection *selection, struct arenas *arenas, char *detail);
void arenas_clear(struct arenas *arenas);
/* 0, or NOT_READY with detail. */
int arena_is_built(const struct arena *arena, char *detail);
size_t arena_count_buffers(const struct arena *arena); /* scales not counted */
