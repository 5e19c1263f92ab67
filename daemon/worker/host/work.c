/* Copies and codecs of the host device. A copy is over when its call returns, so marks have nothing to wait for. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/worker/device.h"

int device_mark_new(struct device_mark *mark, struct failure *failure)
{
    (void)failure;
    mark->event = mark;
    return 0;
}

void device_mark_free(struct device_mark *mark)
{
    mark->event = NULL;
}

int device_copy(enum device_stream stream, void *target, const void *source, size_t bytes, struct failure *failure)
{
    (void)stream, (void)failure;
    memcpy(target, source, bytes);
    return 0;
}

int device_mark(enum device_stream stream, struct device_mark *mark, struct failure *failure)
{
    (void)stream, (void)mark, (void)failure;
    return 0;
}

int device_wait(struct device_mark *mark, struct failure *failure)
{
    (void)mark, (void)failure;
    return 0;
}

int device_wait_soon(struct device_mark *mark, struct failure *failure)
{
    return device_wait(mark, failure);
}

void device_drain(enum device_stream stream)
{
    (void)stream;
}

/* The device's memory is the CPU's own. */
uint64_t *device_hashes_new(uint64_t n)
{
    (void)n;
    return NULL;
}

void device_hashes_free(uint64_t *hashes)
{
    (void)hashes;
}

int device_hash(enum device_stream stream, const struct device_mark *after, const void *bytes, uint64_t grains,
                uint64_t *hashes, struct failure *failure)
{
    (void)stream, (void)after, (void)bytes, (void)grains, (void)hashes;
    return fail(failure, HBM_E_UNSUPPORTED, "the host device does not hash by itself");
}

int device_encode(const struct codec_job *job, struct hbm_receipt *receipt, struct hbm_quality *quality,
                  struct failure *failure)
{
    struct codec_job with_marks = *job;
    struct codec_tally tally;
    struct timespec start, end;
    uint64_t elements = 0, channels = hbm_codec_splits(job->encoding.codec) ? job->dims[job->encoding.axis] : 0;

    if (channels && !(with_marks.marks = calloc(channels, sizeof(*with_marks.marks))))
        return fail(failure, HBM_E_SYSTEM, "out of memory for what %llu channels reach", (unsigned long long)channels);
    clock_gettime(CLOCK_MONOTONIC, &start);
    codec_tally_host(&with_marks, &tally);
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(with_marks.marks);
    hbm_shape_elements(job->dims, job->rank, &elements);
    codec_receipt_of(&tally, elements, receipt);
    codec_quality_of(&tally, &job->encoding, quality);
    receipt->seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return 0;
}

int device_decode(const struct codec_job *job, struct failure *failure)
{
    (void)failure;
    codec_decode_host(job);
    return 0;
}

int device_measure(const void *elements, uint64_t n, struct lossless_code *code, uint32_t *words,
                   struct failure *failure)
{
    uint64_t counts[256] = {0};

    (void)failure;
    lossless_count_host(elements, n, counts);
    lossless_code_of(counts, code);
    lossless_words_host(elements, n, code, words);
    return 0;
}

uint64_t device_codes_at_once(void)
{
    return (uint64_t)16 << 20;
}

int device_scratch_new(uint64_t bytes, unsigned char **scratch, struct failure *failure)
{
    *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *scratch ? 0 : fail(failure, HBM_E_NO_MEMORY, "%llu bytes to pack through", (unsigned long long)bytes);
}

void device_scratch_free(unsigned char *scratch, uint64_t bytes)
{
    (void)bytes;
    free(scratch);
}

int device_clear(enum device_stream stream, void *target, size_t bytes, struct failure *failure)
{
    (void)stream, (void)failure;
    memset(target, 0, bytes);
    return 0;
}

int device_after(enum device_stream stream, const struct device_mark *mark, struct failure *failure)
{
    (void)stream, (void)mark, (void)failure;
    return 0;
}

int device_encode_queued(enum device_stream stream, const struct codec_job *job, struct codec_tally *tally,
                         struct failure *failure)
{
    (void)stream, (void)failure;
    codec_tally_host(job, tally);
    return 0;
}

int device_histogram_queued(enum device_stream stream, const struct histogram_job *job, uint64_t *counts,
                            struct failure *failure)
{
    (void)stream, (void)failure;
    histogram_host(job, counts);
    return 0;
}

int device_decode_queued(enum device_stream stream, const struct codec_job *job, struct failure *failure)
{
    (void)stream, (void)failure;
    codec_decode_host(job);
    return 0;
}
