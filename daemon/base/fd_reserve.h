/* File descriptors that clients cannot use up: the soft limit stays below the hard one, and is lifted for the
 * moments in which an operator is let in, or a dead worker replaced. Whoever then asks is answered, however many
 * clients hold all the rest. For the loop's thread; children inherit whichever limit holds. */
#pragma once

#include <stdbool.h>

/* As the process starts: raises the soft limit to what the hard one allows, less the reserve. Without it, lifting
 * does nothing. */
void fd_reserve_keep(void);
void fd_reserve_lift(bool lifted);
/* This errno says that there are no more. */
bool fd_ran_out(int error);

#define FD_RAN_OUT "the daemon has no file descriptors left; raise its LimitNOFILE"
