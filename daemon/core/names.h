/* Names: per owner, plus the shared ones. A name is 1-255 bytes of valid UTF-8 without control characters, '*', '?' or
 * '[' (globs), no leading '~' (another owner's name: "~UID/NAME", behind another listener "~LISTENER:UID/NAME"), no ':' before any '/' (selectors), and no empty, "." or
 * ".." component between '/'. Model names also lack '/', ':', '~', '@'. */
#pragma once

#include "daemon/core/buffer.h"
#include "daemon/core/listener.h"

bool name_is_valid(const char *name, const char **why);
bool model_name_is_valid(const char *name, const char **why);
/* 0, or -ENOMEM / -EEXIST. Scope: owner_scope()'s. The text stays the object's. */
int names_add(void **root, struct owner scope, const char *name, void *object);
void names_remove(void **root, struct owner scope, const char *name);
/* The text that was added lies here now. */
void names_moved(void *const *root, struct owner scope, const char *name);
void *names_find(void *const *root, struct owner scope, const char *name);
/* As `who` means it: own, then shared; "~UID/NAME" and "~LISTENER:UID/NAME" are others'. No permission is judged here. */
void *names_resolve(void *const *root, const struct principal *who, const char *name);

/* A selector resolved: what `who` may see of it. */
struct selection {
    struct buffer **buffers;
    size_t n;
    bool by_pattern; /* a glob, group or model: unsuitable members are skipped, not refused */
};
/* 0, NOT_FOUND (nothing matched), INVALID, NO_MEMORY with a sentence in detail. Scales are left out unless named exactly. */
int select_buffers(struct core *core, const struct principal *who, const char *sel, struct selection *selection, char *detail);
void selection_clear(struct selection *selection);
/* Those of an arena side by side, by offset; the arenas as the selection comes to them, a model's as it was published. */
void selection_by_arena(struct core *core, struct selection *selection);
/* True if `who` sees it at all: owner, admin, shared, or readable by mode. Else it is NOT_FOUND for them. */
bool buffer_visible(const struct buffer *buffer, const struct principal *who);
bool model_visible(const struct model *model, const struct principal *who);
#define NAME_FOR_MAX (HBM_NAME_MAX + LISTENER_NAME_MAX + 16)
/* A name of that scope as `who` would write it: "w", "~0/w", "~pods:0/w". */
void name_for(struct core *core, struct owner scope, const struct principal *who, const char *name, char *text,
              size_t size);
/* The name as `who` would write it ("~0/w" for an admin looking at another's), "" if it has none. */
void buffer_name_for(const struct buffer *buffer, const struct principal *who, char *text, size_t size);
void model_name_for(const struct model *model, const struct principal *who, char *text, size_t size);
