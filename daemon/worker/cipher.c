#include "daemon/worker/cipher.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/jobs.h"
#include "proto/memfd.h"

static struct job_spill_key spill; /* id 0: there is none */

int cipher_set_key(int fd, struct failure *failure)
{
    size_t size;
    struct job_spill_key *key = memfd_map_sealed(fd, sizeof(*key), &size);

    if (!key)
        return fail(failure, HBM_E_BAD_REQUEST, "the spill key is no sealed memfd: %s", strerror(errno));
    if (size == sizeof(*key))
        spill = *key;
    munmap(key, size);
    return spill.id ? 0 : fail(failure, HBM_E_BAD_REQUEST, "the spill key is none");
}

bool cipher_has_key(void)
{
    return spill.id != 0;
}

static int prepare(EVP_CIPHER_CTX **context, int encrypt, struct failure *failure)
{
    if (*context)
        return 0;
    *context = EVP_CIPHER_CTX_new();
    if (*context && EVP_CipherInit_ex(*context, EVP_aes_256_xts(), NULL, spill.key, NULL, encrypt) == 1)
        return 0;
    EVP_CIPHER_CTX_free(*context);
    *context = NULL;
    return fail(failure, HBM_E_SYSTEM, "libcrypto has no AES-256-XTS to offer");
}

static int run(EVP_CIPHER_CTX *context, uint64_t extent, uint64_t offset, unsigned char *bytes, size_t size,
               struct failure *failure)
{
    for (size_t at = 0; at < size; at += CIPHER_BLOCK) {
        uint64_t name[2] = {extent, (offset + at) / CIPHER_BLOCK};
        int n;

        if (EVP_CipherInit_ex(context, NULL, NULL, NULL, (const unsigned char *)name, -1) != 1 ||
            EVP_CipherUpdate(context, bytes + at, &n, bytes + at, CIPHER_BLOCK) != 1)
            return fail(failure, HBM_E_SYSTEM, "libcrypto failed at a block of a spill file");
    }
    return 0;
}

int cipher_encrypt(struct cipher *cipher, uint64_t extent, uint64_t offset, void *bytes, size_t size,
                   struct failure *failure)
{
    if (prepare(&cipher->encrypt, 1, failure))
        return failure->error;
    return run(cipher->encrypt, extent, offset, bytes, size, failure);
}

int cipher_decrypt(struct cipher *cipher, uint64_t extent, uint64_t offset, void *bytes, size_t size,
                   struct failure *failure)
{
    if (prepare(&cipher->decrypt, 0, failure))
        return failure->error;
    return run(cipher->decrypt, extent, offset, bytes, size, failure);
}

void cipher_close(struct cipher *cipher)
{
    EVP_CIPHER_CTX_free(cipher->encrypt);
    EVP_CIPHER_CTX_free(cipher->decrypt);
    *cipher = (struct cipher){0};
}
