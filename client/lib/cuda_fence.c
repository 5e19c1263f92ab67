/* GPU work that an unlocked arena waits for: an event a stream, recorded at unlock. */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/cuda_place.h"
#include "client/lib/error.h"

CUcontext cuda_enter(const struct cuda_driver *cuda, CUcontext context)
{
    CUcontext old = NULL;

    cuda->context_current(&old);
    if (old != context)
        cuda->context_set(context);
    return old;
}

static void drop_fence(const struct cuda_driver *cuda, struct fence **link)
{
    struct fence *fence = *link;

    *link = fence->next;
    cuda->event_destroy(fence->event);
    free(fence);
}

void cuda_drop_fences(const struct cuda_driver *cuda, struct place *place)
{
    while (place->cuda && place->cuda->fences)
        drop_fence(cuda, &place->cuda->fences);
}

/* One event a stream, recorded anew each time; streams come and go, so events whose work is done are dropped here.
 */
static int fence_for(const struct cuda_driver *cuda, struct cuda_place *place, CUcontext context, CUstream stream,
                     struct fence **ret)
{
    struct fence **link = &place->fences, *fence;
    CUresult result;

    while ((fence = *link) && (fence->stream != stream || fence->context != context)) {
        if (cuda->event_query(fence->event) == 0)
            drop_fence(cuda, link);
        else
            link = &fence->next;
    }
    if ((*ret = fence))
        return 0;
    fence = calloc(1, sizeof(*fence));
    if (!fence)
        return set_system_error("malloc", ENOMEM);
    fence->context = context;
    fence->stream = stream;
    result = cuda->event_create(&fence->event, CU_EVENT_DISABLE_TIMING);
    if (result) {
        free(fence);
        return set_cuda_error("cuEventCreate", result);
    }
    fence->next = place->fences;
    *ret = place->fences = fence;
    return 0;
}

int cuda_fence(struct place *place, void *stream)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext old = NULL;
    struct fence *fence;

    cuda->context_current(&old);
    CUcontext context = old ? old : place->cuda->context;
    cuda_enter(cuda, context);
    int error = fence_for(cuda, place->cuda, context, stream, &fence);
    CUresult result = error ? 0 : cuda->event_record(fence->event, stream);
    cuda_enter(cuda, old);
    return result ? set_cuda_error("cuEventRecord", result) : error;
}

int cuda_wait(struct place *place)
{
    const struct cuda_driver *cuda = cuda_driver();

    while (place->cuda && place->cuda->fences) {
        struct fence *fence = place->cuda->fences;
        CUcontext old = cuda_enter(cuda, fence->context);
        CUresult result = cuda->event_synchronize(fence->event);
        if (!result)
            drop_fence(cuda, &place->cuda->fences);
        cuda_enter(cuda, old);
        if (result)
            return set_cuda_error("cuEventSynchronize", result);
    }
    return 0;
}

int cuda_wait_stream_of(int ordinal, void *stream)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext context;
    CUdevice device;

    if (!cuda)
        return HBM_E_NO_CUDA;
    CUresult result = cuda->device_get(&device, ordinal);
    if (!result)
        result = cuda_primary(cuda, device, &context);
    if (result)
        return set_cuda_error("cuDevicePrimaryCtxRetain", result);
    CUcontext old = cuda_enter(cuda, context);
    int error = cuda_wait_streams(&stream, 1);
    cuda_enter(cuda, old);
    return error;
}

int cuda_wait_streams(void *const *streams, unsigned n)
{
    const struct cuda_driver *cuda = n ? cuda_driver() : NULL;

    if (n && !cuda)
        return HBM_E_NO_CUDA;
    for (unsigned i = 0; i < n; i++) {
        CUresult result = cuda->stream_synchronize(streams[i]);
        if (result)
            return set_cuda_error("cuStreamSynchronize", result);
    }
    return 0;
}
