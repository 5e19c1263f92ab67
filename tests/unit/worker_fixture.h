/* The host worker, as hbmd sees it, for tests of its jobs: the real binary (HBM_WORKER or the first argument) at the end of a
 * socketpair. */
#pragma once

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "daemon/worker/ask.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)

extern const char *program;
extern char state_dir[]; /* on a disk */
extern struct ask worker; /* of the test that runs */

int begin(void **state);
int end(void **state);
#define WITH_WORKER(test) cmocka_unit_test_setup_teardown(test, begin, end)

/* Fails with the worker's own words. */
void expect(int status, int wanted);

/* Of `worker`; dropped by drop(). */
struct ask_extent make(unsigned kind, uint64_t size);
void drop(struct ask_extent *extent);
unsigned char *map(const struct ask_extent *extent);
/* Bytes that differ by seed. */
void fill(unsigned char *bytes, uint64_t size, uint64_t seed);
/* What JOB_CHECKSUM is to say of them. */
uint64_t expected_checksum(const unsigned char *bytes, uint64_t size);
/* So many bytes from an offset of device memory to host memory, disk and back, by every way that there is. */
void round_trip(uint64_t bytes, uint64_t offset);
/* The ranges of a JOB_FILE, and a client's file of these bytes. Closed by the caller. */
int ranges_memfd(const struct job_range *ranges, unsigned n);
int user_file(const unsigned char *bytes, size_t size);
unsigned fds_of_worker(void);

/* For main(), before and after the tests. Ends the program with 77 where no worker is named. */
void worker_tests_begin(int argc, char **argv);
int worker_tests_end(int failed); /* the exit status */
