#define XXH_INLINE_ALL
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "tests/soak/client.h"

#define PLACES 3
#define WAIT_MS 3000

static struct {
    hbm_model *model; /* NULL: a free place */
    unsigned m;
    bool locked;
} places[PLACES];

static uint32_t version_of(const hbm_model *model)
{
    const uint32_t *version;
    size_t size;

    version = hbm_model_metadata(model, &size);
    if (size != sizeof(*version))
        broken("a model's metadata has %zu bytes", size);
    return *version;
}

static struct pattern pattern_of(unsigned m, unsigned tensor, uint32_t version)
{
    return (struct pattern){.key = 1000 + m * TENSORS + tensor, .version = version};
}

static uint64_t elements_of(unsigned m, unsigned tensor)
{
    return (10000u * (m + 1) + 777u * tensor) * memory_scale;
}

/* All of it is locked. What a sealed model holds is what its metadata says, for ever. */
static void check_model(const hbm_model *model, unsigned m)
{
    uint32_t version = version_of(model);
    struct hbm_info info;
    bool mixed;

    if (hbm_model_count(model) != TENSORS)
        broken("m%u has %u buffers", m, hbm_model_count(model));
    for (unsigned i = 0; i < TENSORS; i++) {
        hbm_model_buffer(model, i, &info);
        if (!info.pointer || info.size != elements_of(m, i) * sizeof(float))
            broken("t%u of m%u is not mapped, or has %" PRIu64 " bytes", i, m, info.size);
        const char *wrong = memory_check(info.pointer, pattern_of(m, i, version), &version, 1, info.size, &mixed);
        if (wrong)
            broken("t%u of m%u: %s", i, m, wrong);
        count_checked(info.size, false);
    }
}

static void drop(unsigned i)
{
    hbm_model *model = places[i].model;

    places[i].model = NULL;
    went_well("hbm_model_detach", hbm_model_detach(model), 0);
}

void drop_models(void)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].model)
            drop(i);
}

static void hold_or_drop_model(hbm_model *model, unsigned m, bool locked)
{
    unsigned i = dice(PLACES);

    if (places[i].model)
        drop(i);
    places[i].model = model;
    places[i].m = m;
    places[i].locked = locked;
    if (chance(40))
        drop(i);
}

/* Its row is this process's own. */
static void look(unsigned m)
{
    struct model_truth *row = &truth->models[m];
    hbm_model *model;
    char name[8];

    snprintf(name, sizeof(name), "m%u", m);
    int error = hbm_model_attach(session, name, HBM_RO, HBM_UNLOCKED, WAIT_MS, &model);
    bool may_be_gone = !row->sealed || row->next == GONE;
    if (error == HBM_E_NOT_FOUND || (error == HBM_E_NOT_READY && may_be_gone)) {
        if (!may_be_gone)
            broken("%s was sealed, and is not there", name);
        row->sealed = row->next = 0;
    }
    if (!went_well("hbm_model_attach", error, ONE_OF(NOT_FOUND) | ONE_OF(NOT_READY)))
        return;
    uint32_t version = version_of(model);
    if (version != row->sealed && version != row->next)
        broken("%s has version %u, neither %u nor %u", name, version, row->sealed, row->next);
    row->sealed = version;
    row->next = 0;
    went_well("hbm_model_detach", hbm_model_detach(model), 0);
}

static void commit(hbm_model *model, unsigned m, uint32_t version)
{
    struct model_truth *row = &truth->models[m];

    if (chance(10) || !row_own_patiently(MODEL_ROW(m))) {
        went_well("hbm_publish_abort", hbm_publish_abort(model), 0);
        return;
    }
    if (row->by) { /* somebody died in here, and what it asked for may still come */
        went_well("hbm_publish_abort", hbm_publish_abort(model), 0);
    } else {
        row->by = self;
        if (row->next)
            look(m);
        row->next = row->next ? row->next : version;
        if (row->next != version) {
            went_well("hbm_publish_abort", hbm_publish_abort(model), 0);
        } else if (went_well("hbm_publish_commit", hbm_publish_commit(model), ONE_OF(BUILDER_DIED))) {
            row->sealed = version;
            row->next = 0;
        } else {
            look(m);
        }
        if (!row->next)
            row->by = 0;
    }
    row_leave(MODEL_ROW(m));
}

void do_publish(void)
{
    unsigned m = dice(MODELS);
    uint32_t version = new_version();
    struct hbm_publish_buffer rows[TENSORS];
    char name[8], names[TENSORS][8];
    struct hbm_publish spec = {.name = name,
                               .device = HBM_DEVICE_ANY,
                               .metadata = &version,
                               .metadata_size = sizeof(version),
                               .buffers = rows,
                               .n_buffers = TENSORS};
    hbm_model *model;
    int must_build;

    snprintf(name, sizeof(name), "m%u", m);
    spec.flags = (chance(70) ? HBM_WAIT : 0) | (chance(30) ? HBM_REPLACE : 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        rows[i] = (struct hbm_publish_buffer){
            .name = names[i], .group = names[i], .dtype = HBM_F32, .rank = 1, .dims = {elements_of(m, i)}};
    }
    /* NOT_FOUND: somebody else's was removed while it came back to the device for this. */
    if (!went_well("hbm_publish_begin", hbm_publish_begin(session, &spec, WAIT_MS, &model, &must_build),
                   ONE_OF(EXISTS) | ONE_OF(NOT_READY) | ONE_OF(BUILDER_DIED) | ONE_OF(NOT_FOUND)))
        return;
    if (!must_build) {
        check_model(model, m);
        hold_or_drop_model(model, m, true);
        return;
    }
    for (unsigned i = 0; i < TENSORS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        if (!info.pointer || !memory_write(info.pointer, pattern_of(m, i, version), info.size, 1 + dice(3)))
            broken("t%u of %s, being built, cannot be written", i, name);
    }
    commit(model, m, version);
}

void do_model(void)
{
    unsigned m = dice(MODELS);
    struct model_truth *row = &truth->models[m];
    char name[8];
    hbm_model *model;

    if (!row_share(MODEL_ROW(m)))
        return;
    if (row->by) {
        row_leave(MODEL_ROW(m));
        return;
    }
    snprintf(name, sizeof(name), "m%u", m);
    bool there = row->sealed && row->next != GONE, locked = chance(75);
    int error = hbm_model_attach(session, name, HBM_RO, locked ? 0 : HBM_UNLOCKED, WAIT_MS, &model);
    bool good = went_well("hbm_model_attach", error, there ? 0 : ONE_OF(NOT_FOUND) | ONE_OF(NOT_READY));
    uint32_t version = good ? version_of(model) : 0;
    if (good && (version == 0 || (version != row->sealed && version != row->next)))
        broken("%s has version %u, neither %u nor %u", name, version, row->sealed, row->next);
    row_leave(MODEL_ROW(m));
    if (!good)
        return;
    if (locked)
        check_model(model, m);
    hold_or_drop_model(model, m, locked);
}

/* All of it; half the time as a forward pass does, with the next groups on their way, and what was unlocked leaving. */
static int lock_model(hbm_model *model)
{
    char group[8];
    int error = 0;

    if (chance(50))
        return hbm_model_lock(model, NULL, WAIT_MS);
    error = hbm_model_order(model, NULL, 0, dice(TENSORS));
    if (!error && chance(50))
        went_well("hbm_model_window", hbm_model_window(model, chance(30) ? HBM_FOREVER : dice(2), HBM_FORCE), 0);
    for (unsigned i = 0; i < TENSORS && !error; i++) {
        snprintf(group, sizeof(group), "t%u", i);
        error = hbm_model_lock(model, group, WAIT_MS);
        for (unsigned j = 0; error && j < i; j++) {
            snprintf(group, sizeof(group), "t%u", j);
            hbm_model_unlock(model, group, NULL, 0);
        }
    }
    return error;
}

void do_held_model(void)
{
    unsigned i = dice(PLACES);

    if (!places[i].model)
        return;
    if (chance(15)) {
        drop(i);
    } else if (!places[i].locked) {
        places[i].locked = went_well("hbm_model_lock", lock_model(places[i].model), 0);
        if (places[i].locked)
            check_model(places[i].model, places[i].m);
    } else if (chance(50)) {
        /* A safe point that failed may have taken the lock already. */
        went_well("hbm_model_unlock", hbm_model_unlock(places[i].model, NULL, NULL, 0), ONE_OF(INVALID));
        places[i].locked = false;
    }
}

void report_model(unsigned m)
{
    struct model_truth *row = &truth->models[m];
    char name[8];
    hbm_model *model;

    snprintf(name, sizeof(name), "m%u", m);
    if (row->by)
        broken("%s is still being changed by pid %d", name, row->by);
    if (row->next)
        look(m);
    if (row->next)
        broken("%s: nobody can tell what it is: %s", name, hbm_last_error_detail());
    int error = hbm_model_attach(session, name, HBM_RO, 0, WAIT_MS, &model);
    if (!row->sealed && error == HBM_E_NOT_FOUND)
        return;
    if (error || version_of(model) != row->sealed)
        broken("%s must be there with version %u: %s", name, row->sealed, hbm_last_error_detail());
    check_model(model, m);
    for (unsigned i = 0; i < TENSORS; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        printf("%s/t%u %016" PRIx64 "\n", name, i,
               (uint64_t)XXH3_64bits(memory_read(info.pointer, info.size), info.size));
    }
    went_well("hbm_model_detach", hbm_model_detach(model), 0);
}
