#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/names.h"

static int add(struct selection *selection, struct buffer *buffer)
{
    /* Grows at powers of two: n is its own record of the room. */
    if ((selection->n & (selection->n - 1)) == 0) {
        size_t room = selection->n ? selection->n * 2 : 1;
        struct buffer **grown = reallocarray(selection->buffers, room, sizeof(*grown));
        if (!grown)
            return HBM_E_NO_MEMORY;
        selection->buffers = grown;
    }
    selection->buffers[selection->n++] = buffer;
    return 0;
}

void selection_clear(struct selection *selection)
{
    free(selection->buffers);
    *selection = (struct selection){0};
}

static int compare_places(const void *left, const void *right)
{
    const struct buffer *a = *(struct buffer *const *)left, *b = *(struct buffer *const *)right;

    if (a->arena != b->arena)
        return a->arena->visit < b->arena->visit ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Not by id: those are given again. */
void selection_by_arena(struct core *core, struct selection *selection)
{
    uint64_t before = core->visits;

    for (size_t i = 0; i < selection->n; i++) {
        struct arena *arena = selection->buffers[i]->arena;
        if (arena->visit <= before)
            arena->visit = ++core->visits;
    }
    qsort(selection->buffers, selection->n, sizeof(*selection->buffers), compare_places);
}

static int add_one(struct selection *selection, struct buffer *buffer, const struct principal *who)
{
    return buffer && buffer_visible(buffer, who) ? add(selection, buffer) : 0;
}

static int add_model(struct core *core, struct selection *selection, const struct principal *who, const char *name)
{
    struct model *model = names_resolve(&core->model_names, who, name);

    selection->by_pattern = true;
    if (!model || !model_visible(model, who))
        return 0;
    list_for_each(node, &model->buffers) {
        int error = add(selection, list_entry(node, struct buffer, model_node));
        if (error)
            return error;
    }
    return 0;
}

/* A group by its bare name, or as MODEL/GROUP. */
static bool in_group(const struct buffer *buffer, const char *group)
{
    const char *own = buffer->arena->group;
    size_t prefix = buffer->model ? strlen(buffer->model->name) : 0;

    if (!*own)
        return false;
    if (!strcmp(own, group))
        return true;
    return prefix && !strncmp(group, buffer->model->name, prefix) && group[prefix] == '/' && !strcmp(group + prefix + 1, own);
}

static int add_matching(struct core *core, struct selection *selection, const struct principal *who, const char *pattern,
                        const char *group)
{
    char name[NAME_FOR_MAX];

    selection->by_pattern = true;
    list_for_each(node, &core->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, node);
        if (buffer->parent || !buffer_visible(buffer, who) || (buffer->model && !buffer->model->listed))
            continue;
        if (group && !in_group(buffer, group))
            continue;
        if (pattern)
            buffer_name_for(buffer, who, name, sizeof(name));
        if (pattern && (!*name || fnmatch(pattern, name, 0)))
            continue;
        int error = add(selection, buffer);
        if (error)
            return error;
    }
    return 0;
}

int select_buffers(struct core *core, const struct principal *who, const char *sel, struct selection *selection, char *detail)
{
    struct buffer *exact;
    int error = 0;

    *selection = (struct selection){0};
    if (!*sel) {
        snprintf(detail, HBM_DETAIL_MAX, "an empty selector");
        return HBM_E_INVALID;
    }
    exact = names_resolve(&core->buffer_names, who, sel);
    if (exact && buffer_visible(exact, who)) {
        error = add(selection, exact);
    } else if (!strncmp(sel, "id:", 3)) {
        char *end;
        uint64_t id = strtoull(sel + 3, &end, 16);
        error = *end ? 0 : add_one(selection, buffer_get(core, id), who);
    } else if (!strncmp(sel, "model:", 6)) {
        error = add_model(core, selection, who, sel + 6);
    } else if (!strncmp(sel, "group:", 6)) {
        error = add_matching(core, selection, who, NULL, sel + 6);
    } else if (strpbrk(sel, "*?[")) {
        error = add_matching(core, selection, who, sel, NULL);
    }
    if (!error && !selection->n) {
        snprintf(detail, HBM_DETAIL_MAX, "%.200s", sel);
        error = HBM_E_NOT_FOUND;
    }
    if (error)
        selection_clear(selection);
    return error;
}
