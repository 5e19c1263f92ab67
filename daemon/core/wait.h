/* Ways to be told later. The node is unlinked before the callback; who no longer wants it unlinks the node. */
#pragma once

#include "daemon/base/list.h"

struct op;

struct op_wait {
    struct list node;
    void (*ended)(struct op_wait *wait, struct op *op);
};

struct arena_wait {
    struct list node;
    void (*ready)(struct arena_wait *wait);
};

struct model_wait {
    struct list node;
    void (*ready)(struct model_wait *wait); /* sealed, or gone: look it up again */
};
