/* What a device was measured to do, kept as a file: with what and when, since a figure outlives its driver. */
#pragma once

#include "client/ctl/facts.h"

struct profile {
    char *path;
    cJSON *json;   /* NULL: there is none */
    char *missing; /* why not */
    char *stale;   /* why it says little of the device as it is now; NULL: it does not */
};

/* Where it is kept: --profile FILE, else in the daemon's state directory where this user may use that, else in his
 * own. */
int profile_place(const struct cli *cli, const struct state *state, struct profile *profile);
/* Reads it into the facts, and judges its age. */
int profile_read(const struct cli *cli, const struct state *state, struct profile *profile, struct facts *facts);
/* Measures the device and keeps it. An exit status. */
int profile_measure(const struct cli *cli, const struct state *state, struct profile *profile, struct facts *facts);
void profile_clear(struct profile *profile);

/* Whose driver: "NVIDIA 580.159.04", or "Linux 6.18.0" for host memory. The caller owns it. */
char *profile_driver(bool is_gpu);
/* Fills the measured facts; what could not be is left, and why is added to `missing` {fact: why}. An exit status.
 */
int figures_measure(const struct cli *cli, const struct state *state, struct facts *facts, cJSON *missing);
