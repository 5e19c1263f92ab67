/* Sealed memfds: how anything larger than a packet travels. A receiver may map one only after
 * memfd_map_sealed() has checked that it cannot change or shrink under it. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A close-on-exec memfd of these bytes, sealed against write, grow, shrink and further seals. -errno on failure. */
int memfd_sealed(const char *name, const void *bytes, size_t size);
/* A close-on-exec zeroed memfd whose size is sealed but whose bytes are not. -errno on failure. */
int memfd_fixed(const char *name, size_t size);
/* Maps a fully sealed memfd of at most `limit` bytes read-only; *size gets its size. NULL and errno if it is not a
 * memfd, not sealed, empty or too large. Release with munmap(*, *size). */
void *memfd_map_sealed(int fd, size_t limit, size_t *size);
/* The same of one that is to have so many bytes, and no other number. Release with munmap(*, size). */
void *memfd_map_exact(int fd, size_t size);
/* The same memory by a second open file description that is read-only: a writable mapping of it fails. -errno. */
int memfd_reopen_read_only(int fd);

#ifdef __cplusplus
}
#endif
