#include "daemon/core/observation.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/ledger.h"

struct observation *observation_of(struct buffer *buffer, int *error, char *detail)
{
    struct core *core = buffer->core;
    struct account *account = account_of(core, buffer->arena->owner);

    if (buffer->observation)
        return buffer->observation;
    *error = account ? account_charge(account, ACCOUNT_OBSERVATIONS, 1, detail) : HBM_E_NO_MEMORY;
    if (account && *error)
        return NULL;
    struct observation *observation = account ? calloc(1, sizeof(*observation)) : NULL;
    uint64_t id = observation ? idmap_add(&core->ids, ID_OBSERVATION, observation) : 0;
    if (!id) {
        if (account)
            account_release(account, ACCOUNT_OBSERVATIONS, 1);
        free(observation);
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    observation->id = id;
    observation->buffer = buffer;
    return buffer->observation = observation;
}

static float moved(float average, float by, double momentum)
{
    return (float)(momentum * (double)average + (1 - momentum) * (double)by);
}

/* Of a batch that has elements that are finite. */
static void add_ends(struct hbm_observation *seen, bool first, float lo, float hi, double momentum)
{
    seen->lo = first || lo < seen->lo ? lo : seen->lo;
    seen->hi = first || hi > seen->hi ? hi : seen->hi;
    seen->average_lo = first ? lo : moved(seen->average_lo, lo, momentum);
    seen->average_hi = first ? hi : moved(seen->average_hi, hi, momentum);
    seen->last_lo = lo;
    seen->last_hi = hi;
}

bool observation_add(struct observation *observation, const struct job_observe_reply *batch, uint64_t elements,
                     const uint64_t *counts, double momentum)
{
    struct hbm_observation *seen = &observation->seen;

    if (!observation->bins && !(observation->bins = calloc(JOB_OBSERVE_BINS, sizeof(*observation->bins))))
        return false;
    if (seen->imported)
        *seen = (struct hbm_observation){0};
    if (batch->finite)
        add_ends(seen, seen->elements == seen->nonfinite, batch->lo, batch->hi, momentum);
    seen->batches++;
    seen->elements += elements;
    seen->nonfinite += elements - batch->finite;
    for (unsigned i = 0; i < JOB_OBSERVE_BINS; i++)
        observation->bins[i] += counts[i];
    ledger_put_observation(observation->buffer->core, observation);
    return true;
}

void observation_import(struct observation *observation, float lo, float hi)
{
    observation->seen = (struct hbm_observation){.lo = lo, .hi = hi, .imported = 1};
    free(observation->bins);
    observation->bins = NULL;
    ledger_put_observation(observation->buffer->core, observation);
}

struct observation *observation_free(struct observation *observation)
{
    if (!observation)
        return NULL;
    struct buffer *buffer = observation->buffer;
    ledger_drop(buffer->core, observation->id);
    idmap_remove(&buffer->core->ids, observation->id);
    account_release(account_of(buffer->core, buffer->arena->owner), ACCOUNT_OBSERVATIONS, 1);
    buffer->observation = NULL;
    free(observation->bins);
    free(observation);
    return NULL;
}

struct observation *observation_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_OBSERVATION);
}
