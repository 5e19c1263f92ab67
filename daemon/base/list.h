/* Intrusive circular list: the head and every node are a struct list; an unlinked node points at itself. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(node) {.next = &(node), .prev = &(node)}
#define container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))
#define list_entry(node, type, member) container_of(node, type, member)
#define list_for_each(position, head) for (struct list *position = (head)->next; position != (head); position = position->next)
/* The current node may be unlinked in the body; others may not. */
#define list_for_each_safe(position, head)                                                                   \
    for (struct list *position = (head)->next, *position##_next = position->next; position != (head);        \
         position = position##_next, position##_next = position->next)

static inline void list_init(struct list *node)
{
    node->next = node->prev = node;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Harmless on a node that is not linked. */
static inline void list_unlink(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* All nodes of `from` go to `head`, which was empty or holds nothing that matters. */
static inline void list_move_all(struct list *head, struct list *from)
{
    list_init(head);
    if (list_empty(from))
        return;
    *head = *from;
    head->next->prev = head->prev->next = head;
    list_init(from);
}

static inline struct list *list_first(const struct list *head)
{
    return list_empty(head) ? NULL : head->next;
}
