/* The scenes of test_core_memory: things asked of a core that may refuse for want of memory. A new one is a
 * function in one of memory_*_scenes.c, and a row of its table there. */
#pragma once

#include "core_world.h"

struct scene {
    const char *name;
    void (*run)(void);
    bool frees;
};
#define SCENE(name)                                                                                                \
    {                                                                                                              \
#name, name, false                                                                                         \
    }
#define FREEING(name)                                                                                              \
    {                                                                                                              \
#name, name, true                                                                                          \
    }

/* Each ends with a row of zeros. */
extern const struct scene memory_lease_scenes[], memory_move_scenes[], memory_code_scenes[];

struct fault {
    const char *scene;
    unsigned n, used; /* the n-th of the uses fails; uses so far */
    bool held;        /* none fails, and none counts */
    bool struck;
    const char *by; /* code of the core */
};
extern struct fault fault;

/* What there is beside the buffers: the first two are alice's. */
extern struct session *reader, *other, *stranger;
extern int file;

/* The detail of a refusal, which is for want of memory, or wrong. */
void check_refusal(int error, const char *detail);
/* Of an ask that ends within four seconds, and is freed. 0, or the refusal. */
int outcome(struct ask *question, uint64_t *id);
int lease_of(struct ask *question, struct lease **ret);
/* Also of its op. */
int end_of(struct ask *question);
int attach_to(struct principal who, struct session *session, const char *name, enum hbm_access access,
              struct lease **ret);

/* 0, or the error that the verb, or its op, ended with. */
#define ASK(end, who, session, verb, ...)                                                                          \
    ({                                                                                                             \
        struct ask *question_ = ask(&w, who, session);                                                             \
        verb(w.core, &question_->call, __VA_ARGS__);                                                               \
        end;                                                                                                       \
    })
#define OP(verb, ...) ASK(end_of(question_), alice, NULL, verb, __VA_ARGS__)
#define DO(session, verb, ...)                                                                                     \
    ASK(({                                                                                                         \
            uint64_t id_;                                                                                          \
            outcome(question_, &id_);                                                                              \
        }),                                                                                                        \
        alice, session, verb, __VA_ARGS__)
#define LEASE(ret, who, session, verb, ...) ASK(lease_of(question_, ret), who, session, verb, __VA_ARGS__)
