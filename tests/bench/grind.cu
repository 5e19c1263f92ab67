#include <cuda_runtime.h>

#include "tests/bench/grind.h"

static __global__ void compute(float *out, unsigned rounds)
{
    float a = (float)threadIdx.x, b = a + 1, c = a + 2, d = a + 3;

    for (unsigned i = 0; i < rounds * 64; i++) {
        a = fmaf(a, 0.999f, 1.0f);
        b = fmaf(b, 0.999f, 1.0f);
        c = fmaf(c, 0.999f, 1.0f);
        d = fmaf(d, 0.999f, 1.0f);
    }
    if (a + b + c + d == -1.0f) /* never, which the compiler does not know */
        *out = a;
}

static __global__ void read_all(uint4 *p, size_t n, unsigned rounds)
{
    unsigned sum = 0;

    for (unsigned round = 0; round < rounds; round++)
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
            uint4 words = __ldcs(p + i);
            sum += words.x + words.y + words.z + words.w + round;
        }
    if (sum == 0x12345678u)
        p->x = sum;
}

int grind_cuda(enum grind what, void *memory, size_t bytes, unsigned rounds, void *stream)
{
    if (what == GRIND_COMPUTE)
        compute<<<1056, 256, 0, (cudaStream_t)stream>>>((float *)memory, rounds);
    else
        read_all<<<1056, 512, 0, (cudaStream_t)stream>>>((uint4 *)memory, bytes / sizeof(uint4), rounds);
    return (int)cudaGetLastError();
}
