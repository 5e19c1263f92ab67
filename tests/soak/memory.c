#include "tests/soak/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/cuda_driver.h"
#include "client/lib/error.h"

#define PIECE_US 5000

unsigned memory_scale = 1;

static const struct cuda_driver *cuda;
static CUresult refusal; /* why the last copy could not be made */
static void *staging, *expected;

bool memory_open(bool on_gpu)
{
    CUcontext context;
    CUdevice device;

    staging = malloc(BUFFER_MAX);
    expected = malloc(BUFFER_MAX);
    if (!staging || !expected)
        return perror("malloc"), false;
    if (!on_gpu)
        return true;
    memory_scale = 16;
    cuda = cuda_driver();
    if (!cuda || cuda->device_get(&device, 0) || cuda_primary(cuda, device, &context) ||
        cuda->context_set(context)) {
        fprintf(stderr, "no GPU can be used: %s\n", hbm_last_error_detail());
        return false;
    }
    return true;
}

/* Sign, six bits of exponent and all of bf16's mantissa vary; no zero, no NaN, nothing that rounds. */
static uint32_t element(uint64_t seed, size_t i)
{
    uint32_t bits = (uint32_t)((seed + i) * 0x9e3779b97f4a7c15u >> 32);

    return (bits & 0x807f0000u) | (0x30 + (bits & 0x3f)) << 23;
}

void pattern_make(struct pattern pattern, void *into, size_t size)
{
    uint64_t seed = ((uint64_t)pattern.key << 32 | pattern.version) * 0xff51afd7ed558ccdu;
    uint16_t *halves = into;
    uint32_t *words = into;

    if (!pattern.version)
        memset(into, 0, size);
    else if (pattern.bf16)
        for (size_t i = 0; i < size / sizeof(*halves); i++)
            halves[i] = (uint16_t)(element(seed, i) >> 16);
    else
        for (size_t i = 0; i < size / sizeof(*words); i++)
            words[i] = element(seed, i);
}

bool memory_write(void *at, struct pattern pattern, size_t size, unsigned pieces)
{
    size_t piece = (size / pieces / sizeof(uint32_t) + 1) * sizeof(uint32_t);

    pattern_make(pattern, staging, size);
    for (size_t done = 0; done < size; done += piece) {
        size_t some = size - done < piece ? size - done : piece;
        if (done)
            usleep(PIECE_US);
        if (!cuda)
            memcpy((char *)at + done, (char *)staging + done, some);
        else if (cuda->copy_to_device((CUdeviceptr)(uintptr_t)at + done, (char *)staging + done, some))
            return false;
    }
    /* From pageable memory a copy may return while its last bytes are still on their way; an unlock promises that they
     * have arrived. */
    return !cuda || !cuda->stream_synchronize(NULL);
}

const void *memory_read(const void *at, size_t size)
{
    if (!cuda)
        return at;
    refusal = cuda->copy_from_device(staging, (CUdeviceptr)(uintptr_t)at, size);
    return refusal ? NULL : staging;
}

static bool is_one_of(const unsigned char *bytes, size_t width, size_t offset, struct pattern pattern,
                      const uint32_t *versions, unsigned n)
{
    unsigned char other[sizeof(uint32_t)];

    for (unsigned i = 0; i < n; i++) {
        uint64_t seed = ((uint64_t)pattern.key << 32 | versions[i]) * 0xff51afd7ed558ccdu;
        uint32_t word = versions[i] ? element(seed, offset / width) : 0;
        uint16_t half = (uint16_t)(word >> 16);
        memcpy(other, pattern.bf16 ? (void *)&half : (void *)&word, width);
        if (!memcmp(bytes, other, width))
            return true;
    }
    return false;
}

const char *memory_check(const void *at, struct pattern pattern, const uint32_t *versions, unsigned n, size_t size,
                         bool *mixed)
{
    static char sentence[256];
    const unsigned char *bytes = memory_read(at, size);
    size_t width = pattern.bf16 ? 2 : 4;

    *mixed = false;
    if (!bytes)
        return snprintf(sentence, sizeof(sentence), "the driver cannot copy it (CUresult %d)", (int)refusal), sentence;
    for (unsigned i = 0; i < n; i++) {
        pattern.version = versions[i];
        pattern_make(pattern, expected, size);
        if (!memcmp(bytes, expected, size))
            return NULL;
    }
    *mixed = true;
    for (size_t offset = 0; offset < size; offset += width) {
        if (is_one_of(bytes + offset, width, offset, pattern, versions, n))
            continue;
        int used = snprintf(sentence, sizeof(sentence), "byte %zu of %zu is %02x%02x, of none of the %u versions",
                            offset, size, bytes[offset], bytes[offset + 1], n);
        for (unsigned i = 0; i < n; i++)
            used += snprintf(sentence + used, sizeof(sentence) - (size_t)used, " %u", versions[i]);
        return sentence;
    }
    return NULL;
}
