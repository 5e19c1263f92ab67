#include "client/ctl/mapped_hash.h"

#include <stdlib.h>

#include <xxhash.h>

#include "client/ctl/gpu_read.h"
#include "client/ctl/scoped.h"

#define CHUNK ((size_t)32 << 20)

static void free_state(XXH3_state_t **state)
{
    XXH3_freeState(*state);
}

static const char *hash_gpu(const char *uuid, const struct hbm_info *info, uint64_t *hash)
{
    _cleanup_free_ char *chunk = malloc(CHUNK);
    _cleanup_(free_state) XXH3_state_t *state = XXH3_createState();

    if (!chunk || !state)
        return "there is no memory to read it back into";
    XXH3_64bits_reset(state);
    for (uint64_t done = 0; done < info->size;) {
        size_t bytes = info->size - done < CHUNK ? (size_t)(info->size - done) : CHUNK;
        const char *error = gpu_read(uuid, chunk, (const char *)info->pointer + done, bytes);
        if (error)
            return error;
        XXH3_64bits_update(state, chunk, bytes);
        done += bytes;
    }
    *hash = XXH3_64bits_digest(state);
    return NULL;
}

const char *mapped_hash(hbm_session *session, const struct hbm_info *info, uint64_t *hash)
{
    struct hbm_device_info device;
    int error = hbm_device_get(session, info->device, &device);

    if (error)
        return hbm_strerror(error);
    if (info->size && device.is_cuda)
        return hash_gpu(device.uuid, info, hash);
    *hash = XXH3_64bits(info->size ? info->pointer : "", (size_t)info->size);
    return NULL;
}
