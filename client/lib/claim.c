/* Counted claims, and DLPack on top of them. Nothing of Python's is called to let go: a tensor may die in any thread,
 * with an exception under way, or after the interpreter. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "client/hbm.h"
#include "client/lib/error.h"
#include "client/lib/lease.h"
#include "client/lib/util.h"

struct hbm_claim {
    atomic_uint refs;
    hbm_session *session; /* one of these three */
    hbm_lease *lease;
    hbm_model *model;
    hbm_claim *under; /* what must end later */
};

static int claim_new(hbm_session *session, hbm_lease *lease, hbm_model *model, hbm_claim *under, hbm_claim **ret)
{
    hbm_claim *claim = malloc(sizeof(*claim));

    if (!claim)
        return set_error(HBM_E_NO_MEMORY, "%zu bytes for a claim", sizeof(*claim));
    *claim = (hbm_claim){.session = session, .lease = lease, .model = model, .under = under ? hbm_claim_ref(under) : NULL};
    atomic_init(&claim->refs, 1);
    *ret = claim;
    return 0;
}

hbm_session *claim_session(const hbm_claim *claim)
{
    return claim->session;
}

int hbm_claim_session(hbm_session *session, hbm_claim **ret)
{
    return session && ret ? claim_new(session, NULL, NULL, NULL, ret) : set_error(HBM_E_INVALID, "session or ret is NULL");
}

int hbm_claim_lease(hbm_lease *lease, hbm_claim *session, hbm_claim **ret)
{
    return lease && ret ? claim_new(NULL, lease, NULL, session, ret) : set_error(HBM_E_INVALID, "lease or ret is NULL");
}

int hbm_claim_model(hbm_model *model, hbm_claim *session, hbm_claim **ret)
{
    return model && ret ? claim_new(NULL, NULL, model, session, ret) : set_error(HBM_E_INVALID, "model or ret is NULL");
}

hbm_claim *hbm_claim_ref(hbm_claim *claim)
{
    atomic_fetch_add_explicit(&claim->refs, 1, memory_order_relaxed);
    return claim;
}

void hbm_claim_disown(hbm_claim *claim)
{
    claim->session = NULL;
    claim->lease = NULL;
    claim->model = NULL;
}

void hbm_claim_unref(hbm_claim *claim)
{
    while (claim && atomic_fetch_sub_explicit(&claim->refs, 1, memory_order_acq_rel) == 1) {
        FREE hbm_claim *ended = claim;
        if (ended->lease)
            hbm_detach(ended->lease);
        if (ended->model)
            hbm_model_detach(ended->model);
        hbm_close(ended->session);
        claim = ended->under;
    }
}

/* ---- DLPack 1.0, and the form before it: github.com/dmlc/dlpack, dlpack.h ---- */

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};
#define DL_READ_ONLY 1u

/* One of the two forms, with what it points at. */
struct exported {
    union {
        struct dl_managed managed;
        struct dl_versioned versioned;
    };
    hbm_claim *claim;
    int64_t shape[HBM_RANK_MAX], strides[HBM_RANK_MAX];
};

static void exported_free(struct exported *exported)
{
    hbm_claim_unref(exported->claim);
    free(exported);
}

static void managed_delete(struct dl_managed *managed)
{
    exported_free(CONTAINER(managed, struct exported, managed));
}

static void versioned_delete(struct dl_versioned *versioned)
{
    exported_free(CONTAINER(versioned, struct exported, versioned));
}

static struct dl_tensor tensor_of(const struct hbm_dlpack *what, struct exported *exported)
{
    int64_t step = 1;

    for (uint32_t i = what->rank; i-- > 0;) {
        exported->shape[i] = (int64_t)what->dims[i];
        exported->strides[i] = step;
        step *= exported->shape[i];
    }
    return (struct dl_tensor){
        .data = what->pointer,
        .device_type = (int32_t)what->device_type,
        .device_id = (int32_t)what->device_id,
        .ndim = (int32_t)what->rank,
        .dtype = {.code = (uint8_t)what->code, .bits = (uint8_t)what->bits, .lanes = 1},
        .shape = exported->shape,
        .strides = exported->strides,
    };
}

int hbm_dlpack_export(hbm_claim *claim, const struct hbm_dlpack *what, void **ret)
{
    if (!claim || !what || !ret || what->rank > HBM_RANK_MAX)
        return set_error(HBM_E_INVALID, "claim, what or ret is NULL, or the rank is above %d", HBM_RANK_MAX);
    struct exported *exported = calloc(1, sizeof(*exported));
    if (!exported)
        return set_error(HBM_E_NO_MEMORY, "%zu bytes for a tensor", sizeof(*exported));
    exported->claim = hbm_claim_ref(claim);
    if (what->versioned)
        exported->versioned = (struct dl_versioned){.major = 1,
                                                    .deleter = versioned_delete,
                                                    .flags = what->read_only ? DL_READ_ONLY : 0,
                                                    .tensor = tensor_of(what, exported)};
    else
        exported->managed = (struct dl_managed){.tensor = tensor_of(what, exported), .deleter = managed_delete};
    *ret = exported;
    return 0;
}

/* The interpreter that calls it is in this process. Neither call touches an exception that is under way. */
void hbm_dlpack_capsule_ends(void *capsule)
{
    int (*is_valid)(void *, const char *) = (int (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyCapsule_IsValid");
    void *(*pointer)(void *, const char *) = (void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer");

    if (!is_valid || !pointer)
        return;
    if (is_valid(capsule, HBM_DLPACK_NAME))
        exported_free(pointer(capsule, HBM_DLPACK_NAME));
    else if (is_valid(capsule, HBM_DLPACK_VERSIONED_NAME))
        exported_free(pointer(capsule, HBM_DLPACK_VERSIONED_NAME));
}
