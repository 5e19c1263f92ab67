/* Kernels that a move is to leave alone: on the GPU (grind.cu) or, on the host device, the same on a CPU. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum grind {
    GRIND_COMPUTE, /* registers alone, on every multiprocessor */
    GRIND_MEMORY,  /* reads all of the memory */
};

/* Queues it on the stream (a CUstream of the current context), `rounds` times over. 0 or a CUDA error. */
int grind_cuda(enum grind what, void *memory, size_t bytes, unsigned rounds, void *stream);

#ifdef __cplusplus
}
#endif
