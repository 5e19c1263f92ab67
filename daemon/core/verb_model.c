/* Removing and renaming. */
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/hold.h"
#include "daemon/core/ledger.h"
#include "daemon/core/names.h"
#include "daemon/core/verbs.h"

static bool may_change(const struct model *model, const struct principal *who)
{
    return who->admin || owner_equal(model->owner, who->owner);
}

/* NULL if nothing of the model is leased or moving; else who has it. */
static const char *in_use(const struct model *model, char *text, size_t size)
{
    list_for_each(node, &model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        if (buffer->arena->transition && !buffer->arena->transition->gives_way)
            return transition_words(buffer->arena->transition, text, size);
        if (buffer_is_leased(buffer)) {
            arena_holders(buffer->arena, text, size);
            return text;
        }
    }
    return model->n_leases ? "a client without memory of it" : NULL;
}

void verb_rm(struct core *core, struct call *call, const char *name)
{
    struct model *model = names_resolve(&core->model_names, &call->who, name);
    uint64_t tiers[HBM_PLACES], bytes;
    char text[128];

    if (!model || !model_visible(model, &call->who)) {
        call_refuse(call, HBM_E_NOT_FOUND, "model %.200s", name);
        return;
    }
    if (!may_change(model, &call->who)) {
        call_refuse(call, HBM_E_DENIED, "model %.200s is not yours", name);
        return;
    }
    if (model->state == MODEL_BUILDING) {
        call_refuse(call, HBM_E_NOT_READY, "model %.200s; kick its builder to discard it", name);
        return;
    }
    const char *holders = in_use(model, text, sizeof(text));
    if (holders) {
        call_refuse(call, HBM_E_BUSY, "model %.100s is held: %s", name, holders);
        return;
    }
    model_bytes(model, tiers);
    bytes = tiers[HBM_TIER_DEVICE] + tiers[HBM_TIER_HOST] + tiers[HBM_TIER_DISK] + tiers[HBM_TIER_PEER];
    event_emit(&core->events, "model.removed", model->id, model->name, model->owner.listener, model->owner.uid, 0, "by user %u",
               call->who.owner.uid);
    model_free(model);
    call_done(call, &bytes);
}

static int add_names(struct model *model, const char *to, char *detail)
{
    size_t old_size = strlen(model->name);
    char full[2 * HBM_NAME_MAX];
    int error = 0;

    list_for_each (node, &model->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, model_node);
        size_t size = (size_t)snprintf(full, sizeof(full), "%s%s", to, buffer->name + old_size);
        error = buffer_add_name(buffer, full, detail);
        FOR_EACH_PART(part, buffer) {
            snprintf(full + size, sizeof(full) - size, "%s", part_suffix(part_number));
            error = error ? error : buffer_add_name(part, full, detail);
        }
        if (error)
            break;
    }
    return error;
}

static void settle_names(struct model *model, bool renamed)
{
    list_for_each (node, &model->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, model_node);
        buffer_settle_name(buffer, renamed);
        FOR_EACH_PART(part, buffer)
            buffer_settle_name(part, renamed);
    }
}

/* Every buffer's name follows the model's; all fit, or none is touched. */
static int rename_model(struct model *model, const char *to, char *detail)
{
    size_t old_size = strlen(model->name);
    struct core *core = model->core;
    char full[2 * HBM_NAME_MAX];
    struct owner scope = owner_scope(model->owner, model->shared);

    if (model->state == MODEL_BUILDING) {
        snprintf(detail, HBM_DETAIL_MAX, "model %.200s", model->name);
        return HBM_E_NOT_READY;
    }
    if (names_find(&core->model_names, scope, to)) {
        snprintf(detail, HBM_DETAIL_MAX, "model %.200s", to);
        return HBM_E_EXISTS;
    }
    list_for_each(node, &model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        size_t size = (size_t)snprintf(full, sizeof(full), "%s%s", to, buffer->name + old_size);
        bool taken = size + sizeof(".scale") > HBM_NAME_MAX || names_find(&core->buffer_names, scope, full);
        for (unsigned i = 0; !taken && i < PARTS; i++) {
            if (!buffer->parts[i])
                continue;
            snprintf(full + size, sizeof(full) - size, "%s", part_suffix(i));
            taken = strlen(full) >= HBM_NAME_MAX || names_find(&core->buffer_names, scope, full) != NULL;
        }
        if (taken) {
            snprintf(detail, HBM_DETAIL_MAX, "%.200s is too long or taken", full);
            return HBM_E_EXISTS;
        }
    }
    if (names_add(&core->model_names, scope, to, model))
        return HBM_E_NO_MEMORY;
    int error = add_names(model, to, detail);
    settle_names(model, !error);
    names_remove(&core->model_names, scope, error ? to : model->name);
    if (error)
        return error;
    snprintf(model->name, sizeof(model->name), "%s", to);
    names_moved(&core->model_names, scope, model->name);
    model_wake_waiters(model); /* for the old name */
    ledger_put_model(core, model);
    return 0;
}

static int check_part_names(const struct buffer *buffer, const char *to, char *detail)
{
    struct owner scope = owner_scope(buffer->arena->owner, buffer->arena->shared);
    char name[HBM_NAME_MAX + 16];
    const char *why;

    FOR_EACH_PART(part, buffer) {
        part_name(part_number, to, name, sizeof(name));
        if (!name_is_valid(name, &why)) {
            snprintf(detail, HBM_DETAIL_MAX, "the name of its %s, NAME%s: %.150s", part_what(part_number),
                     part_suffix(part_number), why);
            return HBM_E_INVALID;
        }
        const struct buffer *other = names_find(&buffer->core->buffer_names, scope, name);
        if (other && other != buffer && other->parent != buffer) {
            snprintf(detail, HBM_DETAIL_MAX, "%.200s", name);
            return HBM_E_EXISTS;
        }
    }
    return 0;
}

static int rename_all(struct buffer *buffer, const char *to, char *detail)
{
    char name[HBM_NAME_MAX + 16];
    int error = buffer_rename(buffer, to, detail);

    FOR_EACH_PART(part, buffer) {
        part_name(part_number, to, name, sizeof(name));
        error = error ? error : buffer_rename(part, name, detail);
    }
    return error;
}

/* Its parts' names follow; all fit and are free, or none is touched. */
static int rename_buffer(struct buffer *buffer, const char *to, char *detail)
{
    char old[HBM_NAME_MAX], ignored[HBM_DETAIL_MAX];
    int error = check_part_names(buffer, to, detail);

    if (error)
        return error;
    snprintf(old, sizeof(old), "%s", buffer->name ? buffer->name : "");
    error = rename_all(buffer, to, detail);
    if (error && *old)
        rename_all(buffer, old, ignored);
    return error;
}

void verb_rename(struct core *core, struct call *call, const char *name, const char *to)
{
    struct model *model = names_resolve(&core->model_names, &call->who, name);
    struct buffer *buffer = names_resolve(&core->buffer_names, &call->who, name);
    char detail[HBM_DETAIL_MAX] = "";
    const char *why;
    int error = 0;

    if (model && !model_visible(model, &call->who))
        model = NULL;
    if (buffer && !buffer_visible(buffer, &call->who))
        buffer = NULL;
    if (!model && !buffer) {
        call_refuse(call, HBM_E_NOT_FOUND, "%.200s", name);
        return;
    }
    if (model ? !may_change(model, &call->who) : !arena_may_write(buffer->arena, &call->who)) {
        call_refuse(call, HBM_E_DENIED, "%.200s is not yours", name);
        return;
    }
    if (model ? !model_name_is_valid(to, &why) : !name_is_valid(to, &why)) {
        call_refuse(call, HBM_E_INVALID, "%s", why);
        return;
    }
    if (!model && (buffer->model || buffer->parent)) {
        call_refuse(call, HBM_E_INVALID, "%.200s is named by what it belongs to", name);
        return;
    }
    ledger_begin(core); /* all names or none, also in the ledger */
    error = model ? rename_model(model, to, detail) : rename_buffer(buffer, to, detail);
    ledger_end(core);
    if (error)
        call_refuse(call, error, "%s", detail);
    else
        call_done(call, NULL);
}

void verb_kick(struct core *core, struct call *call, uint64_t id)
{
    struct session *session = session_get(core, id);
    int32_t pid;

    if (!session) {
        call_refuse(call, HBM_E_NOT_FOUND, "no session 0x%016llx", (unsigned long long)id);
        return;
    }
    pid = session->pid;
    if (session->link)
        session->kick(session, HBM_E_DISCONNECTED, "an operator ended this session");
    else if (session->state != SESSION_QUARANTINED)
        session_gone(session, false, "an operator ended it");
    call_done(call, &pid);
}
