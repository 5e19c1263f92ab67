#include "client/ctl/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

__attribute__((format(printf, 2, 3))) static int refuse(char *why, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, OUT_FILE_WHY, format, arguments);
    va_end(arguments);
    return -1;
}

static struct out_file *unfinished;

/* A program that runs out of memory ends where it stands. */
static void remove_unfinished(void)
{
    for (const struct out_file *file = unfinished; file; file = file->next)
        unlink(file->temporary);
}

static void begin(struct out_file *file)
{
    static bool registered;

    if (!registered)
        registered = atexit(remove_unfinished) == 0;
    file->next = unfinished;
    unfinished = file;
}

static void end(struct out_file *file)
{
    struct out_file **link = &unfinished;

    while (*link && *link != file)
        link = &(*link)->next;
    if (*link)
        *link = file->next;
    free(file->temporary);
    file->temporary = NULL;
}

static unsigned fresh_mode(void)
{
    mode_t mask = umask(0);

    umask(mask);
    return 0666 & ~mask;
}

static char *directory_of(const char *path)
{
    _cleanup_free_ char *copy = strdup(path);

    return copy ? strdup(dirname(copy)) : NULL;
}

int out_file_open(struct out_file *file, const char *path, char why[OUT_FILE_WHY])
{
    _cleanup_free_ char *directory = directory_of(path);
    struct stat status;

    *file = (struct out_file){.fd = -1, .path = strdup(path), .mode = fresh_mode()};
    if (lstat(path, &status) == 0) {
        if (!S_ISREG(status.st_mode))
            return refuse(why, "%.400s is there and is no regular file; name another", path);
        file->mode = status.st_mode & 07777;
    } else if (errno != ENOENT) {
        return refuse(why, "%.400s cannot be looked at: %s; name another", path, strerror(errno));
    }
    file->temporary = directory ? text_new("%s/.hbm-XXXXXX", directory) : NULL;
    if (!file->path || !file->temporary) {
        free(file->temporary);
        file->temporary = NULL; /* there is nothing to remove */
        return refuse(why, "there is no memory for the name %.400s; free some and try again", path);
    }
    file->fd = mkostemp(file->temporary, O_CLOEXEC);
    if (file->fd < 0) {
        free(file->temporary);
        file->temporary = NULL;
        return refuse(why, "no file can be made in %.400s: %s; name another directory", directory, strerror(errno));
    }
    begin(file);
    return 0;
}

int out_file_commit(struct out_file *file, char why[OUT_FILE_WHY])
{
    if (fchmod(file->fd, file->mode) < 0 || fsync(file->fd) < 0)
        return refuse(why, "%.400s cannot be put on disk: %s; free space there or name another place", file->path,
                      strerror(errno));
    if (rename(file->temporary, file->path) < 0)
        return refuse(why, "%.400s cannot be put in place: %s; name another", file->path, strerror(errno));
    end(file);

    /* The name is on disk once its directory is. Some file systems refuse this sync, and need none. */
    _cleanup_free_ char *directory = directory_of(file->path);
    _cleanup_fd_ int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0)
        fsync(fd);
    return 0;
}

void out_file_clear(struct out_file *file)
{
    if (file->temporary) {
        unlink(file->temporary);
        end(file);
    }
    if (file->path) {
        if (file->fd >= 0)
            close(file->fd);
        free(file->path);
    }
    *file = (struct out_file){.fd = -1};
}
