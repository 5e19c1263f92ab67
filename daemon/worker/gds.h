/* GPUDirect Storage in copies between disk and device: straight (cufile.h), where that was measured to be faster
 * than by staging. The first large copy of a worker does some chunks both ways, once for each direction. */
#pragma once

#include "daemon/worker/cufile.h"
#include "daemon/worker/side.h"
#include "proto/jobs.h"

/* Chunks of each way that the first large copy does: unmeasured ones, for what is made when first needed, then
 * measured ones. */
#define GDS_WARM 3u
#define GDS_SAMPLE 6u
#define GDS_MEASURED_FROM (UINT64_C(2) * (GDS_WARM + GDS_SAMPLE)) /* chunks of a copy */

enum gds_direction { GDS_READ, GDS_WRITE };
enum gds_way { GDS_UNMEASURED, GDS_STAGED, GDS_STRAIGHT };

/* Once, at START: the operator allows it; the device's memory is for other devices' DMA. */
void gds_start(bool allowed, bool reachable);
enum gds_way gds_way(enum gds_direction direction);
/* What so many bytes took; decides, and says so in the log. */
void gds_measured(enum gds_direction direction, uint64_t bytes, uint64_t staged_ns, uint64_t straight_ns);
/* It failed: not used from now on. */
void gds_failed(const struct failure *failure);
void gds_report(struct job_query_reply *reply);

/* One copy's. */
struct gds {
    struct cufile file; /* no handle: by staging */
    enum gds_direction direction;
    uint64_t open_ns, bytes; /* what registering took, and of how much: it grows with the memory */
};
/* Opens it if this copy is to go straight, or to measure, which so many chunks can be used for; whether it is open.
 */
bool gds_open(struct gds *gds, const struct side *source, const struct side *target, uint64_t chunks);
void gds_close(struct gds *gds);
/* Of the time that opening took, what so many bytes have to bear. */
uint64_t gds_open_share(const struct gds *gds, uint64_t bytes);
/* Whether the chunk is there; else it is to be staged, since it is not aligned or since that failed. */
bool gds_move(const struct gds *gds, uint64_t source_offset, uint64_t target_offset, size_t bytes);
