/* A client of the kill storm: `client RUNTIME_DIR TRUTH host|cuda SEED` does everything that libhbm offers, at
 * random, until the truth says stop, and looks at every byte that it is given. With "report" for a SEED it reads
 * all that must be there and prints the hashes, by which storm.py compares the daemon's. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/soak/client.h"

#define PATIENCE_MS 60000 /* a restarted owner that dies young waits longer and longer */
#define LINGER_MS 300

hbm_session *session;
bool no_thread;
int32_t self;

static const char *dir;
static uint64_t random_state;

uint32_t dice(uint32_t sides)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = (random_state ^ random_state >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((mixed ^ mixed >> 31) % sides);
}

bool chance(unsigned percent)
{
    return dice(100) < percent;
}

void broken(const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "BROKEN: pid %d: %s\n", self, text);
    fflush(stderr);
    _exit(3);
}

bool went_well(const char *call, int error, uint64_t also)
{
    truth->done++;
    if (!error)
        return true;
    truth->errors[-error % ERRORS]++;
    if (!((EXPLAINED | also) >> -error & 1))
        broken("%s: %s", call, hbm_last_error_detail());
    return false;
}

void count_checked(uint64_t bytes, bool mixed)
{
    truth->checked++;
    truth->checked_bytes += bytes;
    truth->torn += mixed;
}

static void open_session(void)
{
    struct hbm_options options = {.runtime_dir = dir, .client = "soak", .reconnect_ms = PATIENCE_MS};
    struct timespec pause = {.tv_nsec = 20000000};

    no_thread = chance(30);
    options.flags = no_thread ? HBM_NO_THREAD : 0;
    for (int tries = 0; tries < 1500; tries++) {
        int error = hbm_open(&options, &session);
        if (went_well("hbm_open", error, ONE_OF(NO_DAEMON) | ONE_OF(DISCONNECTED)))
            return;
        nanosleep(&pause, NULL);
    }
    broken("no daemon for half a minute: %s", hbm_last_error_detail());
}

static void close_session(void)
{
    drop_all();
    drop_models();
    hbm_close(session);
    session = NULL;
}

/* The child may not use the session, and closes the GPU's files: neither its life nor its death is the parent's. */
static void do_fork(void)
{
    struct timespec linger = {.tv_nsec = chance(50) ? (long)dice(LINGER_MS) * 1000000 : 0};
    pid_t child = fork();

    if (child)
        return;
    hbm_lease *lease;
    int error = hbm_attach(session, "b0", HBM_RO, 0, 0, &lease);
    if (chance(30))
        hbm_close(session);
    nanosleep(&linger, NULL);
    _exit(error == HBM_E_FORKED ? 0 : 4);
}

static void reap(void)
{
    int status;

    while (waitpid(-1, &status, WNOHANG) > 0)
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            broken("a forked child ended with 0x%x", status);
}

static void do_look(void)
{
    struct hbm_device_info info;

    went_well("hbm_device_get", hbm_device_get(session, 0, &info), 0);
}

static const struct {
    void (*act)(void);
    unsigned weight;
} acts[] = {
    {do_make, 10}, {do_write, 14},     {do_read, 16}, {do_free, 3},      {do_copy, 5},      {do_recode, 4},
    {do_move, 10}, {do_private, 6},    {do_held, 20}, {do_lock_many, 4}, {do_safepoint, 8}, {do_publish, 4},
    {do_model, 8}, {do_held_model, 8}, {do_fork, 1},  {do_look, 2},
};

static void act(void)
{
    unsigned total = 0, at;

    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        total += acts[i].weight;
    at = dice(total);
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
        if (at < acts[i].weight) {
            acts[i].act();
            return;
        }
        at -= acts[i].weight;
    }
}

static void live(void)
{
    struct timespec pause = {0};

    while (!truth->stop) {
        act();
        reap();
        if (no_thread)
            went_well("hbm_dispatch", hbm_dispatch(session), 0);
        if (chance(1)) {
            close_session();
            open_session();
        }
        pause.tv_nsec = dice(4) ? 0 : (long)dice(3000000);
        nanosleep(&pause, NULL);
    }
    close_session();
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
}

static void report(void)
{
    for (unsigned row = 0; row < BUFFERS; row++)
        report_buffer(row);
    for (unsigned m = 0; m < MODELS; m++)
        report_model(m);
    close_session();
}

/* For storm.py, as JSON: where in the truth lies what it reads and writes. */
static void print_layout(void)
{
    printf("{\"size\": %zu, \"stop\": %zu, \"done\": %zu, \"checked\": %zu, \"checked_bytes\": %zu, \"torn\": %zu, "
           "\"errors\": %zu, \"by\": [",
           sizeof(struct truth), offsetof(struct truth, stop), offsetof(struct truth, done),
           offsetof(struct truth, checked), offsetof(struct truth, checked_bytes), offsetof(struct truth, torn),
           offsetof(struct truth, errors));
    for (unsigned i = 0; i < BUFFERS; i++)
        printf("%zu, ", offsetof(struct truth, buffers[i].by));
    for (unsigned i = 0; i < MODELS; i++)
        printf("%zu%s", offsetof(struct truth, models[i].by), i + 1 < MODELS ? ", " : "], \"models\": [");
    for (unsigned i = 0; i < MODELS; i++)
        printf("{\"name\": \"m%u\", \"row\": %u, \"by\": %zu, \"sealed\": %zu, \"next\": %zu}%s", i, MODEL_ROW(i),
               offsetof(struct truth, models[i].by), offsetof(struct truth, models[i].sealed),
               offsetof(struct truth, models[i].next), i + 1 < MODELS ? ", " : "]}\n");
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "layout")) {
        print_layout();
        return 0;
    }
    if (argc != 5) {
        fprintf(stderr, "usage: %s RUNTIME_DIR TRUTH host|cuda SEED|report\n", argv[0]);
        return 2;
    }
    dir = argv[1];
    self = getpid();
    random_state = strtoull(argv[4], NULL, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the storm's end is ours */
    if (!truth_open(argv[2]) || !memory_open(!strcmp(argv[3], "cuda")))
        return 1;
    open_session();
    if (!strcmp(argv[4], "report"))
        report();
    else
        live();
    return 0;
}
