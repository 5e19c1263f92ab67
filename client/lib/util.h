/* Cleanup attributes and a list node, for libhbm alone. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

static inline void close_fd_at(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void free_at(void *pointer)
{
    free(*(void **)pointer);
}

#define CLOSE_FD __attribute__((cleanup(close_fd_at)))
#define FREE __attribute__((cleanup(free_at)))
#define TAKE_FD(fd)                                                                                                \
    ({                                                                                                             \
        int taken_ = (fd);                                                                                         \
        (fd) = -1;                                                                                                 \
        taken_;                                                                                                    \
    })
#define CONTAINER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/* A circular list; a head is a node that points at itself. */
struct node {
    struct node *next, *previous;
};

static inline void node_init(struct node *node)
{
    node->next = node->previous = node;
}

static inline void node_append(struct node *head, struct node *node)
{
    node->previous = head->previous;
    node->next = head;
    head->previous->next = node;
    head->previous = node;
}

static inline void node_unlink(struct node *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    node_init(node);
}
