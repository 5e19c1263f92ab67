/* The errors of errors.def: calls return 0 or a negative hbm_error. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Part of libhbm's interface. */
#pragma GCC visibility push(default)

enum hbm_error {
    HBM_OK = 0,
#define ERROR(name, number, what, remedy) HBM_E_##name = -(number),
#include "proto/errors.def"
#undef ERROR
};

/* "NOT_FOUND"; "UNKNOWN" for a number that is none of ours. Static storage. */
const char *hbm_error_name(int error);
/* What happened, as half a sentence. Static storage. */
const char *hbm_error_what(int error);
/* What the reader can do about it. Static storage. */
const char *hbm_error_remedy(int error);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
