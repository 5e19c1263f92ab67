/* GPU work that an unlocked arena waits for: an event a stream, recorded at unlock. */
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
static struct fence *fence_for(const struct cuda_driver *cuda, struct cuda_place *place, CUcontext context,
                               CUstream stream)
{
    struct fence **link = &place->fences, *fence;

    while ((fence = *link) && (fence->stream != stream || fence->context != context)) {
        if (cuda->event_query(fence->event) == 0)
            drop_fence(cuda, link);
        else
            link = &fence->next;
    }
    if (fence)
        return fence;
    fence = calloc(1, sizeof(*fence));
    if (!fence)
        return NULL;
    fence->context = context;
    fence->stream = stream;
    if (cuda->event_create(&fence->event, CU_EVENT_DISABLE_TIMING)) {
        free(fence);
        return NULL;
    }
    fence->next = place->fences;
    place->fences = fence;
    return fence;
}

int cuda_fence(struct place *place, void *stream)
{
    const struct cuda_driver *cuda = cuda_driver();
    CUcontext old = NULL;
    CUresult result = -1;

    cuda->context_current(&old);
    CUcontext context = old ? old : place->cuda->context;
    cuda_enter(cuda, context);
    struct fence *fence = fence_for(cuda, place->cuda, context, stream);
    if (fence)
        result = cuda->event_record(fence->event, stream);
    cuda_enter(cuda, old);
    if (!fence)
        return set_error(HBM_E_CUDA, "no event can be made for the stream");
    return result ? set_cuda_error("cuEventRecord", result) : 0;
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
