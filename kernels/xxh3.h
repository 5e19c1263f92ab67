/* XXH3-64 of device memory, many grains at once: the checksum of worker/checksum.h, computed where the bytes lie.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include <stdint.h>

#define XXH3_GRAIN ((uint64_t)1 << 20)

/* hashes[i] = XXH3-64 (seed 0) of bytes [i * XXH3_GRAIN, (i + 1) * XXH3_GRAIN), asynchronous on `stream` (a
 * cudaStream_t). `bytes` is device memory aligned to 16; `hashes` is memory that the device can write. Returns a
 * cudaError_t as int. */
int xxh3_grains_cuda(const void *bytes, uint64_t grains, uint64_t *hashes, void *stream);

#ifdef __cplusplus
}
#endif
