/* XXH3 mixes each stripe of 64 bytes into eight accumulators and scrambles these after every block of 16 stripes.
 * What a block adds does not depend on the accumulators, only the scrambling is a chain: so all blocks of a tile
 * are summed in parallel by eight warps, four threads a block, while a ninth goes along the chain of the tile
 * before. */
#include "kernels/xxh3.h"

#include <cuda_runtime.h>

namespace
{

constexpr unsigned STRIPES = 16, LANES = 8, BLOCK_BYTES = STRIPES * 64;
constexpr unsigned SUMMERS = 256, TILE = SUMMERS / 4; /* blocks */
constexpr unsigned BLOCKS = XXH3_GRAIN / BLOCK_BYTES, TILES = BLOCKS / TILE;

constexpr uint64_t P32_1 = 0x9E3779B1u, P32_2 = 0x85EBCA77u, P32_3 = 0xC2B2AE3Du;
constexpr uint64_t P64_1 = 0x9E3779B185EBCA87u, P64_2 = 0xC2B2AE3D27D4EB4Fu, P64_3 = 0x165667B19E3779F9u,
                   P64_4 = 0x85EBCA77C2B2AE63u, P64_5 = 0x27D4EB2F165667C5u;

/* The default secret. */
/* clang-format off */
__constant__ unsigned char secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
/* clang-format on */
__constant__ uint64_t start[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};

__device__ uint64_t key_at(unsigned offset)
{
    uint64_t key = 0;

    for (unsigned i = 0; i < 8; i++)
        key |= (uint64_t)secret[offset + i] << 8 * i;
    return key;
}

__device__ __forceinline__ uint64_t halves_multiplied(uint64_t x)
{
    return (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
}

__device__ uint64_t folded(uint64_t a, uint64_t b)
{
    return a * b ^ __umul64hi(a, b);
}

/* One thread's pair of lanes of one block: lanes 2j and 2j + 1 take each other's bytes. */
struct pair {
    uint64_t even, odd;
};

__device__ __forceinline__ void mix(pair &sum, ulonglong2 bytes, uint64_t even_key, uint64_t odd_key)
{
    sum.even += bytes.y + halves_multiplied(bytes.x ^ even_key);
    sum.odd += bytes.x + halves_multiplied(bytes.y ^ odd_key);
}

/* The last stripe of a grain lies where any other's would, but has keys of its own. */
__device__ __forceinline__ pair sum_block(const ulonglong2 *stripes, const uint64_t (&keys)[STRIPES + 1],
                                          uint64_t last_even, uint64_t last_odd)
{
    ulonglong2 bytes[STRIPES];
    pair sum = {0, 0};

#pragma unroll
    for (unsigned n = 0; n < STRIPES; n++)
        bytes[n] = stripes[n * 4];
#pragma unroll
    for (unsigned n = 0; n < STRIPES - 1; n++)
        mix(sum, bytes[n], keys[n], keys[n + 1]);
    mix(sum, bytes[STRIPES - 1], last_even, last_odd);
    return sum;
}

__device__ uint64_t merged(const uint64_t *lanes)
{
    uint64_t hash = XXH3_GRAIN * P64_1;

    for (unsigned i = 0; i < LANES; i += 2)
        hash += folded(lanes[i] ^ key_at(11 + 8 * i), lanes[i + 1] ^ key_at(19 + 8 * i));
    hash ^= hash >> 37;
    hash *= 0x165667919E3779F9u;
    return hash ^ hash >> 32;
}

/* A thread block a grain. */
__global__ void __launch_bounds__(SUMMERS + 32) hash_grains(const unsigned char *bytes, uint64_t *hashes)
{
    __shared__ uint64_t sums[2][TILE][LANES];
    const ulonglong2 *grain = (const ulonglong2 *)(bytes + blockIdx.x * XXH3_GRAIN);
    const unsigned t = threadIdx.x, j = t % 4, lane = t % LANES;
    const bool chains = t >= SUMMERS && t < SUMMERS + LANES;
    uint64_t keys[STRIPES + 1], accumulator = start[lane], scramble_key = key_at(128 + 8 * lane);

#pragma unroll
    for (unsigned n = 0; n <= STRIPES; n++)
        keys[n] = key_at(16 * j + 8 * n);
    const uint64_t end_even = key_at(121 + 16 * j), end_odd = key_at(129 + 16 * j);
    for (unsigned tile = 0; tile <= TILES; tile++) {
        if (t < SUMMERS && tile < TILES) {
            unsigned block = tile * TILE + t / 4;
            bool ends = block == BLOCKS - 1;
            pair sum = sum_block(grain + block * (BLOCK_BYTES / 16) + j, keys, ends ? end_even : keys[STRIPES - 1],
                                 ends ? end_odd : keys[STRIPES]);
            sums[tile % 2][t / 4][2 * j] = sum.even;
            sums[tile % 2][t / 4][2 * j + 1] = sum.odd;
        }
        if (chains && tile > 0) {
#pragma unroll 8
            for (unsigned b = 0; b < TILE; b++) {
                accumulator += sums[(tile - 1) % 2][b][lane];
                if (tile == TILES && b == TILE - 1)
                    break; /* the last block is not scrambled */
                accumulator = (accumulator ^ accumulator >> 47 ^ scramble_key) * P32_1;
            }
        }
        __syncthreads();
    }
    if (chains)
        sums[0][0][lane] = accumulator;
    __syncthreads();
    if (t == 0)
        hashes[blockIdx.x] = merged(sums[0][0]);
}

} // namespace

int xxh3_grains_cuda(const void *bytes, uint64_t grains, uint64_t *hashes, void *stream)
{
    if (grains)
        hash_grains<<<(unsigned)grains, SUMMERS + 32, 0, (cudaStream_t)stream>>>((const unsigned char *)bytes,
                                                                                 hashes);
    return (int)cudaGetLastError();
}
