/* The primary context: made by the first job that needs it, dropped when nothing has needed it for a while. While
 * it is dropped this process costs the device nothing. Users: running jobs (device_enter) and living cuda-ipc
 * blocks. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/device.h"

void context_start(uint64_t idle_ms);
/* Free memory as the context sees it; false if there is none. Asking does not count as use. */
bool context_free_bytes(uint64_t *bytes);
/* Between device_enter and device_leave only. */
cudaStream_t context_stream(enum device_stream stream);
