#include "daemon/origins.h"

#include <errno.h>
#include <poll.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/errands.h"
#include "daemon/core/session.h"

#define ASKED_MAX 4096u /* who comes and goes while the kernel does not answer has none */

struct origins {
    uv_async_t answered;
    struct core *core;
    struct errands *errands;
};

struct question {
    struct errand errand;
    struct origins *origins; /* the loop's alone */
    uint64_t session;
    int32_t pid;
    struct origin origin;
};

static void on_answered(uv_async_t *async)
{
    struct origins *origins = async->data;

    errands_reap(origins->errands);
}

static void tell_loop(void *context)
{
    uv_async_send(context);
}

int origins_new(uv_loop_t *loop, struct core *core, struct origins **ret)
{
    struct origins *origins = calloc(1, sizeof(*origins));
    int error = origins ? uv_async_init(loop, &origins->answered, on_answered) : -ENOMEM;

    if (error) {
        free(origins);
        return error;
    }
    origins->answered.data = origins;
    origins->core = core;
    *ret = origins;
    origins->errands = errands_new(tell_loop, &origins->answered);
    return origins->errands ? 0 : -ENOMEM;
}

static void ask(struct errand *errand)
{
    struct question *question = container_of(errand, struct question, errand);

    origin_of_process(question->pid, &question->origin);
}

/* While it has not ended its number is no other's. */
static bool lives(const struct session *session)
{
    struct pollfd ended = {.fd = session->pidfd, .events = POLLIN};

    return session->pidfd >= 0 && !session->process_ended && poll(&ended, 1, 0) == 0;
}

static void answer(struct errand *errand)
{
    struct question *question = container_of(errand, struct question, errand);
    struct session *session = session_get(question->origins->core, question->session);

    if (session && lives(session))
        session->origin = question->origin;
    free(question);
}

void origins_ask(struct origins *origins, uint64_t session, int32_t pid)
{
    if (!origins->errands || errands_pending(origins->errands) >= ASKED_MAX)
        return;
    struct question *question = calloc(1, sizeof(*question));
    if (!question)
        return;
    *question = (struct question){.errand = {.run = ask, .done = answer}, .origins = origins, .session = session, .pid = pid};
    if (!errands_put(origins->errands, &question->errand))
        free(question);
}

void origins_stop(struct origins *origins)
{
    origins->errands = errands_free(origins->errands);
    uv_close((uv_handle_t *)&origins->answered, NULL);
}

struct origins *origins_free(struct origins *origins)
{
    free(origins);
    return NULL;
}
