#include "daemon/base/origin.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"

#define HEX "0123456789abcdef"
#define UID_DIGITS 32u

struct word {
    const char *text;
    size_t length;
};

static bool starts(struct word word, const char *with)
{
    return word.length >= strlen(with) && !memcmp(word.text, with, strlen(with));
}

static void drop_end(struct word *word, const char *end)
{
    size_t length = strlen(end);

    if (word->length >= length && !memcmp(word->text + word->length - length, end, length))
        word->length -= length;
}

/* systemd writes a UID's dashes as underscores: a dash is the next level there. */
static bool take_uid(struct word word, char pod[ORIGIN_POD + 1])
{
    static const unsigned dashes[] = {8, 13, 18, 23};
    bool dashed = word.length == ORIGIN_POD;
    char uid[ORIGIN_POD + 1] = "";
    unsigned next = 0;

    if (!dashed && word.length != UID_DIGITS)
        return false;
    for (size_t i = 0; i < word.length; i++) {
        bool dash = dashed && next < 4 && i == dashes[next];
        next += dash;
        if (dash ? word.text[i] != '-' && word.text[i] != '_' : !word.text[i] || !strchr(HEX, word.text[i]))
            return false;
        uid[i] = word.text[i];
        if (dash)
            uid[i] = '-';
    }
    memcpy(pod, uid, sizeof(uid));
    return true;
}

/* "podUID", "kubepods-burstable-podUID.slice" and what lies between. */
static bool take_pod(struct word word, char pod[ORIGIN_POD + 1])
{
    drop_end(&word, ".slice");
    for (; word.length >= UID_DIGITS + 3; word.text++, word.length--)
        if (starts(word, "pod") && take_uid((struct word){word.text + 3, word.length - 3}, pod))
            return true;
    return false;
}

/* "ID", "docker-ID.scope" and the like; "crio-conmon-ID" is who watches it. */
static bool take_container(struct word word, char container[ORIGIN_CONTAINER + 1])
{
    static const char *const runtimes[] = {"docker-", "cri-containerd-", "crio-", "libpod-", "nerdctl-"};

    drop_end(&word, ".scope");
    for (unsigned i = 0; i < sizeof(runtimes) / sizeof(runtimes[0]); i++) {
        size_t length = strlen(runtimes[i]);
        if (starts(word, runtimes[i])) {
            word = (struct word){word.text + length, word.length - length};
            break;
        }
    }
    if (word.length != ORIGIN_CONTAINER)
        return false;
    for (size_t i = 0; i < word.length; i++)
        if (!word.text[i] || !strchr(HEX, word.text[i]))
            return false;
    memcpy(container, word.text, word.length);
    container[word.length] = 0;
    return true;
}

/* One line: HIERARCHY:CONTROLLERS:PATH. containerd without systemd's driver puts colons where others have slashes. */
static void look_at_path(const char *path, size_t length, struct origin *origin)
{
    bool kubernetes = false;

    while (length) {
        size_t n = strcspn(path, "/:\n");
        n = n < length ? n : length;
        struct word word = {path, n};
        kubernetes |= memmem(path, n, "kubepods", strlen("kubepods")) != NULL;
        if (!*origin->container && kubernetes && !*origin->pod)
            take_pod(word, origin->pod);
        if (!*origin->container)
            take_container(word, origin->container);
        n += n < length;
        path += n;
        length -= n;
    }
}

void origin_of_text(const char *text, struct origin *origin)
{
    *origin = (struct origin){0};
    while (*text && !*origin->container && !*origin->pod) {
        size_t length = strcspn(text, "\n");
        const char *path = memchr(text, ':', length);
        path = path ? memchr(path + 1, ':', length - (size_t)(path + 1 - text)) : NULL;
        if (path)
            look_at_path(path + 1, length - (size_t)(path + 1 - text), origin);
        text += length + (text[length] == '\n');
    }
}

void origin_of_process(pid_t pid, struct origin *origin)
{
    char path[64], text[8192];
    size_t used = 0;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    _cleanup_fd_ int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    while (fd >= 0 && used < sizeof(text) - 1 && (n = read(fd, text + used, sizeof(text) - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = 0;
    origin_of_text(text, origin);
}
