/* How a person names an encoding: a codec, and what shares a scale. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/jobs.h"

#define GRANULARITY_DEFAULT 0xff /* core's: channel 0, tensor where there is one dimension at most */

/* granularity: "tensor", "channel", "channel:AXIS", "channel:AXIS:K" (int8-split), "group:N" or NULL. False with a sentence in *why. */
bool encoding_parse(const char *codec, const char *granularity, struct hbm_encoding *encoding, const char **why);
/* The way back: "tensor", "channel:0", "group:128". NULL where there are no scales to share. */
const char *granularity_text(const struct hbm_encoding *encoding, char *text, size_t size);
