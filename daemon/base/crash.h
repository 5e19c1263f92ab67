/* What a process says that dies of a bug of its own. */
#pragma once

/* From now on a fatal signal leaves a line with its name and address on stderr, and the stack below it, before it ends the
 * process as it would have (with its core dump). `program` must stay. Once, before there are threads. */
void crash_watch(const char *program);
