/* A file that appears whole or not at all: written beside its place, then renamed over it. */
#pragma once

#define OUT_FILE_WHY 512

struct out_file {
    struct out_file *next; /* of those that are not committed: they go if the program ends */
    int fd;                /* read and write */
    char *path;
    char *temporary;
    unsigned mode;
};

/* Nothing but a regular file is ever replaced. The struct stays where it is until it is cleared. 0, or -1 with a sentence in why. */
int out_file_open(struct out_file *file, const char *path, char why[OUT_FILE_WHY]);
/* On disk, then in place. 0, or -1 with a sentence in why; the old file is still there then. */
int out_file_commit(struct out_file *file, char why[OUT_FILE_WHY]);
/* Closes; removes what was not committed. Harmless on a zeroed struct. */
void out_file_clear(struct out_file *file);
