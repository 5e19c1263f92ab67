/* Copies from device memory into shared memory that no register takes part in (cp.async), and waiting for them. */
#pragma once

#include <stdint.h>

/* Queues BYTES (4 or 16, both sides aligned to them); zeros if the source is not there, which is then not read. */
template <unsigned BYTES> __device__ __forceinline__ void copy_async(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    uint32_t size = there ? BYTES : 0;

    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(size) : "memory");
}

/* What was queued since the last call is one stage. */
__device__ __forceinline__ void end_stage()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the newest LATER stages are in shared memory, as far as this thread queued them. */
template <unsigned LATER> __device__ __forceinline__ void wait_stages()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
