/* hbmctl as a client: a libhbm session, and bytes between buffers and files. */
#pragma once

#include "client/ctl/cli.h"
#include "client/ctl/progress.h"
#include "client/hbm.h"

/* 0, or the exit status after it was told why not. */
int session_open(const struct cli *cli, hbm_session **ret);
/* The device that --device names; HBM_DEVICE_ANY without it. 0, or the exit status. */
int session_device(const struct cli *cli, hbm_session *session, uint32_t *index);

/* What --priority says, as flags of an allocation or a model; 0 without it. */
uint32_t session_priority(const struct cli *cli);

struct transfer {
    hbm_session *session;
    struct progress progress;
    uint64_t done; /* by transfers before this one */
};
/* Fills buffers from fd (or writes them out to it), moving the bar; a signal cancels. 0 or an hbm_error. */
int transfer_run(struct transfer *transfer, int fd, const struct hbm_range *ranges, unsigned n, bool write);

/* The model's row of that tensor, tried at `hint` first. False if it has none. */
bool session_find(const hbm_model *model, unsigned hint, const char *tensor, struct hbm_info *info);

static inline void session_closep(hbm_session **session)
{
    hbm_close(*session);
}
