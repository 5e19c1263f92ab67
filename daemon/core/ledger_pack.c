#include "daemon/core/ledger_file.h"

#include <stdlib.h>
#include <string.h>

void pack_bytes(struct pack *pack, const void *bytes, size_t size)
{
    if (pack->size + size > pack->room) {
        size_t room = pack->room ? pack->room : 256;
        while (room < pack->size + size)
            room *= 2;
        unsigned char *grown = realloc(pack->bytes, room);
        if (!grown) {
            pack->failed = true;
            return;
        }
        pack->bytes = grown;
        pack->room = room;
    }
    if (size)
        memcpy(pack->bytes + pack->size, bytes, size);
    pack->size += size;
}

void pack_u32(struct pack *pack, uint32_t value)
{
    pack_bytes(pack, &value, sizeof(value));
}

void pack_u64(struct pack *pack, uint64_t value)
{
    pack_bytes(pack, &value, sizeof(value));
}

void pack_text(struct pack *pack, const char *text)
{
    size_t size = text ? strlen(text) + 1 : 0;

    pack_u32(pack, (uint32_t)size);
    pack_bytes(pack, text, size);
}

void unpack_bytes(struct unpack *unpack, void *bytes, size_t size)
{
    if (size > unpack->left) {
        unpack->failed = true;
        memset(bytes, 0, size);
        return;
    }
    memcpy(bytes, unpack->at, size);
    unpack->at += size;
    unpack->left -= size;
}

uint32_t unpack_u32(struct unpack *unpack)
{
    uint32_t value;

    unpack_bytes(unpack, &value, sizeof(value));
    return value;
}

uint64_t unpack_u64(struct unpack *unpack)
{
    uint64_t value;

    unpack_bytes(unpack, &value, sizeof(value));
    return value;
}

uint32_t unpack_later_u32(struct unpack *unpack)
{
    return unpack->left < sizeof(uint32_t) ? 0 : unpack_u32(unpack);
}

const char *unpack_text(struct unpack *unpack)
{
    uint32_t size = unpack_u32(unpack);
    const char *text = (const char *)unpack->at;

    if (!size)
        return NULL;
    if (size > unpack->left || text[size - 1]) {
        unpack->failed = true;
        return NULL;
    }
    unpack->at += size;
    unpack->left -= size;
    return text;
}
