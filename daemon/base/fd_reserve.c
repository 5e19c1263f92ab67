#include "daemon/base/fd_reserve.h"

#include <errno.h>
#include <sys/resource.h>

#define RESERVE ((rlim_t)32)

static bool kept;
static rlim_t soft; /* while it is lifted: what it was, whoever may have set it */

void fd_reserve_keep(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max - (limit.rlim_max < 4 * RESERVE ? limit.rlim_max / 4 : RESERVE);
    kept = !setrlimit(RLIMIT_NOFILE, &limit);
}

void fd_reserve_lift(bool lifted)
{
    struct rlimit limit;

    if (!kept || getrlimit(RLIMIT_NOFILE, &limit))
        return;
    if (lifted)
        soft = limit.rlim_cur;
    limit.rlim_cur = lifted ? limit.rlim_max : soft;
    setrlimit(RLIMIT_NOFILE, &limit);
}

bool fd_ran_out(int error)
{
    return error == EMFILE || error == ENFILE;
}
