/* What the CUDA backends keep of a place. */
#pragma once

#include <stdbool.h>

#include "client/lib/backend.h"
#include "client/lib/cuda_driver.h"

struct fence {
    struct fence *next;
    CUcontext context;
    CUstream stream;
    CUevent event;
};

struct cuda_place {
    CUcontext context; /* where cuda-ipc is open; used for threads that have none current */
    CUdevice device;
    CUmemAccessDesc access[2]; /* of GPUs */
    unsigned n_access;
    bool primary; /* context is the device's primary one, held by the process */
    struct fence *fences;
};

/* True if this process's GPU of that number is the one of the UUID. */
bool cuda_is(int ordinal, const char *uuid);
/* Waits for the work queued on a stream of that GPU, whichever is current. */
int cuda_wait_stream_of(int ordinal, void *stream);
/* Makes the context current and returns the one that was. */
CUcontext cuda_enter(const struct cuda_driver *cuda, CUcontext context);
/* backend->fence and ->wait of both kinds. */
int cuda_fence(struct place *place, void *stream);
int cuda_wait(struct place *place);
/* ->check_stream and ->hold_back. */
int cuda_check_stream(void *stream);
int cuda_hold_back(struct place *place, void *stream, struct gate *gate);
void cuda_drop_fences(const struct cuda_driver *cuda, struct place *place);
