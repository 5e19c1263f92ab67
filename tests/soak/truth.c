#include "tests/soak/truth.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

struct truth *truth;
static int file;

bool truth_open(const char *path)
{
    file = open(path, O_RDWR | O_CLOEXEC);
    truth = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*truth), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (truth == MAP_FAILED)
        perror(path);
    return truth != MAP_FAILED;
}

static bool lock(unsigned row, short type, int command)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};

    return fcntl(file, command, &range) == 0;
}

bool row_share(unsigned row)
{
    return lock(row, F_RDLCK, F_SETLK);
}

bool row_own(unsigned row)
{
    return lock(row, F_WRLCK, F_SETLK);
}

bool row_own_patiently(unsigned row)
{
    return lock(row, F_WRLCK, F_SETLKW);
}

void row_leave(unsigned row)
{
    lock(row, F_UNLCK, F_SETLK);
}

uint32_t new_version(void)
{
    return atomic_fetch_add(&truth->versions, 1) + 1;
}
