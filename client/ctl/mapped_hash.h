/* XXH3-64 of a mapped buffer's bytes, read the way its device allows. */
#pragma once

#include <stdint.h>

#include "client/hbm.h"

/* NULL with *hash; or why the bytes cannot be read. */
const char *mapped_hash(hbm_session *session, const struct hbm_info *info, uint64_t *hash);
