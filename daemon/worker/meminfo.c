#include <stdio.h>
#include <string.h>

#include "daemon/worker/meminfo.h"

uint64_t meminfo_bytes(const char *name)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128], key[64];
    unsigned long long kib, bytes = 0;

    if (!file)
        return 0;
    while (!bytes && fgets(line, sizeof(line), file))
        if (sscanf(line, "%63[^:]: %llu kB", key, &kib) == 2 && !strcmp(key, name))
            bytes = kib << 10;
    fclose(file);
    return bytes;
}
