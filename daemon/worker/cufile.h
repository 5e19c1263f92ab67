/* cuFile, found at run time: the disk's DMA reads and writes the device's memory by itself. Only where the
 * nvidia-fs driver is loaded: without it the library goes through host memory, as staging does too, and says
 * nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/worker/failure.h"

#define CUFILE_ALIGN                                                                                               \
    4096u /* of offsets in file and memory, and of bytes: what is not would pass through host memory */

/* Whether the driver is there, for device memory that others' DMA reaches; loads nothing, but sets what the library
 * is to find in the environment. True of any memory where HBM_WORKER_CUFILE names another library, for tests. */
bool cufile_find(bool reachable);

/* Loads the library and opens the driver, if that is not done yet. What follows needs it, and is done within a job
 * (device_enter): it makes things in the device's context. */
int cufile_begin(struct failure *failure);

/* A file and device memory that is mapped here, both registered. */
struct cufile {
    void *handle;
    unsigned char *memory;
};
/* The fd is one with O_DIRECT, borrowed like the memory until cufile_close. On failure nothing is to be closed. */
int cufile_open(struct cufile *file, int fd, unsigned char *memory, uint64_t bytes, struct failure *failure);
void cufile_close(struct cufile *file);
/* All of the bytes or a failure. The calling thread has the device's context. */
int cufile_read(const struct cufile *file, uint64_t memory_offset, size_t bytes, uint64_t offset,
                struct failure *failure);
int cufile_write(const struct cufile *file, uint64_t memory_offset, size_t bytes, uint64_t offset,
                 struct failure *failure);
/* Before the context goes: the end of cufile_begin. */
void cufile_drop(void);
