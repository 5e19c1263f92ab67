/* The head of a copy to the device: sent to scratch memory there while its target is being made, which on a GPU
 * takes as long as the link takes for that much. */
#pragma once

#include "daemon/worker/device.h"
#include "daemon/worker/job.h"

#define HEAD_CHUNKS 2

struct head {
    unsigned char *scratch[HEAD_CHUNKS]; /* CHECKSUM_CHUNK bytes each */
    unsigned n;
    bool counted; /* among those under way */
};

/* Of so many bytes that the device can read. Where that cannot be, or another copy keeps the link busy meanwhile,
 * nothing is sent ahead, which is no failure. Ended by head_free in any case. */
void head_send(struct head *head, struct job *job, const unsigned char *source, uint64_t bytes);
uint64_t head_bytes(const struct head *head);
/* Queued on DEVICE_UP, behind what was sent. */
int head_land(const struct head *head, unsigned char *target, struct failure *failure);
/* Nothing of it is under way any more. */
void head_free(struct head *head);
