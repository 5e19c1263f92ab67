/* Which buffers of a selection can take an encoding, and the plans that give it to them. */
#pragma once

#include "daemon/core/moving.h"
#include "daemon/core/recode.h"
#include "daemon/core/verbs.h"

/* The encoding the buffer can have, wherever it lies, with defaults filled in. 0, or INVALID or UNSUPPORTED with the reason
 * in *why (static). */
int encoding_for(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                 const char **why);
/* What it can be parked in: that, but nothing that splits. */
int park_encoding(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                  const char **why);
/* The encoding the buffer would get now: that, and it lies on the device. */
int compress_encoding(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                      const char **why);

/* The same for one that is to be replaced by its encoded form, with the bounds, in *recode. */
int compress_choose(const struct buffer *buffer, const struct principal *who, const void *args, struct recode *recode,
                    const char **why);

/* What a recoding verb does with one buffer: 0 and recode->encoding, or an error with *why. */
typedef int (*recode_choose)(const struct buffer *buffer, const struct principal *who, const void *context,
                             struct recode *recode, const char **why);

/* A moving with a plan for each arena and a row for each buffer selected; those of a pattern that `choose` refuses
 * are rows that say why. NULL with error and detail. `only`: the plans hold nothing but the buffers chosen. */
struct moving *recoding(struct core *core, const struct principal *who, const struct selection *selection,
                        recode_choose choose, const void *context, bool only, int *error, char *detail);
