#include "daemon/core/room.h"

#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/pressure.h"

struct closing {
    struct list node; /* core->closing */
    struct room room;
};

void room_release(const struct room *room)
{
    struct core *core = room->core;

    room->device->used[room->tier] -= room->size;
    pressure_released(room->device, room->tier);
    if (room->account)
        account_release(room->account, (enum account_thing)room->tier, room->size);
    if (!list_empty(&core->memory_waiters))
        timer_arm(core, &core->memory_timer, 0);
}

static void closed(void *argument)
{
    struct closing *closing = argument;
    struct room room = closing->room;

    room.device->closing[room.tier] -= room.size;
    list_unlink(&closing->node);
    free(closing);
    room_release(&room);
}

void room_release_with(const struct room *room, int fd)
{
    struct core *core = room->core;
    struct closing *closing = fd >= 0 && core->env.close_memory ? malloc(sizeof(*closing)) : NULL;

    if (!closing) {
        fd_close(fd);
        room_release(room);
        return;
    }
    closing->room = *room;
    room->device->closing[room->tier] += room->size;
    list_append(&core->closing, &closing->node);
    core->env.close_memory(core->env.context, fd, closed, closing);
}

void rooms_clear(struct core *core)
{
    struct list *node;

    while ((node = list_first(&core->closing))) {
        list_unlink(node);
        free(list_entry(node, struct closing, node));
    }
}
