/* The driver may tear a GPU down when its last user goes, and our memory with it; whoever has /dev/nvidiaN open is
 * a user. So they are held open, here and in the store. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/server.h"

static void held(struct store_request *request)
{
    (void)request;
}

void hold_devices(struct server *server)
{
    for (unsigned i = 0; i < NVIDIA_DEVICES_MAX; i++) {
        struct store_request *request = &server->holding[i];
        char path[32];

        snprintf(request->name, sizeof(request->name), "n-%u", i);
        server->held[i] = passed_take_fd(&server->passed, request->name);
        if (server->held[i] >= 0) {
            server->hold_kept = true;
            continue;
        }
        snprintf(path, sizeof(path), "/dev/nvidia%u", i);
        server->held[i] = open(path, O_RDWR | O_CLOEXEC);
        if (server->held[i] < 0)
            continue;
        request->fd = server->held[i];
        request->done = held;
        store_put(server->store, request);
    }
}

bool memory_was_kept(const struct server *server)
{
    bool memory = false;

    for (size_t i = 0; i < server->passed.n_kept; i++)
        memory |= server->passed.kept[i].fd >= 0 && !strncmp(server->passed.kept[i].name, "x-", 2);
    return memory;
}

bool hold_was_kept(const struct server *server)
{
    return server->hold_kept && memory_was_kept(server);
}

void hold_clear(struct server *server)
{
    for (unsigned i = 0; i < NVIDIA_DEVICES_MAX; i++)
        server->held[i] = fd_close(server->held[i]);
}
