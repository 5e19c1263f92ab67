/* The key of the spill files. It is in memory alone, here and with the keeper: it outlives this process, and what
 * is on the disk says nothing to anyone once the machine is off. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/server.h"
#include "proto/memfd.h"

#define NAME "k-spill"

static void kept(struct store_request *request)
{
    (void)request;
}

/* 0 as the id: it is no key. -ENOMEM or the like where that cannot be said now. */
static int id_of(int fd, uint64_t *id)
{
    size_t size;
    struct job_spill_key *key = memfd_map_sealed(fd, sizeof(*key), &size);

    *id = key && size == sizeof(*key) ? key->id : 0;
    if (!key)
        return errno == EINVAL || errno == EFBIG ? 0 : -errno;
    munmap(key, size);
    return 0;
}

/* A memfd, or -errno. */
static int make(void)
{
    struct job_spill_key key;
    int fd;

    if (getrandom(&key, sizeof(key), 0) != (ssize_t)sizeof(key))
        return errno ? -errno : -EIO;
    key.id |= 1;
    fd = memfd_sealed("hbm-spill-key", &key, sizeof(key));
    explicit_bzero(&key, sizeof(key));
    return fd;
}

/* The one that was kept, if it is one. */
static int take_kept(struct server *server)
{
    _cleanup_fd_ int fd = passed_take_fd(&server->passed, NAME);
    int error = fd < 0 ? 0 : id_of(fd, &server->core->spill_key);

    if (fd < 0 || error)
        return error;
    if (server->core->spill_key) {
        server->spill_key = TAKE_FD(fd);
        return 0;
    }
    log_error("the key of the spill files came back damaged: what it encrypted is lost");
    store_remove(server->store, NAME);
    return 0;
}

static bool fail(struct server *server, int error)
{
    char why[160];

    snprintf(why, sizeof(why), "there is no key for the spill files: %s; %s, or set spill_encryption = no",
             strerror(-error), error == -EMFILE ? "raise LimitNOFILE or ulimit -n" : "free some memory");
    server_fail(server, why);
    return false;
}

bool spill_key_find(struct server *server)
{
    struct store_request *request = &server->keeping_key;
    int error = take_kept(server);

    if (error)
        return fail(server, error);
    server->core->encrypts_spill = server->config.spill_encryption;
    if (server->spill_key >= 0 || !server->config.spill_encryption)
        return true;
    int fd = make();
    if (fd < 0)
        return fail(server, fd);
    server->spill_key = fd;
    error = id_of(server->spill_key, &server->core->spill_key);
    if (error)
        return fail(server, error);
    /* Ahead of all that it encrypts: whatever barrier covers that covers it too. */
    *request = (struct store_request){.name = NAME, .fd = server->spill_key, .done = kept};
    store_put(server->store, request);
    return true;
}
