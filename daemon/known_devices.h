/* What the devices were when they last served: the file `devices` beside the ledger. Who finds it with the memory
 * serves that at once, and waits for no driver. Text, a line a device; replaced in one rename. */
#pragma once

#include "daemon/job/workers.h"

struct known_device {
    struct probe_device found;
    uint64_t granularity; /* 0: it has not served yet, and only what the probe says is known */
    bool can_fd, can_cuda_ipc;
};

struct known_devices {
    bool is_cuda;
    unsigned n;
    struct known_device at[PROBE_DEVICES_MAX];
};

/* True if there is a sound one, of devices that have all served. */
bool known_devices_read(int dir_fd, struct known_devices *known);
/* Once all have served; before that there is none. 0 or -errno. */
int known_devices_write(int dir_fd, const struct known_devices *known);
void known_devices_remove(int dir_fd);
bool known_devices_have(const struct known_devices *known, const char *uuid);
