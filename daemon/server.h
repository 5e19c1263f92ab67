/* The server: one loop, one core, its workers and its sockets. "new" builds, "start" touches the world. */
#pragma once

#include <uv.h>

#include "daemon/closers.h"
#include "daemon/core/ledger.h"
#include "daemon/job/workers.h"
#include "daemon/known_devices.h"
#include "daemon/notify.h"
#include "daemon/origins.h"
#include "daemon/rpc/rpc.h"
#include "daemon/runtime_dir.h"
#include "daemon/setup.h"
#include "daemon/sockets.h"
#include "daemon/store.h"
#include "daemon/wire/wire.h"

#define NVIDIA_DEVICES_MAX 32

struct server {
    uv_loop_t loop;
    const struct setup *setup;
    struct config config;
    char runtime_dir[DIR_PATH_MAX], state_dir[DIR_PATH_MAX];
    int dir_fd, lock_fd;
    struct passed passed;
    int held[NVIDIA_DEVICES_MAX]; /* /dev/nvidiaN, held open so that the driver stays up; -1 */
    struct store_request holding[NVIDIA_DEVICES_MAX];
    bool hold_kept;
    int spill_key; /* -1: none, and spill files are plain */
    struct store_request keeping_key;

    struct closers *closers;
    struct origins *origins;
    struct store *store;
    struct ledger *ledger;
    struct store_request ledger_copy;
    struct core *core;
    struct probe *probe; /* while it looks for GPUs */
    struct workers *workers;
    struct wire_server *wire;      /* of the main listener; the others' are each with theirs */
    struct client_socket *sockets; /* of the [listener]s */
    struct rpc_server *rpc;

    uint64_t started_ms;
    struct known_devices known;                    /* the devices served, by index */
    uint32_t devices_awaited;                      /* that have neither come up nor failed yet */
    struct device_start *device_starts;            /* by index; devices.c */
    bool listening, stopping, failed, shut;        /* shut: the handles are closed or closing */
    bool stays_behind;                             /* the ledger, for a daemon that may find the memory again */
    bool made_client_socket, made_operator_socket; /* not passed: removed when it ends */
    uint64_t stop_by_ms;
    uv_signal_t signals[3];
    uv_timer_t wake, drain;
    struct watchdog watchdog;
};

/* world.c: what core is given, and the clock. */
struct core_env server_env(struct server *server);
uint64_t server_now(void *context);
void server_tick(uv_timer_t *timer);
struct core_limits server_limits(const struct config *config);

/* devices.c: finds the devices, or knows them from an earlier daemon, adds them to core with their workers (not
 * started), then calls server_devices_found. */
void devices_find(struct server *server);
struct workers_world devices_world(struct server *server);
/* Their links' limits, as the configuration has them now. */
void devices_limit(struct server *server);
/* What may be made ahead for each of them, likewise. */
void devices_pool(struct server *server);
/* Frees what it has of its own. */
void devices_clear(struct server *server);

/* hold.c: keeps /dev/nvidiaN open over restarts. */
void hold_devices(struct server *server);
/* An earlier daemon's memory came along. Until it is re-adopted. */
bool memory_was_kept(const struct server *server);
/* That, and the earlier daemon held them. */
bool hold_was_kept(const struct server *server);
void hold_clear(struct server *server);

/* spill_key.c: the key of the spill files, from the keeper or a new one that it gets. False: server_fail was called. */
bool spill_key_find(struct server *server);

/* reload.c: SIGHUP, and the rows of `hbmctl config`. */
void server_reload(struct server *server);
void server_each_option(void *context,
                        void (*row)(void *to, const char *key, const char *value, const char *source), void *to);

/* inherit.c: the directory, its lock, the ledger: what another daemon must not have touched. False: it has failed. */
bool server_take_directories(struct server *server);
/* After re-adoption: the store's fds that no row speaks of go. */
void server_drop_surplus(struct server *server);

/* listener.c: the [listener]s of the configuration. */
/* One client socket more, in a directory of its own. */
struct client_socket {
    struct client_socket *next;
    const struct config_listener *config;
    int dir_fd; /* locked; -1 if its socket was passed, and -1 if it is not served */
    bool made;  /* not passed: removed when it ends */
    struct wire_server *wire;
};
/* Tells core of them. 0, or -1 and the daemon fails. */
int listeners_add(struct server *server);
/* Their limits, as the configuration has them now. */
void listeners_limit(struct server *server);
/* Serves them, now that the devices are known: by the rules of the main socket, but for who is an administrator. */
void listeners_serve(struct server *server, const struct wire_world *main_world);
void listeners_stop_listening(struct server *server);
/* Says goodbye to their clients. */
void listeners_shut_down(struct server *server);
void listeners_free(struct server *server);

/* listen.c */
/* Every device is known, has come up, or failed once: serves. */
void server_listen(struct server *server);
/* Tells the service manager that it serves, and what. */
void server_say_ready(struct server *server, const char *remark);

/* server.c */
int server_new(const struct setup *setup, const struct config *config, struct server **ret);
/* Locks the directory, opens the ledger, looks for devices. 0, or -1 and the reason has been logged. */
int server_start(struct server *server);
/* Until it is told to stop. The exit status. */
int server_run(struct server *server);
struct server *server_free(struct server *server);
void server_devices_found(struct server *server);
/* Ends the daemon with status 1, from the loop: whoever calls may go on with what it has. */
void server_fail(struct server *server, const char *why);
