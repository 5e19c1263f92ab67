/* A client of libhbm that does what its standard input says, a command a line, and answers a line each:
 * "ok ..." or "error NAME sentence". helpers.py's Program drives it. Leases and models are called by small numbers. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/hbm.h"

#define ROOM 64
#define WORDS 12

static hbm_session *session;
static hbm_lease *leases[ROOM];
static hbm_model *models[ROOM];
static const char *runtime_dir;
static char *words[WORDS];

static const char *name_of(int error)
{
#define ERROR(name, number, what, remedy)                                                                    \
    if (error == HBM_E_##name)                                                                               \
        return #name;
#include "proto/errors.def"
#undef ERROR
    return "UNKNOWN";
}

static void answer(int error)
{
    if (error)
        printf("error %s %s\n", name_of(error), hbm_last_error_detail());
    else
        puts("ok");
}

static unsigned long number(int i)
{
    return words[i] ? strtoul(words[i], NULL, 0) : 0;
}

static int index_of(void *const *things)
{
    int i = 0;

    while (things[i])
        i++;
    return i;
}

/* FNV-1a, so that bytes can be compared without carrying them. */
static uint64_t sum(const unsigned char *bytes, uint64_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint64_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static unsigned open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(directory))
        n++;
    closedir(directory);
    return n - 3; /* ".", "..", and the directory's own */
}

/* To a daemon: the driver has sockets of its own. */
static unsigned open_sockets(void)
{
    unsigned n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_un peer = {0};
        socklen_t size = sizeof(peer);
        n += getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sun_family == AF_UNIX && peer.sun_path[0];
    }
    return n;
}

static long rss_kib(void)
{
    char line[128];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof(line), file))
        sscanf(line, "VmRSS: %ld", &kib);
    fclose(file);
    return kib;
}

static int open_session(unsigned flags)
{
    struct hbm_options options = {.runtime_dir = runtime_dir, .client = "client_program", .flags = flags};

    return hbm_open(&options, &session);
}

/* Its leases and models go with it. */
static void close_session(void)
{
    hbm_close(session);
    session = NULL;
    memset(leases, 0, sizeof(leases));
    memset(models, 0, sizeof(models));
    puts("ok");
}

static void leased(int error, hbm_lease *lease)
{
    struct hbm_info info;
    int i = index_of((void *const *)leases);

    if (error) {
        answer(error);
        return;
    }
    leases[i] = lease;
    hbm_lease_info(lease, &info);
    printf("ok %d 0x%016" PRIx64 " %p %" PRIu64 "\n", i, info.id, hbm_pointer(lease), info.size);
}

/* alloc NAME|- SIZE FLAGS MODE GROUP */
static void alloc(void)
{
    struct hbm_spec spec = {.size = number(2), .device = HBM_DEVICE_ANY, .dtype = HBM_U8, .flags = (uint32_t)number(3),
                            .mode = (uint32_t)number(4), .name = strcmp(words[1], "-") ? words[1] : NULL, .group = words[5]};
    hbm_lease *lease = NULL;

    int error = hbm_alloc(session, &spec, &lease);
    leased(error, lease);
}

/* attach NAME ro|rw FLAGS TIMEOUT */
static void attach(void)
{
    hbm_lease *lease = NULL;

    int error = hbm_attach(session, words[1], !strcmp(words[2], "rw"), (unsigned)number(3), (uint32_t)number(4), &lease);
    leased(error, lease);
}

static void attach_id(void)
{
    hbm_lease *lease = NULL;

    int error = hbm_attach_id(session, strtoull(words[1], NULL, 16), !strcmp(words[2], "rw"), (unsigned)number(3),
                              (uint32_t)number(4), &lease);
    leased(error, lease);
}

/* lockall TIMEOUT: every lease there is, in one call */
static int lock_all(void)
{
    hbm_lease *all[ROOM];
    unsigned n = 0;

    for (unsigned i = 0; i < ROOM; i++)
        if (leases[i])
            all[n++] = leases[i];
    return hbm_lock_many(all, n, (uint32_t)number(1));
}

static void detach(int i)
{
    hbm_lease *lease = leases[i];

    leases[i] = NULL;
    answer(hbm_detach(lease));
}

/* publish NAME FLAGS TIMEOUT TENSORS ELEMENTS: tensors t0, t1, ... of F32, each in a group of its own */
static void publish(void)
{
    unsigned n = (unsigned)number(4);
    struct hbm_publish_buffer rows[ROOM] = {0};
    char names[ROOM][16], groups[ROOM][16];
    int must_build = 0, i = index_of((void *const *)models);
    struct hbm_publish spec = {.name = words[1], .key = "key", .flags = (uint32_t)number(2), .metadata = "meta",
                               .metadata_size = 4, .buffers = rows, .n_buffers = n};

    for (unsigned t = 0; t < n; t++) {
        snprintf(names[t], sizeof(names[t]), "t%u", t);
        snprintf(groups[t], sizeof(groups[t]), "g%u", t);
        rows[t] = (struct hbm_publish_buffer){.name = names[t], .group = groups[t], .dtype = HBM_F32, .rank = 1, .dims = {number(5)}};
    }
    int error = hbm_publish_begin(session, &spec, (uint32_t)number(3), &models[i], &must_build);
    if (error)
        answer(error);
    else
        printf("ok %d %d\n", i, must_build);
}

static void model(void)
{
    int i = index_of((void *const *)models);
    int error = hbm_model_attach(session, words[1], !strcmp(words[2], "rw"), (unsigned)number(3), (uint32_t)number(4), &models[i]);

    if (error)
        answer(error);
    else
        printf("ok %d %u\n", i, hbm_model_count(models[i]));
}

/* Fills each tensor with its own number plus a value; host device only. */
static void model_fill(const hbm_model *model, unsigned value)
{
    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        memset(info.pointer, (int)(value + i), info.size);
    }
    puts("ok");
}

/* msum MODEL [TENSOR]: of all, or of one where the others are not locked and may go at any time */
static void model_sum(const hbm_model *model)
{
    unsigned first = words[2] ? (unsigned)number(2) : 0, end = words[2] ? first + 1 : hbm_model_count(model);

    printf("ok");
    for (unsigned i = first; i < end; i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        printf(" %p:%016" PRIx64, info.pointer, info.pointer ? sum(info.pointer, info.size) : 0);
    }
    putchar('\n');
}

/* Where each tensor is mapped. */
static void model_tiers(const hbm_model *model)
{
    printf("ok");
    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        printf(" %s", hbm_tier_name(info.tier));
    }
    putchar('\n');
}

/* morder MODEL DEPTH [GROUP...] */
static void model_order(hbm_model *model)
{
    unsigned n = 0;

    while (words[3 + n])
        n++;
    answer(hbm_model_order(model, n ? (const char *const *)words + 3 : NULL, n, (unsigned)number(2)));
}

static void end_model(int (*end)(hbm_model *), int i)
{
    hbm_model *ended = models[i];

    models[i] = NULL;
    answer(end(ended));
}

/* fork close|exit|use|detach: what a child does with the inherited session; answers what its call returned. */
static void fork_child(void)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        hbm_lease *lease = NULL;
        if (!strcmp(words[1], "close"))
            hbm_close(session);
        else if (!strcmp(words[1], "use"))
            _exit(-hbm_attach(session, "any", HBM_RO, 0, 100, &lease));
        else if (!strcmp(words[1], "detach"))
            _exit(-hbm_detach(leases[0]));
        else if (!strcmp(words[1], "sockets"))
            _exit((int)open_sockets());
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("ok %s %s\n", WIFEXITED(status) ? "exited" : "killed",
           WIFEXITED(status) && WEXITSTATUS(status) ? name_of(-WEXITSTATUS(status)) : "0");
}

/* cycles NAME N: attach, detach, N times. The first one counts for nothing: a process without a CUDA context gets one. */
static void cycles(void)
{
    unsigned fds = 0;
    unsigned long n = number(2), warm = n / 10;
    long rss = 0;

    for (unsigned long i = 0; i < n; i++) {
        hbm_lease *lease = NULL;
        int error = hbm_attach(session, words[1], HBM_RO, 0, 10000, &lease);
        if (!error)
            error = hbm_detach(lease);
        if (error) {
            answer(error);
            return;
        }
        if (i == 0)
            fds = open_fds();
        if (i == warm)
            rss = rss_kib();
    }
    printf("ok %u %u %ld %ld\n", fds, open_fds(), rss, rss_kib());
}

/* An offload, cancelled at once: it ends well or with CANCELLED, and says how. */
static void cancelled_offload(void)
{
    hbm_op *begun = NULL;
    int error = hbm_offload(session, words[2], (unsigned)number(3), (unsigned)number(4), &begun);

    if (!error)
        error = hbm_op_cancel(begun);
    if (!error && (error = hbm_op_wait(begun, 5000, NULL)) == HBM_E_CANCELLED)
        puts("ok CANCELLED");
    else
        answer(error);
    hbm_op_free(begun);
}

/* op offload|restore|prefetch|decompress|copy|cancel SEL TIER FLAGS; copy: compressed, to where compress names it */
static void op(void)
{
    struct hbm_compress copy = {.sel = words[2], .codec = HBM_CODEC_FP16, .copy = 1};

    if (!strcmp(words[1], "cancel"))
        cancelled_offload();
    else if (!strcmp(words[1], "copy"))
        answer(hbm_compress(session, &copy, NULL, NULL));
    else if (!strcmp(words[1], "offload"))
        answer(hbm_offload(session, words[2], (unsigned)number(3), (unsigned)number(4), NULL));
    else if (!strcmp(words[1], "restore"))
        answer(hbm_restore(session, words[2], NULL));
    else if (!strcmp(words[1], "prefetch"))
        answer(hbm_prefetch(session, words[2], NULL));
    else
        answer(hbm_decompress(session, words[2], NULL));
}

static void limit_fds(void)
{
    struct rlimit limit = {number(1), number(1)};

    puts(setrlimit(RLIMIT_NOFILE, &limit) ? "error SYSTEM" : "ok");
}

static int fds_after_exec(void)
{
    execlp("sh", "sh", "-c", "set -- /proc/$$/fd/*; echo ok $#; exec cat", (char *)NULL);
    return errno;
}

static void memory_command(const char *verb, hbm_lease *lease)
{
    struct hbm_info info;
    unsigned char *bytes = hbm_pointer(lease);

    hbm_lease_info(lease, &info);
    if (!strcmp(verb, "fill"))
        memset(bytes, (int)number(2), info.size), puts("ok");
    else if (!strcmp(verb, "poke"))
        bytes[number(2)] = (unsigned char)number(3), puts("ok");
    else if (!strcmp(verb, "peek"))
        printf("ok %u\n", bytes[number(2)]);
    else if (!strcmp(verb, "sum"))
        printf("ok %016" PRIx64 "\n", sum(bytes, info.size));
    else if (!strcmp(verb, "tier"))
        printf("ok %s\n", info.pointer ? hbm_tier_name(info.tier) : "away");
    else
        printf("ok %p\n", (void *)bytes);
}

/* steps LEASE N TIMEOUT: an engine at work. In each step it reads all that the last one wrote and writes all anew; between
 * them it is at a safe point. */
static void steps(hbm_lease *lease)
{
    struct hbm_info info;
    unsigned char *bytes = hbm_pointer(lease);
    unsigned long n = number(2);

    hbm_lease_info(lease, &info);
    for (unsigned long step = 0; step < n; step++) {
        memset(bytes, (int)step, info.size);
        int error = hbm_safepoint(session, NULL, 0, (uint32_t)number(3));
        if (error) {
            answer(error);
            return;
        }
        for (uint64_t i = 0; i < info.size; i++)
            if (bytes[i] != (unsigned char)step) {
                printf("error INTERNAL byte %" PRIu64 " of step %lu is %u\n", i, step, bytes[i]);
                return;
            }
    }
    puts("ok");
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* lockloop LEASE MS: what is waited for a lock that has to wait is as long as it takes. */
static int lock_loop(hbm_lease *lease, uint64_t ms)
{
    uint64_t until = now_ms() + ms;
    int error = 0;

    while (!error && now_ms() < until) {
        error = hbm_lock(lease, 20000);
        if (!error)
            error = hbm_unlock(lease, NULL, 0);
    }
    return error;
}

#define IS(text) (!strcmp(words[0], text))

static void obey(void)
{
    unsigned i = (unsigned)number(1) % ROOM;

    if (IS("open"))
        answer(open_session((unsigned)number(1)));
    else if (IS("alloc"))
        alloc();
    else if (IS("attach"))
        attach();
    else if (IS("attach_id"))
        attach_id();
    else if (IS("detach"))
        detach((int)i);
    else if (IS("lock"))
        answer(hbm_lock(leases[i], (uint32_t)number(2)));
    else if (IS("lockon"))
        answer(hbm_lock_on(leases[i], NULL, (uint32_t)number(2)));
    else if (IS("lockloop"))
        answer(lock_loop(leases[i], number(2)));
    else if (IS("lockall"))
        answer(lock_all());
    else if (IS("unlock"))
        answer(hbm_unlock(leases[i], NULL, 0));
    else if (IS("free"))
        answer(hbm_free(session, strtoull(words[1], NULL, 16)));
    else if (IS("safepoint"))
        answer(hbm_safepoint(session, NULL, 0, (uint32_t)number(1)));
    else if (IS("dispatch"))
        answer(hbm_dispatch(session));
    else if (IS("publish"))
        publish();
    else if (IS("model"))
        model();
    else if (IS("mfill"))
        model_fill(models[i], (unsigned)number(2));
    else if (IS("msum"))
        model_sum(models[i]);
    else if (IS("mtier"))
        model_tiers(models[i]);
    else if (IS("steps"))
        steps(leases[i]);
    else if (IS("mlock"))
        answer(hbm_model_lock(models[i], words[3], (uint32_t)number(2)));
    else if (IS("morder"))
        model_order(models[i]);
    else if (IS("mwindow"))
        answer(hbm_model_window(models[i], (unsigned)number(2), (unsigned)number(3)));
    else if (IS("munlock"))
        answer(hbm_model_unlock(models[i], words[2], NULL, 0));
    else if (IS("mdetach"))
        end_model(hbm_model_detach, (int)i);
    else if (IS("commit"))
        end_model(hbm_publish_commit, (int)i);
    else if (IS("abort"))
        end_model(hbm_publish_abort, (int)i);
    else if (IS("op"))
        op();
    else if (IS("fork"))
        fork_child();
    else if (IS("cycles"))
        cycles();
    else if (IS("nofile"))
        limit_fds();
    else if (IS("fds"))
        printf("ok %u\n", open_fds());
    else if (IS("exec"))
        printf("error SYSTEM %s\n", strerror(fds_after_exec()));
    else if (IS("close"))
        close_session();
    else
        memory_command(words[0], leases[i]);
}

int main(int argc, char **argv)
{
    char line[1024];

    if (argc < 2)
        return 2;
    runtime_dir = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        char *rest = NULL;
        memset(words, 0, sizeof(words));
        for (int i = 0; i < WORDS - 1 && (words[i] = strtok_r(i ? NULL : line, " \n", &rest)); i++)
            ;
        if (words[0])
            obey();
    }
    hbm_close(session);
    return 0;
}
