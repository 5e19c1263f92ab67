/* The owner of a worker under fuzzing: our end of the socketpair. */
#pragma once

#include "tests/fuzz/fill.h"

struct piece {
    int fd;
    struct job_extent extent;
};
extern struct piece pieces[4]; /* that CREATE has made in this input, or that we made ourselves */
extern int owner_fd;

/* At this end of a worker's socketpair from now on. */
void owner_begin(int fd);
/* Takes fd, in the place of another. */
void owner_keep(unsigned place, int fd, struct job_extent extent);
/* Sends it and, unless it is one-way, waits for its one answer. created: what a CREATE asked for; its extent is
 * kept. */
void owner_ask(uint32_t opcode, const void *body, size_t size, const int *fds, unsigned n_fds,
               const struct job_create_request *created);
