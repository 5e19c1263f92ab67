/* fork: the child's copies of sessions are inert, and it keeps neither their sockets, so that the daemon sees the
 * parent go, nor the parent's GPU files: a dead parent's kernels run on for as long as anyone holds those, and CUDA
 * cannot be used in the child anyway.
 *
 * The child handler runs before fork returns, in a process whose other threads are gone in the middle of anything.
 * It takes no lock but the one that the prepare handler holds, and allocates nothing. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/session.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct node sessions = {&sessions, &sessions};

static void close_if_nvidia(int dir, const char *name, int self)
{
    char target[64];
    ssize_t size = readlinkat(dir, name, target, sizeof(target));
    int fd = atoi(name);

    /* "." and ".." are no links. */
    if (size >= (ssize_t)strlen("/dev/nvidia") && !strncmp(target, "/dev/nvidia", strlen("/dev/nvidia")) &&
        fd != self)
        close(fd);
}

static void close_gpu_files(void)
{
    _Alignas(struct dirent64) char entries[2048];
    int CLOSE_FD dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ssize_t size;

    while (dir >= 0 && (size = getdents64(dir, entries, sizeof(entries))) > 0)
        for (ssize_t at = 0; at < size;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            close_if_nvidia(dir, entry->d_name, dir);
            at += entry->d_reclen;
        }
}

static void before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&mutex);
}

static void in_child(void)
{
    for (struct node *node = sessions.next; node != &sessions; node = node->next) {
        hbm_session *session = CONTAINER(node, hbm_session, all);
        session->inert = true;
        conn_forget(&session->conn);
        close_fd_at(&session->comeback.socket);
        session->comeback.socket = -1;
    }
    if (sessions.next != &sessions)
        close_gpu_files();
    pthread_mutex_unlock(&mutex);
}

static void install(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

void fork_watch(hbm_session *session)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install);
    pthread_mutex_lock(&mutex);
    node_append(&sessions, &session->all);
    pthread_mutex_unlock(&mutex);
}

void fork_unwatch(hbm_session *session)
{
    pthread_mutex_lock(&mutex);
    node_unlink(&session->all);
    pthread_mutex_unlock(&mutex);
}
