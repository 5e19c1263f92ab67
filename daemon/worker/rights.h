/* What the worker may do. It reads and writes files for clients, by descriptors of theirs; whatever the kernel then
 * asks the writer and not the descriptor (quotas, space reserved for root, set-user-ID bits that a write clears) is
 * to be answered as for the client. */
#pragma once

#include <stdint.h>

/* Keeps of root's capabilities what copies need. First of all, while there is one thread. */
void rights_drop(void);
/* This thread, and threads that it starts, touch files as this user would; rights_return ends that. A worker that
 * is not root's stays who it is. */
void rights_become(uint32_t uid);
void rights_return(void);
