#include "daemon/worker/head.h"

#include "daemon/worker/checksum.h"
#include "daemon/worker/pace.h"

static _Atomic unsigned under_way;

/* The target is there before half of the bytes are: more would only be copied twice. */
static unsigned chunks_of(uint64_t bytes)
{
    uint64_t half = bytes / 2 / CHECKSUM_CHUNK;

    return half < device_make_chunks() ? (unsigned)half : device_make_chunks();
}

void head_send(struct head *head, struct job *job, const unsigned char *source, uint64_t bytes)
{
    struct failure failure = {0};

    head->counted = true;
    if (under_way++ || pace_is_limited(job))
        return;
    for (unsigned i = 0; i < chunks_of(bytes); i++) {
        if (device_scratch_new(CHECKSUM_CHUNK, &head->scratch[i], &failure))
            return;
        if (device_copy(DEVICE_UP, head->scratch[i], source + i * CHECKSUM_CHUNK, CHECKSUM_CHUNK, &failure)) {
            device_scratch_free(head->scratch[i], CHECKSUM_CHUNK);
            return;
        }
        head->n = i + 1;
    }
}

uint64_t head_bytes(const struct head *head)
{
    return head->n * CHECKSUM_CHUNK;
}

int head_land(const struct head *head, unsigned char *target, struct failure *failure)
{
    for (unsigned i = 0; i < head->n; i++)
        if (device_copy(DEVICE_UP, target + i * CHECKSUM_CHUNK, head->scratch[i], CHECKSUM_CHUNK, failure))
            return failure->error;
    return 0;
}

void head_free(struct head *head)
{
    while (head->n)
        device_scratch_free(head->scratch[--head->n], CHECKSUM_CHUNK);
    under_way -= head->counted;
    head->counted = false;
}
