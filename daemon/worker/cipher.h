/* Spill files are encrypted, so that what is left of one on the disk says nothing: AES-256-XTS in units of
 * CIPHER_BLOCK, each named by its extent's identity and its place in it. The key comes with START, in a memfd, and
 * is nowhere on the disk.
 *
 * XTS and not GCM: it keeps the length, so blocks stay where O_DIRECT wants them and each can be read by itself.
 * What changed on the disk is found by the copy's checksum, which is of the plain bytes and not kept there. A GCM
 * tag would need a place beside every block and a nonce that never comes back; with XTS, a block written twice
 * shows at most which 16 bytes stayed the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "daemon/worker/failure.h"

#define CIPHER_BLOCK 4096u

/* What one lane works with; made when first needed. */
struct cipher {
    struct evp_cipher_ctx_st *encrypt, *decrypt;
};

/* Takes the key from the sealed memfd of a struct job_spill_key (fd: borrowed), before any lane runs. */
int cipher_set_key(int fd, struct failure *failure);
bool cipher_has_key(void);
/* In place; offset in the extent and size are multiples of CIPHER_BLOCK. */
int cipher_encrypt(struct cipher *cipher, uint64_t extent, uint64_t offset, void *bytes, size_t size,
                   struct failure *failure);
int cipher_decrypt(struct cipher *cipher, uint64_t extent, uint64_t offset, void *bytes, size_t size,
                   struct failure *failure);
void cipher_close(struct cipher *cipher);
