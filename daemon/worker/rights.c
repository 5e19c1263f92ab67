#include "daemon/worker/rights.h"

#include <linux/capability.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define BIT(capability) (1u << (capability))
/* Pinned memory; file access as a client; a state directory below one that others may not enter. */
#define KEPT (BIT(CAP_IPC_LOCK) | BIT(CAP_SETUID) | BIT(CAP_DAC_READ_SEARCH))

void rights_drop(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    memset(data, 0, sizeof(data));
    if (!syscall(SYS_capget, &header, data)) {
        data[0].permitted &= KEPT;
        data[0].effective = data[0].permitted;
        data[1].permitted = data[1].effective = 0;
        data[0].inheritable = data[1].inheritable = 0;
    }
    if (syscall(SYS_capset, &header, data) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        log_warning("the worker keeps the rights that it was started with");
}

void rights_become(uint32_t uid)
{
    setfsuid(uid); /* of this thread alone; it drops what is left of file capabilities, too */
}

void rights_return(void)
{
    setfsuid(geteuid());
    prctl(PR_SET_DUMPABLE, 1); /* the kernel took that away: for debuggers and leak checkers we are who we were */
}
