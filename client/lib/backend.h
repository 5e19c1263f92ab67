/* How an arena becomes an address in this process: memfds by mmap, GPU memory by the CUDA driver.
 * All calls set the error they return. A place is used by one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_place;

struct place {
    const struct backend *backend;
    void *address; /* NULL until reserved; then the same until release */
    size_t size;   /* exact: an import maps at no other size */
    unsigned access;
    bool mapped;
    bool host; /* set before map: what comes is host memory of a GPU's machine, or of the host device */
    bool in_place; /* the CPU is to reach host memory, too */
    const char *uuid; /* of the owning device */
    uint8_t ipc_handle[64];
    struct cuda_place *cuda;
};

/* Where a stream stands and waits. */
struct gate {
    uint32_t index, value;
};

struct backend {
    int (*reserve)(struct place *place);             /* an address, nothing behind it */
    int (*map)(struct place *place, int fd);         /* reserves if need be; fd is borrowed */
    int (*unmap)(struct place *place);               /* the address stays */
    void (*release)(struct place *place);            /* unmaps, gives the address back */
    int (*fence)(struct place *place, void *stream); /* remember the work queued on stream until now */
    int (*wait)(struct place *place);                /* until all remembered work is done */
    int (*check_stream)(void *stream);               /* INVALID: nothing may wait there now. NULL: there are no streams */
    int (*hold_back)(struct place *place, void *stream, struct gate *gate); /* what is queued there from now on */
};

extern const struct backend backend_host, backend_cuda, backend_cuda_ipc;

/* Once for each hold_back, from any thread; calls no driver. */
void gate_open(const struct gate *gate);
/* Waits for all work queued on these streams. */
int cuda_wait_streams(void *const *streams, unsigned n);
