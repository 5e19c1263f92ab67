#include "daemon/core/table_fd.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/base/fd_reserve.h"
#include "daemon/core/core.h"
#include "proto/errors.h"
#include "proto/vocab.h"

int table_fd_refused(int reason, char *detail)
{
    bool ran_out = fd_ran_out(-reason), no_memory = reason == -ENOMEM;

    snprintf(detail, HBM_DETAIL_MAX, "%s",
             no_memory ? OWNER_OUT_OF_MEMORY
             : ran_out ? FD_RAN_OUT
                       : "the owner cannot make a memfd of what a job is to go by");
    return no_memory ? HBM_E_NO_MEMORY : ran_out ? HBM_E_LIMIT : HBM_E_SYSTEM;
}
