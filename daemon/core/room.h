/* The room that memory takes: in a tier of its device, and in the account that pays. It comes free with the memory
 * itself, when the last fd is closed; that takes the driver 0.8 ms a GiB, and happens off the loop. */
#pragma once

#include "daemon/core/account.h"
#include "daemon/core/device.h"

struct room {
    struct core *core;
    struct device *device;
    struct account *account; /* NULL: nobody pays */
    enum hbm_tier tier;
    uint64_t size;
};

/* Who waits for memory is tried again from the loop. */
void room_release(const struct room *room);
/* Takes the memory's last fd (-1: there is none), and releases the room once that is closed. Until then it is
 * counted in device->closing too. */
void room_release_with(const struct room *room, int fd);
/* As the core goes: nothing more is heard of what is being closed. */
void rooms_clear(struct core *core);
