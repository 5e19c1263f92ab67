/* Ids over lives of the map: none is ever given twice, while something that was given before lives on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <search.h>
#include <stdlib.h>

#include "daemon/base/idmap.h"

#define GENERATION_MAX ((1u << 20) - 1)
#define KIND 3

static struct idmap_bounds written; /* what the next life is told */
static unsigned writes;
static void *seen;
static char object;

static void write_down(struct idmap *map)
{
    written = map->bounds;
    writes++;
}

static int by_value(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static int begin(void **state)
{
    (void)state;
    written = (struct idmap_bounds){0};
    writes = 0;
    seen = NULL;
    return 0;
}

static int end(void **state)
{
    (void)state;
    tdestroy(seen, free);
    return 0;
}

/* An id that was never given before. */
static uint64_t give(struct idmap *map)
{
    uint64_t *id = malloc(sizeof(*id));

    *id = idmap_add(map, KIND, &object);
    assert_true(*id);
    assert_ptr_equal(idmap_get(map, *id, KIND), &object);
    assert_ptr_equal(*(uint64_t **)tsearch(id, &seen, by_value), id);
    return *id;
}

/* The next life: what lives has the ids it had. */
static void begin_again(struct idmap *map, const uint64_t *ids, unsigned n)
{
    idmap_clear(map);
    idmap_init(map, 7, write_down);
    map->bounds = written;
    for (unsigned i = 0; i < n; i++) {
        assert_true(idmap_could_put(map, ids[i], KIND));
        assert_int_equal(idmap_put(map, ids[i], &object), 0);
    }
    idmap_seal_holes(map);
    write_down(map);
    for (unsigned i = 0; i < n; i++)
        assert_ptr_equal(idmap_get(map, ids[i], KIND), &object);
}

static void an_id_is_given_once_over_twenty_thousand_restarts(void **state)
{
    struct idmap map;
    uint64_t alive[2];
    (void)state;
    idmap_init(&map, 7, write_down);
    give(&map);
    alive[0] = give(&map);
    alive[1] = give(&map);
    for (unsigned life = 0; life < 20000; life++) {
        begin_again(&map, alive, 2);
        uint64_t gone = give(&map);
        give(&map);
        give(&map);
        if (life % 100)
            continue;
        idmap_remove(&map, alive[1]); /* its slot goes on as well */
        alive[1] = give(&map);
        idmap_remove(&map, gone);
        give(&map);
    }
    assert_true(map.bounds.first > 0); /* it went through all generations */
    idmap_clear(&map);
}

static void a_busy_life_does_not_repeat_itself_in_the_next(void **state)
{
    struct idmap map;
    uint64_t alive;
    (void)state;
    idmap_init(&map, 7, write_down);
    alive = give(&map);
    for (unsigned i = 0; i < 100000; i++)
        idmap_remove(&map, give(&map));
    assert_true(writes < 2000);
    begin_again(&map, &alive, 1);
    for (unsigned i = 0; i < 100000; i++)
        idmap_remove(&map, give(&map));
    idmap_clear(&map);
}

static void a_slot_without_generations_is_not_used_again(void **state)
{
    struct idmap map;
    uint64_t id;
    (void)state;
    idmap_init(&map, 7, write_down);
    for (unsigned i = 0; i < GENERATION_MAX; i++) {
        id = idmap_add(&map, KIND, &object);
        assert_int_equal(id & 0xffffff, 0);
        idmap_remove(&map, id);
    }
    assert_null(idmap_get(&map, id, KIND));
    uint64_t next = give(&map);
    assert_int_equal(next & 0xffffff, 1);
    begin_again(&map, &next, 1);
    assert_true((give(&map) & 0xffffff) > 1);
    idmap_clear(&map);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(an_id_is_given_once_over_twenty_thousand_restarts),
        CASE(a_busy_life_does_not_repeat_itself_in_the_next),
        CASE(a_slot_without_generations_is_not_used_again),
    };

    return cmocka_run_group_tests_name("ids", tests, NULL, NULL);
}
