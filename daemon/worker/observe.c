/* OBSERVE: how a buffer's elements are distributed now, piece by piece into one histogram, which stays where they
 * are until its end. */
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/job.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/side.h"
#include "kernels/calibrate.h"
#include "kernels/tally.h"
#include "proto/memfd.h"

#define PIECE ((uint64_t)1 << 26) /* elements; a GPU's block counts in 32 bits */

_Static_assert(JOB_OBSERVE_BINS == HISTOGRAM_BINS, "the counts travel as they are");

struct counts {
    uint64_t bins[HISTOGRAM_BINS];
    struct histogram_ends ends;
};

static int count_pieces(struct job *job, const unsigned char *raw, struct counts *there, struct failure *failure)
{
    const struct job_observe_request *r = &job->request.observe;
    uint64_t bytes = hbm_dtype_bits(r->dtype) / 8;

    for (uint64_t done = 0; done < r->elements; done += PIECE) {
        struct histogram_job piece = {.raw = raw + done * bytes,
                                      .count = r->elements - done < PIECE ? r->elements - done : PIECE,
                                      .dtype = r->dtype,
                                      .within = HISTOGRAM_ALL,
                                      .ends = &there->ends};
        if (pace_wait(job, piece.count * bytes, failure) ||
            device_histogram_queued(DEVICE_COMPUTE, &piece, there->bins, failure))
            return failure->error;
        job_advance(job, piece.count * bytes);
    }
    return 0;
}

static int count(struct job *job, const unsigned char *raw, struct counts *counts, struct failure *failure)
{
    unsigned char *there;

    if (device_scratch_new(sizeof(*counts), &there, failure))
        return failure->error;
    if (!device_clear(DEVICE_COMPUTE, there, sizeof(*counts), failure) &&
        !count_pieces(job, raw, (struct counts *)(void *)there, failure))
        device_copy(DEVICE_COMPUTE, counts, there, sizeof(*counts), failure);
    device_drain(DEVICE_COMPUTE);
    device_scratch_free(there, sizeof(*counts));
    return failure->error;
}

static void answer(struct job *job, const struct counts *counts)
{
    struct job_observe_reply *reply = &job->reply.observe;
    int fd = memfd_sealed("hbm-observed", counts->bins, sizeof(counts->bins));

    if (fd < 0) {
        fail_errno(&job->failure, HBM_E_SYSTEM, "memfd_create", -fd);
        return;
    }
    job->reply_fd = fd;
    reply->finite = calibrate_finite(counts->bins, job->request.observe.dtype);
    reply->hi = counts->ends.highest ? tally_of_key(counts->ends.highest) : 0;
    reply->lo = counts->ends.lowest ? tally_of_key(~counts->ends.lowest) : 0;
}

void job_observe(struct job *job)
{
    const struct job_observe_request *r = &job->request.observe;
    _cleanup_free_ struct counts *counts = calloc(1, sizeof(*counts));
    uint64_t start = monotonic_ns();
    struct side side;

    if (!counts) {
        fail(&job->failure, HBM_E_SYSTEM, "out of memory for a histogram");
        return;
    }
    if (side_open(&side, &r->extent, job->n_fds ? job->fds[0] : -1, false, &job->failure))
        return;
    if (!count(job, side.view.bytes + r->offset, counts, &job->failure))
        answer(job, counts);
    side_close(&side);
    job->reply.observe.nanoseconds = monotonic_ns() - start;
}
