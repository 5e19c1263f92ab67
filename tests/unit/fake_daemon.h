/* A daemon of a few hundred lines for libhbm's tests: speaks the protocol with memfds, and misbehaves when told to.
 * Buffer "bN" is arena N in slot N + 3; "model" has all arenas, tensors "t0".. in groups "g0".. . One session at a
 * time. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/hbm.h"
#include "proto/lockword.h"
#include "proto/messages.h"

/* cmocka's asserts jump, which only the test's own thread may do: in others this ends the program. */
#define MUST(condition)                                                                                            \
    do {                                                                                                           \
        if (!(condition)) {                                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, hbm_last_error_detail());           \
            abort();                                                                                               \
        }                                                                                                          \
    } while (0)

#define ARENAS 8
#define BYTES 8192
#define SLOT(arena) ((arena) + 3)

extern struct fake {
    char dir[64];
    int listener, words_fd;
    _Atomic int socket;
    pthread_t thread;
    _Atomic uint64_t *words;
    _Atomic int fds[ARENAS];
    _Atomic bool away[ARENAS];
    int early_fd;                          /* of what LOCK_EARLY gave without its bytes */
    _Atomic uint32_t early_slot, arriving; /* arriving: serial of the ARRIVED that waits, 0 none */
    _Atomic bool dying;                    /* cut_after is at work */
    /* what it is told to do */
    _Atomic bool defer;         /* the next reply goes out after the one that follows it */
    _Atomic bool event_first;   /* an event before each reply */
    _Atomic bool vanish;        /* GOODBYE and close at the next ATTACH */
    _Atomic bool stopping;      /* refuses ATTACH, then goes */
    _Atomic bool hang_up;       /* on all who connect */
    _Atomic unsigned cut_at;    /* opcode: the next such request is read, and the process dies */
    _Atomic unsigned cut_after; /* likewise, its reply having been sent */
    _Atomic bool refuse_hello;
    _Atomic int refuse_lock;      /* error of every LOCK */
    _Atomic int refuse_resume;    /* error of every RESUME */
    _Atomic int refuse_window;    /* error of every WINDOW */
    _Atomic bool knows_no_buffer; /* that a TRANSFER names */
    _Atomic bool move_in_attach;  /* between an ATTACH and its reply the arena moves */
    _Atomic int ask_during_lock;  /* arena asked back while a LOCK waits, -1 none */
    _Atomic unsigned n_devices;   /* "host", "host1", ... */
    _Atomic bool cuda;            /* its device is a GPU */
    _Atomic bool comes; /* LOCK_EARLY gives memory without its bytes; ARRIVED is not answered before fake_arrive */
    _Atomic unsigned lose; /* of the leases in a RESUME, the first so many are unknown */
    /* what it was asked */
    _Atomic unsigned connects, requests, detached, released, locks, commits, byes;
    _Atomic uint32_t attach_flags; /* of the last */
    _Atomic unsigned resumes, listed;
    uint64_t listed_ids[64], listed_slots[LOCKWORD_SLOTS / 64]; /* by the last RESUME */
    _Atomic unsigned aheads;
    struct wire_ahead_request ahead; /* the last */
    _Atomic unsigned behinds;
    char behind[256]; /* all of it since it was last set to "" */
    char order[32];
} fake;

/* Of a test's setup and teardown: it listens in fake.dir, with every arena present. */
int start_fake(void **state);
int stop_fake(void **state);

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_fake, stop_fake)

int listen_at(const char *path);

/* The process ends, and another serves at once. */
void daemon_dies(void);

/* Nobody can connect while it is away. */
void daemon_moves(bool away);

/* An arena that its client has unlocked is wanted back. */
void ask_back(unsigned arena);

/* The bytes that LOCK_EARLY promised are there, or, with an error, never will be. */
void fake_arrive(int error);
