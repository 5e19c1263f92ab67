/* What a job is to go by travels as a sealed memfd. */
#pragma once

/* It could not be made, for -errno: LIMIT, NO_MEMORY or SYSTEM, with a sentence in detail (HBM_DETAIL_MAX). */
int table_fd_refused(int reason, char *detail);
