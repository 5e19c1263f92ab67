#pragma once

/* The program that measures shared memory; NULL: it is not installed. The caller owns its path. */
char *bench_program(void);
