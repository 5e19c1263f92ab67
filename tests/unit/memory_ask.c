/* Asking, of a core that may refuse. */
#include "memory_scenes.h"

#include <stdio.h>

void check_refusal(int error, const char *detail)
{
    if (!fault.struck || (error != HBM_E_NO_MEMORY && error != HBM_E_DEGRADED) || !*detail)
        fail_msg("%s: %s", hbm_error_name(error), detail);
}

int outcome(struct ask *question, uint64_t *id)
{
    for (unsigned i = 0; i < 20 && !question->answers; i++)
        world_pass(&w, 200);
    *id = question->id;
    if (question->error)
        check_refusal(question->error, question->call.detail);
    return error_of(&w, question);
}

int lease_of(struct ask *question, struct lease **ret)
{
    uint64_t id;
    int error = outcome(question, &id);

    *ret = error ? NULL : lease_get(w.core, id);
    assert_true(error || *ret);
    return error;
}

int end_of(struct ask *question)
{
    uint64_t id;
    int error = outcome(question, &id);

    if (error)
        return error;
    struct op *op = op_get(w.core, id);
    assert_non_null(op);
    for (unsigned i = 0; i < 20 && !op_has_ended(op); i++)
        world_pass(&w, 200);
    assert_true(op_has_ended(op));
    if (op->error)
        check_refusal(op->error, op->detail);
    return op->error;
}

int attach_to(struct principal who, struct session *session, const char *name, enum hbm_access access,
              struct lease **ret)
{
    struct attach_args args = {.access = access, .timeout_ms = 1000};

    snprintf(args.name, sizeof(args.name), "%s", name);
    return LEASE(ret, who, session, verb_attach, &args);
}
