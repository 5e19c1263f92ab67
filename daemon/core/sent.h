/* Files that clients sent. Closing the last fd of one can take for ever: its file system is asked, or its socket
 * lingers. So none is closed on the loop. */
#pragma once

#include "daemon/base/cleanup.h"
#include "daemon/core/call.h"

/* Takes the fd; -1 is fine. */
static inline void sent_close(struct core *core, struct owner owner, int fd)
{
    if (fd >= 0 && core->env.close_sent)
        core->env.close_sent(core->env.context, owner, fd);
    else
        fd_close(fd);
}

/* Much of what this owner sent does not close. */
static inline bool sent_is_stuck(const struct core *core, struct owner owner)
{
    return core->env.close_sent && core->env.close_sent(core->env.context, owner, -1);
}
