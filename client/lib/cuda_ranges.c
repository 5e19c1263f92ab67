#include "client/lib/cuda_ranges.h"

#include <pthread.h>
#include <stdbool.h>

/* What is given back in between is not cut again before all of it is back, or what was cut after it: there are more
 * addresses than an engine uses up, and where there are not, arenas have reservations of their own. */
static struct {
    pthread_mutex_t mutex;
    CUdeviceptr base; /* 0: not reserved */
    size_t used;
    size_t ranges;
    bool refused;
} whole = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool reserve_whole(const struct cuda_driver *cuda)
{
    if (!whole.base && !whole.refused)
        whole.refused = cuda->reserve(&whole.base, CUDA_RANGES_BYTES, 0, 0, 0) != 0;
    return !whole.refused;
}

static bool cut(const struct cuda_driver *cuda, size_t size, CUdeviceptr *address)
{
    bool fits = size % CUDA_RANGES_ALIGN == 0 && reserve_whole(cuda) && size <= CUDA_RANGES_BYTES - whole.used;

    if (fits) {
        *address = whole.base + whole.used;
        whole.used += size;
        whole.ranges++;
    }
    return fits;
}

static bool is_cut(CUdeviceptr address)
{
    return whole.base && address >= whole.base && address - whole.base < CUDA_RANGES_BYTES;
}

static void put_back(CUdeviceptr address, size_t size)
{
    whole.ranges--;
    if (whole.ranges == 0)
        whole.used = 0;
    else if (address + size == whole.base + whole.used)
        whole.used -= size;
}

CUresult cuda_range_take(const struct cuda_driver *cuda, size_t size, CUdeviceptr *address)
{
    pthread_mutex_lock(&whole.mutex);
    bool fits = cut(cuda, size, address);
    pthread_mutex_unlock(&whole.mutex);
    return fits ? 0 : cuda->reserve(address, size, 0, 0, 0);
}

void cuda_range_give(const struct cuda_driver *cuda, CUdeviceptr address, size_t size)
{
    pthread_mutex_lock(&whole.mutex);
    bool own = !is_cut(address);
    if (!own)
        put_back(address, size);
    pthread_mutex_unlock(&whole.mutex);
    if (own)
        cuda->address_free(address, size);
}
