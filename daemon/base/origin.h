/* Which container and which pod a process is in, by the names that runtimes give its cgroup. For people: whoever may make
 * cgroups of his own may name them so, and no right follows from it. */
#pragma once

#include <sys/types.h>

#define ORIGIN_POD 36       /* a UID with dashes; of a static pod 32 digits */
#define ORIGIN_CONTAINER 64 /* lower-case hex */

struct origin {
    char pod[ORIGIN_POD + 1], container[ORIGIN_CONTAINER + 1]; /* "" where there is none */
};

/* The text of a /proc/PID/cgroup, of either version. The outermost of each counts: what is inside a container is its own
 * affair. Whatever the names, nothing but hex digits and dashes comes out. */
void origin_of_text(const char *text, struct origin *origin);
/* Reads it, which may wait for whoever moves cgroups about. Nothing where it cannot be read. */
void origin_of_process(pid_t pid, struct origin *origin);
