#include "daemon/base/closer.h"

#include "daemon/base/cleanup.h"
#include "daemon/base/errands.h"

struct closer {
    struct errands *errands;
};

struct closing {
    struct errand errand;
    int fd;
    void (*closed)(void *argument);
    void *argument;
};

struct closer *closer_new(void (*notify)(void *context), void *context)
{
    struct closer *closer = calloc(1, sizeof(*closer));

    if (!closer)
        return NULL;
    closer->errands = errands_new(notify, context);
    return closer->errands ? closer : closer_free(closer);
}

static void run(struct errand *errand)
{
    struct closing *closing = container_of(errand, struct closing, errand);

    closing->fd = fd_close(closing->fd);
}

static void done(struct errand *errand)
{
    struct closing closing = *container_of(errand, struct closing, errand);

    free(errand);
    if (closing.closed)
        closing.closed(closing.argument);
}

void closer_put(struct closer *closer, int fd, void (*closed)(void *argument), void *argument)
{
    struct closing *closing = calloc(1, sizeof(*closing));

    if (closing) {
        *closing = (struct closing){.errand = {.run = run, .done = done}, .fd = fd, .closed = closed, .argument = argument};
        if (errands_put(closer->errands, &closing->errand))
            return;
        free(closing);
    }
    fd_close(fd);
    if (closed)
        closed(argument);
}

void closer_reap(struct closer *closer)
{
    errands_reap(closer->errands);
}

unsigned closer_pending(const struct closer *closer)
{
    return errands_pending(closer->errands);
}

struct closer *closer_free(struct closer *closer)
{
    if (closer)
        errands_free(closer->errands);
    free(closer);
    return NULL;
}
