#include "client/ctl/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/gguf.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"

#define GGUF_FIRST (1u << 20)

int checkpoint_refuse(char *why, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, CHECKPOINT_WHY, format, arguments);
    va_end(arguments);
    return -1;
}

static int read_all(int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, (char *)bytes + done, size - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0) {
            errno = ENODATA; /* it was cut while we read */
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}

/* O_NONBLOCK: a FIFO in the place of a file must not hang us. The worker's reads want it gone: io_uring would fail
 * them with EAGAIN wherever the page cache does not have the bytes. */
static int open_regular(const char *path, uint64_t *size, char *why)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return checkpoint_refuse(why, "%.400s cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return checkpoint_refuse(why, "%.400s is no regular file", path);
    if (fcntl(fd, F_SETFL, 0) < 0)
        return checkpoint_refuse(why, "%.400s cannot be read: %s", path, strerror(errno));
    *size = (uint64_t)status.st_size;
    int opened = fd;
    fd = -1;
    return opened;
}

/* A file's first `size` bytes, with a NUL after them. NULL and errno. */
static char *read_start(int fd, size_t size)
{
    _cleanup_free_ char *bytes = malloc(size + 1);

    if (!bytes || read_all(fd, bytes, size) < 0)
        return NULL;
    bytes[size] = 0;
    return TAKE_PTR(bytes);
}

struct safetensors *checkpoint_parse(const void *bytes, size_t size, uint64_t file_size, char why[SAFETENSORS_WHY])
{
    bool more;

    return gguf_magic(bytes, size) ? gguf_parse(bytes, size, file_size, &more, why)
                                   : safetensors_parse(bytes, size, file_size, why);
}

/* A GGUF head does not say how long it is: a little is read, and more where that does not do. */
static int read_gguf(struct shard *shard, const char *path, char *why)
{
    char fault[SAFETENSORS_WHY];
    bool more = true;

    for (uint64_t size = GGUF_FIRST; more; size *= 4) {
        size = size < SAFETENSORS_HEADER_MAX ? size : SAFETENSORS_HEADER_MAX;
        size_t given = (size_t)(size < shard->file_size ? size : shard->file_size);
        free(shard->header);
        shard->header = read_start(shard->fd, given);
        if (!shard->header)
            return checkpoint_refuse(why, "%.400s cannot be read: %s", path, strerror(errno));
        shard->file = gguf_parse(shard->header, given, shard->file_size, &more, fault);
        if (shard->file)
            return 0;
        if (size == SAFETENSORS_HEADER_MAX)
            break;
    }
    return checkpoint_refuse(why, "%.400s is no sound GGUF file: %s", path, fault);
}

static int open_shard(struct shard *shard, const char *path, char *why)
{
    char fault[SAFETENSORS_WHY], length[SAFETENSORS_LENGTH_BYTES] = {0};
    _cleanup_free_ char *copy = strdup(path);

    shard->fd = open_regular(path, &shard->file_size, why);
    if (shard->fd < 0)
        return -1;
    shard->name = copy ? strdup(basename(copy)) : NULL;
    if (!shard->name)
        return checkpoint_refuse(why, "there is no memory to read %.400s", path);
    size_t first = shard->file_size < sizeof(length) ? (size_t)shard->file_size : sizeof(length);
    if (read_all(shard->fd, length, first) < 0)
        return checkpoint_refuse(why, "%.400s cannot be read: %s", path, strerror(errno));
    if (gguf_magic(length, first))
        return read_gguf(shard, path, why);
    uint64_t header_bytes = safetensors_header_bytes(length, first, shard->file_size, fault);
    if (!header_bytes)
        return checkpoint_refuse(why, "%.400s is no safetensors or GGUF file: %s", path, fault);
    shard->header = read_start(shard->fd, header_bytes);
    if (!shard->header)
        return checkpoint_refuse(why, "%.400s cannot be read: %s", path, strerror(errno));
    shard->file = safetensors_parse(shard->header, header_bytes, shard->file_size, fault);
    if (!shard->file)
        return checkpoint_refuse(why, "%.400s is no sound safetensors file: %s", path, fault);
    return 0;
}

static int add_shard(struct checkpoint *checkpoint, const char *directory, const char *name, char *why)
{
    _cleanup_free_ char *path = text_new("%s%s%s", directory, *directory ? "/" : "", name);
    struct shard *grown = reallocarray(checkpoint->shards, checkpoint->n_shards + 1, sizeof(*grown));

    if (grown)
        checkpoint->shards = grown;
    if (!grown || !path)
        return checkpoint_refuse(why, "there is no memory to read %.400s", name);
    struct shard *shard = &grown[checkpoint->n_shards++];
    *shard = (struct shard){.fd = -1};
    if (open_shard(shard, path, why) < 0)
        return -1;
    for (unsigned i = 0; i + 1 < checkpoint->n_shards; i++)
        if (!strcmp(checkpoint->shards[i].name, shard->name))
            return checkpoint_refuse(why, "two files are named %.400s, and a model keeps their names", shard->name);
    checkpoint->n_tensors += shard->file->n;
    checkpoint->bytes += shard->file->data_bytes;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each shard that the weight map names, once, in the order of names. */
static int open_indexed(struct checkpoint *checkpoint, const char *directory, const cJSON *weight_map, char *why)
{
    size_t n = 0;
    _cleanup_free_ const char **names = calloc((size_t)cJSON_GetArraySize(weight_map) + 1, sizeof(*names));
    const cJSON *entry;

    if (!names)
        return checkpoint_refuse(why, "there is no memory to read %s", CHECKPOINT_INDEX);
    cJSON_ArrayForEach(entry, weight_map) names[n++] = entry->valuestring;
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++)
        if ((!i || strcmp(names[i - 1], names[i])) && add_shard(checkpoint, directory, names[i], why) < 0)
            return -1;
    return 0;
}

static int is_plain_shard(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return entry->d_name[0] != '.' && dot && !strcmp(dot, ".safetensors");
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int open_listed(struct checkpoint *checkpoint, const char *directory, char *why)
{
    struct dirent **entries = NULL;
    int n = scandir(directory, &entries, is_plain_shard, by_bytes), error = 0;

    if (n < 0)
        return checkpoint_refuse(why, "%.400s cannot be listed: %s", directory, strerror(errno));
    if (!n)
        error = checkpoint_refuse(why, "%.400s has no *.safetensors", directory);
    for (int i = 0; i < n; i++) {
        if (!error)
            error = add_shard(checkpoint, directory, entries[i]->d_name, why);
        free(entries[i]);
    }
    free(entries);
    return error ? -1 : checkpoint_check(checkpoint, NULL, why);
}

static int open_directory(struct checkpoint *checkpoint, const char *directory, char *why)
{
    _cleanup_free_ char *path = text_new("%s/%s", directory, CHECKPOINT_INDEX);
    _cleanup_json_ cJSON *tree = NULL;
    uint64_t size;

    if (!path)
        return checkpoint_refuse(why, "there is no memory to read %.400s", directory);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return open_listed(checkpoint, directory, why);
    _cleanup_fd_ int fd = open_regular(path, &size, why);
    if (fd < 0)
        return -1;
    if (size > SAFETENSORS_HEADER_MAX)
        return checkpoint_refuse(why, "%.400s has more than 100000000 bytes", path);
    checkpoint->index_bytes = (size_t)size;
    checkpoint->index = read_start(fd, (size_t)size);
    if (!checkpoint->index)
        return checkpoint_refuse(why, "%.400s cannot be read: %s", path, strerror(errno));
    const cJSON *weight_map = checkpoint_weight_map(checkpoint->index, checkpoint->index_bytes, &tree, why);
    if (!weight_map || open_indexed(checkpoint, directory, weight_map, why) < 0)
        return -1;
    return checkpoint_check(checkpoint, weight_map, why);
}

static int open_files(struct checkpoint *checkpoint, const char *const *paths, unsigned n, char *why)
{
    for (unsigned i = 0; i < n; i++)
        if (add_shard(checkpoint, "", paths[i], why) < 0)
            return -1;
    return checkpoint_check(checkpoint, NULL, why);
}

struct checkpoint *checkpoint_open(const char *const *paths, unsigned n, char why[CHECKPOINT_WHY])
{
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    struct stat status;
    int error;

    if (!checkpoint) {
        checkpoint_refuse(why, "there is no memory to read %.400s", paths[0]);
        return NULL;
    }
    if (n == 1 && stat(paths[0], &status) == 0 && S_ISDIR(status.st_mode))
        error = open_directory(checkpoint, paths[0], why);
    else
        error = open_files(checkpoint, paths, n, why);
    return error ? checkpoint_free(checkpoint) : checkpoint;
}

struct checkpoint *checkpoint_free(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return NULL;
    for (unsigned i = 0; i < checkpoint->n_shards; i++) {
        struct shard *shard = &checkpoint->shards[i];
        safetensors_free(shard->file);
        free(shard->header);
        free(shard->name);
        scoped_close(&shard->fd);
    }
    free(checkpoint->shards);
    free(checkpoint->index);
    free(checkpoint);
    return NULL;
}
