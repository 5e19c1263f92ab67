/* A listener: one client socket and who comes by it, a pod or a tenant. Owner means (listener, uid) everywhere,
 * since behind one mounted socket everybody may be uid 0. Its id is made of its name alone, so it is the same after
 * a restart, a reload and a change of the others, and a ledger that names it needs no table of them. Id 0, "main",
 * is the socket in the runtime directory and the operators'. */
#pragma once

#include "daemon/core/account.h"
#include "daemon/core/device.h"

#define LISTENER_NAME_MAX 32

struct listener {
    struct list node; /* core->listeners */
    uint32_t id;
    char name[LISTENER_NAME_MAX];
    bool configured;  /* false: only the ledger speaks of it */
    bool serves;      /* its socket listens */
    uint64_t devices; /* a bit an index */
    uint64_t each[ACCOUNT_THINGS],
        total[ACCOUNT_THINGS]; /* limits; 0 = none. The main one's `each` is core->limits' */
    struct account whole;      /* what its users have together */
};

/* From the name; never 0. Two names may share one: listener_add refuses the second. */
uint32_t listener_id(const char *name);
/* The id that a name stands for in a foreign name: "main", a configured one's, or as listener_of names one. */
uint32_t listener_by_name(const char *name);
/* Found, or made for what the ledger left: that one has no devices and no limits, and is named after its id. NULL
 * if memory is out. Stays until the core goes. */
struct listener *listener_of(struct core *core, uint32_t id);
/* The configured one of that name, with all devices and no limits. NULL if memory is out or its id is another's. */
struct listener *listener_add(struct core *core, const char *name);
void listeners_clear(struct core *core);

/* Devices as a client counts them: from 0, those of its listener alone. */
uint32_t listener_n_devices(const struct listener *listener, const struct core *core);
/* The one that `who` means by index or WIRE_DEVICE_ANY; NULL if there is none. */
struct device *listener_device(struct core *core, const struct principal *who, uint32_t index);
/* How `who` counts the device; WIRE_DEVICE_ANY if its listener has it no more. */
uint32_t listener_device_index(struct core *core, const struct principal *who, const struct device *device);
bool listener_has(const struct listener *listener, const struct device *device);
