/* The sentence of a thread's last failure. */
#pragma once

#include "client/hbm.h"

/* Both return `error`, so that a refusal is one line. */
__attribute__((format(printf, 2, 3))) int set_error(int error, const char *format, ...);
/* HBM_E_SYSTEM: "CALL: strerror(number)". */
int set_system_error(const char *call, int number);

/* HBM_E_INVALID unless text is a NUL-terminated string of 1 .. room-1 bytes; `what` names the argument. */
int check_text(const char *what, const char *text, size_t room);

/* Clean-up after a failure may fail as well; what the caller reads is the first. */
struct error_kept {
    char text[1024];
};
void error_keep(struct error_kept *kept);
void error_restore(const struct error_kept *kept);
