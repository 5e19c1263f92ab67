#include "daemon/core/names.h"

#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/utf8.h"
#include "daemon/core/listener.h"
#include "daemon/core/model.h"

struct name_node {
    struct owner scope;
    const char *name;
    void *object;
};

static int compare(const void *left, const void *right)
{
    const struct name_node *a = left, *b = right;

    if (a->scope.listener != b->scope.listener)
        return a->scope.listener < b->scope.listener ? -1 : 1;
    if (a->scope.uid != b->scope.uid)
        return a->scope.uid < b->scope.uid ? -1 : 1;
    return strcmp(a->name, b->name);
}

int names_add(void **root, struct owner scope, const char *name, void *object)
{
    struct name_node *node = malloc(sizeof(*node));
    struct name_node **found;

    if (!node)
        return -ENOMEM;
    *node = (struct name_node){scope, name, object};
    found = tsearch(node, root, compare);
    if (found && *found == node)
        return 0;
    free(node);
    return found ? -EEXIST : -ENOMEM;
}

void names_remove(void **root, struct owner scope, const char *name)
{
    struct name_node key = {scope, name, NULL};
    struct name_node **found = tfind(&key, root, compare);

    if (!found)
        return;
    struct name_node *node = *found;
    tdelete(&key, root, compare);
    free(node);
}

void names_moved(void *const *root, struct owner scope, const char *name)
{
    struct name_node key = {scope, name, NULL};
    struct name_node **found = tfind(&key, root, compare);

    if (found)
        (*found)->name = name;
}

void *names_find(void *const *root, struct owner scope, const char *name)
{
    struct name_node key = {scope, name, NULL};
    struct name_node **found = tfind(&key, root, compare);

    return found ? (*found)->object : NULL;
}

/* "LISTENER:" at *text, which moves behind it. */
static uint32_t split_listener(const char **text, uint32_t own)
{
    char name[LISTENER_NAME_MAX];
    size_t length = strcspn(*text, ":/");

    if ((*text)[length] != ':' || length >= sizeof(name))
        return own;
    snprintf(name, sizeof(name), "%.*s", (int)length, *text);
    *text += length + 1;
    return listener_by_name(name);
}

/* "~UID/rest" or "~LISTENER:UID/rest": the owner named, and where the rest begins; false if it is not of that form. */
static bool split_foreign(const char *name, uint32_t own, struct owner *owner, const char **rest)
{
    const char *at = name + 1;
    char *end;

    if (name[0] != '~')
        return false;
    uint32_t listener = split_listener(&at, own);
    unsigned long uid = strtoul(at, &end, 10);
    if (*at < '0' || *at > '9' || *end != '/' || uid >= UINT32_MAX)
        return false;
    *owner = (struct owner){listener, (uint32_t)uid};
    *rest = end + 1;
    return true;
}

void *names_resolve(void *const *root, const struct principal *who, const char *name)
{
    struct owner other;
    const char *rest;
    void *object;

    if (split_foreign(name, who->owner.listener, &other, &rest))
        return names_find(root, other, rest);
    object = names_find(root, who->owner, name);
    return object ? object : names_find(root, owner_shared(who->owner.listener), name);
}

static bool component_is_sound(const char *start, size_t size)
{
    return size && !(size == 1 && start[0] == '.') && !(size == 2 && start[0] == '.' && start[1] == '.');
}

static bool refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return false;
}

bool name_is_valid(const char *name, const char **why)
{
    const char *component = name;

    if (!*name)
        return refuse(why, "a name may not be empty");
    if (strlen(name) >= HBM_NAME_MAX)
        return refuse(why, "a name may have 255 bytes at most");
    if (*name == '~')
        return refuse(why, "a name may not begin with '~', which means another owner");
    for (const char *at = name;;) {
        if (*at == '/' || !*at) {
            if (!component_is_sound(component, (size_t)(at - component)))
                return refuse(why, "a name may not have empty, '.' or '..' components");
            component = at + 1;
        }
        if (!*at)
            return true;
        size_t length = utf8_length((const unsigned char *)at, strlen(at));
        if (!length)
            return refuse(why, "a name must be valid UTF-8");
        if ((unsigned char)*at < 0x20 || *at == 0x7f || (*at == '\xc2' && (unsigned char)at[1] < 0xa0))
            return refuse(why, "a name may not have control characters");
        if (strchr("*?[", *at))
            return refuse(why, "a name may not have '*', '?' or '[', which are for patterns");
        if (*at == ':' && component == name)
            return refuse(why, "a name may not have ':' before its first '/', which is for selectors");
        at += length;
    }
}

bool model_name_is_valid(const char *name, const char **why)
{
    if (!name_is_valid(name, why))
        return false;
    if (strpbrk(name, "/:~@"))
        return refuse(why, "a model's name may not have '/', ':', '~' or '@'");
    return true;
}

bool buffer_visible(const struct buffer *buffer, const struct principal *who)
{
    return arena_may_read(buffer->arena, who);
}

bool model_visible(const struct model *model, const struct principal *who)
{
    if (who->admin || owner_equal(model->owner, who->owner))
        return true;
    return model->owner.listener == who->owner.listener && (model->shared || (model->mode & 0004));
}

void name_for(struct core *core, struct owner scope, const struct principal *who, const char *name, char *text,
              size_t size)
{
    const struct listener *listener = scope.listener == who->owner.listener ? NULL : listener_of(core, scope.listener);

    if (listener)
        snprintf(text, size, "~%s:%" PRIu32 "/%s", listener->name, scope.uid, name);
    else if (owner_equal(scope, who->owner) || owner_equal(scope, owner_shared(who->owner.listener)))
        *(char *)mempcpy(text, name, strnlen(name, size - 1)) = 0; /* of a thousand: printing takes as long as all else */
    else
        snprintf(text, size, "~%" PRIu32 "/%s", scope.uid, name);
}

void buffer_name_for(const struct buffer *buffer, const struct principal *who, char *text, size_t size)
{
    const struct arena *arena = buffer->arena;

    if (buffer->name)
        name_for(buffer->core, owner_scope(arena->owner, arena->shared), who, buffer->name, text, size);
    else
        text[0] = 0;
}

void model_name_for(const struct model *model, const struct principal *who, char *text, size_t size)
{
    name_for(model->core, owner_scope(model->owner, model->shared), who, model->name, text, size);
}
