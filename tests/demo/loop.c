/* A decode loop over a model of which only a window of layers is on the device: each layer's work takes about so
 * many milliseconds, the next one arrives meanwhile, and what was used leaves. Prints what moved beside the loop's
 * own time, as one JSON object. usage: loop RUNTIME_DIR MODEL ROUNDS MILLISECONDS */
#include <sys/param.h>

#include "tests/bench/work.h"

#define AHEAD 1u
#define GROUPS_MAX 4096u

static hbm_model *model;
static struct work work;
static const char *groups[GROUPS_MAX];
static unsigned n_groups;

static struct hbm_info buffer(unsigned i)
{
    struct hbm_info info;

    hbm_model_buffer(model, i, &info);
    return info;
}

/* In the order in which they were published. Returns the largest buffer's size. */
static size_t find_groups(void)
{
    size_t largest = 0;

    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info = buffer(i);
        unsigned known = 0;
        largest = MAX(largest, info.size);
        while (known < n_groups && info.group && strcmp(groups[known], info.group) != 0)
            known++;
        if (info.group && known == n_groups && n_groups < GROUPS_MAX)
            groups[n_groups++] = info.group;
    }
    return largest;
}

/* Bytes of a group, and how many of them are away here. */
static uint64_t bytes_of(const char *group, uint64_t *away)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info = buffer(i);
        if (!info.group || strcmp(info.group, group) != 0)
            continue;
        bytes += info.size;
        *away += info.pointer ? 0 : info.size;
    }
    return bytes;
}

static void use(const char *group, unsigned passes)
{
    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info = buffer(i);
        if (info.group && !strcmp(info.group, group))
            work_on(&work, info.pointer, info.size, passes);
    }
    work_wait(&work);
}

/* So that a layer takes about that long on average. bytes: of all of them. */
static unsigned passes_for(double seconds, uint64_t bytes)
{
    uint64_t ignored = 0;

    bench_must(hbm_model_lock(model, groups[0], HBM_FOREVER), "hbm_model_lock");
    use(groups[0], 1); /* its first is slower */
    double start = bench_now();
    use(groups[0], 1);
    double rate = (double)(bytes_of(groups[0], &ignored) + 1) / (bench_now() - start);
    bench_must(hbm_model_unlock(model, groups[0], NULL, 0), "hbm_model_unlock");
    double passes = seconds * rate * n_groups / (double)(bytes + 1);
    return passes < 1 ? 1 : (unsigned)MIN(passes, 100000);
}

int main(int argc, char **argv)
{
    double in_locks = 0, in_work = 0;
    uint64_t moved = 0, bytes = 0, ignored = 0;
    hbm_session *session;

    if (argc != 5)
        return 2;
    bench_must(hbm_open(&(struct hbm_options){.runtime_dir = argv[1], .client = "decode loop"}, &session),
               "hbm_open");
    bench_must(hbm_model_attach(session, argv[2], HBM_RO, HBM_UNLOCKED, HBM_FOREVER, &model), "hbm_model_attach");
    work_open(&work, session, find_groups());
    if (!n_groups)
        bench_must(HBM_E_NOT_FOUND, "groups");
    unsigned rounds = (unsigned)strtoul(argv[3], NULL, 10);
    for (unsigned i = 0; i < n_groups; i++)
        bytes += bytes_of(groups[i], &ignored);
    unsigned passes = passes_for(strtod(argv[4], NULL) / 1000, bytes);

    bench_must(hbm_model_order(model, groups, n_groups, AHEAD), "hbm_model_order");
    bench_must(hbm_model_window(model, 0, HBM_FORCE), "hbm_model_window");
    double start = bench_now();
    for (unsigned turn = 0; turn < rounds * n_groups; turn++) {
        const char *group = groups[turn % n_groups];
        double before = bench_now();
        bytes_of(group, &moved);
        bench_must(hbm_model_lock(model, group, HBM_FOREVER), "hbm_model_lock");
        double locked = bench_now();
        use(group, passes);
        in_locks += locked - before;
        in_work += bench_now() - locked;
        bench_must(hbm_model_unlock(model, group, NULL, 0), "hbm_model_unlock");
    }
    double all = bench_now() - start;
    printf("{\"groups\": %u, \"window\": %u, \"bytes\": %llu, \"rounds\": %u, \"locks\": %u, \"passes\": %u, "
           "\"moved_bytes\": %llu, \"seconds\": %.6f, \"lock_seconds\": %.6f, \"work_seconds\": %.6f}\n",
           n_groups, MIN(AHEAD + 1, n_groups), (unsigned long long)bytes, rounds, rounds * n_groups, passes,
           (unsigned long long)moved, all, in_locks, in_work);
    work_close(&work);
    hbm_close(session);
    return 0;
}
