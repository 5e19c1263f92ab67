/* The n-th use of memory by the core fails, for every n, in each thing that can be asked of it (FAULTS 33): it is
 * done all the same or refused in a sentence, the books balance, every byte is what it was, and a restart finds all
 * of it. That nothing leaks is for the sanitizer to see. The core alone is struck: it is linked by itself
 * (tests.mk). */
#include "memory_scenes.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Memory ---- */

struct fault fault;
extern const char __executable_start[];

#define STRUCK(name, result, parameters, ...)                                                                      \
    result __wrap_##name parameters;                                                                               \
    result __wrap_##name parameters                                                                                \
    {                                                                                                              \
        if (fault.held || ++fault.used != fault.n)                                                                 \
            return name(__VA_ARGS__);                                                                              \
        fault.struck = true;                                                                                       \
        errno = ENOMEM;                                                                                            \
        fault.by = __builtin_return_address(0);                                                                    \
        return NULL;                                                                                               \
    }
STRUCK(malloc, void *, (size_t size), size)
STRUCK(calloc, void *, (size_t n, size_t size), n, size)
STRUCK(realloc, void *, (void *old, size_t size), old, size)
STRUCK(reallocarray, void *, (void *old, size_t n, size_t size), old, n, size)
STRUCK(strdup, char *, (const char *text), text)
STRUCK(tsearch, void *, (const void *key, void **tree, int (*compare)(const void *, const void *)), key, tree,
       compare)

static void strike(unsigned n)
{
    fault.struck = fault.held = false;
    fault.used = 0;
    fault.n = n;
}

/* ---- What there is, and what must be there at the end ---- */

static struct {
    uint64_t id;
    unsigned seed;
} standing[16];
static unsigned n_standing;
struct session *reader, *other, *stranger;
int file;

static void stands(const struct buffer *buffer, unsigned seed)
{
    standing[n_standing].id = buffer->id;
    standing[n_standing++].seed = seed;
}

static void furnish(void)
{
    static const char *const kept[] = {"w", "away", "spilled", "coded"};

    n_standing = 0;
    for (unsigned i = 0; i < 4; i++)
        stands(make_kept(&w, kept[i], 16, 64), (unsigned)strlen(kept[i]));
    make_model(&w, "m", 2);
    unsigned seed = 0;
    list_for_each (node, &named(&w, "m/layer.0.w")->model->buffers)
        stands(list_entry(node, struct buffer, model_node), ++seed);
    offload(&w, "away", HBM_TIER_HOST, true);
    offload(&w, "spilled", HBM_TIER_DISK, true);
    compress(&w, "coded", HBM_CODEC_INT8);
    reader = client(&w, alice);
    other = client(&w, alice);
    stranger = client(&w, bob);
    file = memfd_create("file", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, 1 << 20), 0);
}

static void check_bytes(const struct scene *scene)
{
    for (unsigned i = 0; i < n_standing; i++) {
        const struct buffer *buffer = buffer_get(w.core, standing[i].id);
        if (!buffer && scene->frees)
            continue;
        assert_non_null(buffer);
        char *sel = buffer->name;
        assert_int_equal(restore(&w, sel)->error, 0);
        if (buffer->encoding.codec)
            assert_int_equal(OP(verb_decompress, sel), 0);
        assert_true(is_filled(buffer, standing[i].seed));
    }
}

/* A model's tensors go by its name. */
static void check_names(void)
{
    list_for_each (node, &w.core->models) {
        const struct model *model = list_entry(node, struct model, node);
        size_t size = strlen(model->name);
        list_for_each (inner, &model->buffers) {
            const struct buffer *buffer = list_entry(inner, struct buffer, model_node);
            assert_true(!strncmp(buffer->name, model->name, size) && buffer->name[size] == '/');
            assert_true(buffer->listed == model->listed);
            assert_true(!buffer->listed || named(&w, buffer->name) == buffer);
        }
    }
}

/* Nothing fails any more: all is as it should be, now and after a restart. */
static void check_all(const struct scene *scene)
{
    world_pass(&w, 2000);
    assert_int_equal(ledger_trouble(w.core), 0);
    world_check_books(&w);
    check_names();
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(after, before);
    free(before);
    free(after);
    list_for_each_safe (node, &w.core->sessions)
        session_process_ended(list_entry(node, struct session, node));
    world_pass(&w, 20000);
    assert_int_equal(w.core->n_sessions, 0);
    assert_int_equal(w.core->n_leases, 0);
    check_bytes(scene);
    make_kept(&w, "after", 16, 64);
    world_check_books(&w);
}

/* ---- All of them, for every n ---- */

static unsigned uses_of(const struct scene *scene)
{
    unsigned n = 0;

    do {
        world_begin(&w);
        world_add_peer(&w);
        furnish();
        fault.scene = scene->name;
        strike(++n);
        scene->run();
        fault.held = true;
        check_all(scene);
        close(file);
        world_end(&w);
    } while (fault.struck);
    fault.scene = NULL;
    return n - 1;
}

static void whatever_use_of_memory_fails_is_refused_and_nothing_is_lost(void **state)
{
    const struct scene *scene = *state;

    assert_true(uses_of(scene) > 0);
}

static int tell(void **state)
{
    (void)state;
    if (fault.scene)
        print_error("%s: use %u of memory failed, by code at %#tx\n", fault.scene, fault.n,
                    fault.by - __executable_start);
    return 0;
}

int main(void)
{
    static const struct scene *const groups[] = {memory_lease_scenes, memory_move_scenes, memory_code_scenes};
    struct CMUnitTest tests[64];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        for (const struct scene *scene = groups[i]; scene->run; scene++) {
            assert(n < sizeof(tests) / sizeof(tests[0]));
            tests[n++] = (struct CMUnitTest){
                .name = scene->name,
                .test_func = whatever_use_of_memory_fails_is_refused_and_nothing_is_lost,
                .teardown_func = tell,
                .initial_state = (void *)scene,
            };
        }
    return _cmocka_run_group_tests("memory", tests, n, NULL, NULL);
}
