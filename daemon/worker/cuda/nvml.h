/* NVML, found at run time; everything here says "no" where it is missing. Its calls need no context. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct nvml_memory {
    unsigned long long total, reserved, free, used; /* reserved: by the driver, for itself; an old one counts that as used */
};

/* False if NVML does not know the UUID. */
bool nvml_memory(const char *uuid, struct nvml_memory *memory);
/* N of /dev/nvidiaN, for a MIG instance that of its GPU; false if unknown. */
bool nvml_minor(const char *uuid, unsigned *minor);
/* Calls `found` for every MIG instance. */
void nvml_each_mig(void (*found)(const char *uuid, const char *name, uint64_t bytes, void *context), void *context);
/* Calls `found` for every process that has a compute context on any GPU; false if NVML cannot tell. */
bool nvml_each_process(void (*found)(unsigned pid, uint64_t bytes, void *context), void *context);
/* The same for one device, with the bytes that NVML counts as the process's; UINT64_MAX where it does not say. */
bool nvml_each_holder(const char *uuid, void (*found)(unsigned pid, uint64_t bytes, void *context), void *context);
