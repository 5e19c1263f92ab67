/* What hbmctl advise makes of figures: each branch of its tree by a sentence, and what it predicts by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "client/ctl/bottleneck.h"

/* A GPU on which all is well. */
#define WELL                                                                                                       \
    "memory_gb_per_s=4000 to_host_gb_per_s=50 to_device_gb_per_s=50 to_disk_gb_per_s=1.5 from_disk_gb_per_s=1.25 " \
    "back_fp16_gb_per_s=100 back_int8_gb_per_s=160 back_lossless_gb_per_s=75 attach_seconds=1e-4 "                 \
    "lock_seconds=2e-8 "                                                                                           \
    "lock_away_seconds=2e-4 naive_tflops=1 tiled_tflops=4 padded_tflops=12 fast_tflops=40 uptime_seconds=100 "     \
    "attaches=10 attached_bytes=5e10 lock_waits=0 lock_wait_seconds=0 bounces=0 evicted_bytes=0 refused=0 "        \
    "is_gpu=1 "                                                                                                    \
    "capacity_bytes=1e11 used_bytes=5e10 taken_bytes=0 needed_bytes=5e10 f32_bytes=0 f16_bytes=5e10 "              \
    "encoded_bytes=0 decoded_bytes=0 parks_bytes=0 groups=50 loose_bytes=0 ordered=1 windowed=0 copies=0 copied_bytes=0 "     \
    "alike_bytes=0 others_bytes=5e8 offload_limit=0.3"

#define NONE BRANCHES

/* clang-format off */
static const struct {
    const char *sentence;
    const char *facts; /* beside WELL */
    enum branch says[4];
    enum branch about; /* whose metric is looked at; NONE: no one's */
    const char *metric;
    double before, predicted;
} cases[] = {
    {"nothing costs anything, and that is said", "", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"the same bytes in three models are shared, and two of them saved", "copies=3 copied_bytes=2e10", {BRANCH_SHARE, NONE}, BRANCH_SHARE, "used_bytes", 5e10, 3e10},
    {"what looks alike and was not compared is no more than that", "alike_bytes=2e10", {BRANCH_ALIKE, NONE}, NONE, NULL, 0, 0},
    {"what others hold past the broker may be copies, and is not known", "others_bytes=3e10", {BRANCH_OTHERS, NONE}, NONE, NULL, 0, 0},
    {"floats of 32 bits that fit as 16 are tried as fp16 first", "needed_bytes=1.2e11 f32_bytes=1.2e11 f16_bytes=0", {BRANCH_FP16, BRANCH_OFFLOAD, NONE}, BRANCH_FP16, "needed_bytes", 1.2e11, 6e10},
    {"where 16 bits are too many it is int8", "needed_bytes=3e11 f32_bytes=3e11 f16_bytes=0", {BRANCH_INT8, BRANCH_TOO_MUCH, NONE}, BRANCH_INT8, "needed_bytes", 3e11, 3e11 * 1.03125 / 4},
    {"floats of 16 bits are half as large by int8", "needed_bytes=1.2e11 f16_bytes=1.2e11", {BRANCH_INT8, BRANCH_OFFLOAD, NONE}, BRANCH_INT8, "needed_bytes", 1.2e11, 1.2e11 * 1.03125 / 2},
    {"what others have locked is no room", "needed_bytes=5e10 taken_bytes=6e10", {BRANCH_INT8, BRANCH_OFFLOAD, NONE}, BRANCH_OFFLOAD, "bounces_per_s", 0, 0},
    {"what is not floats can only be away", "needed_bytes=1.2e11 f16_bytes=0 bounces=50", {BRANCH_OFFLOAD, NONE}, BRANCH_OFFLOAD, "bounces_per_s", 0.5, 0},
    {"more than offload_limit away is compressed first", "needed_bytes=1.6e11 f16_bytes=0", {BRANCH_TOO_MUCH, NONE}, NONE, NULL, 0, 0},
    {"what a window keeps away, and nobody waits for, costs nothing", "needed_bytes=1.2e11 windowed=1", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"what locks wait for behind a window is the link's", "needed_bytes=1.2e11 f16_bytes=1.2e11 windowed=1 lock_waits=500 lock_wait_seconds=10", {BRANCH_LOSSLESS, NONE}, NONE, NULL, 0, 0},
    {"a window of one does not keep another from bouncing", "needed_bytes=1.2e11 f16_bytes=0 windowed=1 bounces=50", {BRANCH_OFFLOAD, NONE}, NONE, NULL, 0, 0},
    {"bounces of what fits now are those of before", "bounces=7", {BRANCH_FITS_NOW, NONE}, NONE, NULL, 0, 0},
    {"refusals for want of memory are told as well", "refused=1", {BRANCH_FITS_NOW, NONE}, NONE, NULL, 0, 0},
    {"waits by the link's own time are less where less comes", "lock_waits=500 lock_wait_seconds=10", {BRANCH_LOSSLESS, NONE}, BRANCH_LOSSLESS, "lock_wait_share", 0.1, 0.1 * 50 / 75},
    {"floats of 32 bits park as fp16", "lock_waits=500 lock_wait_seconds=10 f32_bytes=5e10 f16_bytes=0", {BRANCH_PARK, NONE}, BRANCH_PARK, "lock_wait_share", 0.1, 0.05},
    {"no codec is advised that comes back no faster", "lock_waits=500 lock_wait_seconds=10 back_lossless_gb_per_s=50", {BRANCH_LINK, NONE}, NONE, NULL, 0, 0},
    {"what parks already is not to be parked", "lock_waits=500 lock_wait_seconds=10 parks_bytes=5e10", {BRANCH_LINK, NONE}, NONE, NULL, 0, 0},
    {"without an order of use that comes first", "lock_waits=500 lock_wait_seconds=10 ordered=0 pass_seconds=0.75", {BRANCH_ORDER, BRANCH_LOSSLESS, BRANCH_KERNEL, NONE}, BRANCH_ORDER, "lock_wait_share", 0.1, 0.025},
    {"what an order hides is not known without the time of a pass", "lock_waits=500 lock_wait_seconds=10 ordered=0", {BRANCH_ORDER, BRANCH_LOSSLESS, NONE}, BRANCH_ORDER, "lock_wait_share", 0.1, (double)NAN},
    {"waits of less than a hundredth of the time are none", "lock_waits=500 lock_wait_seconds=0.9", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"of small groups the wait is mostly what each costs, whatever its size", "lock_waits=50000 lock_wait_seconds=20 needed_bytes=5e8 f16_bytes=5e8 groups=500", {BRANCH_GRAIN, NONE}, BRANCH_GRAIN, "lock_wait_share", 0.2, 0.2 * (2e-4 / 90 + 2e-5) / (2e-4 + 2e-5)},
    {"whose waits they are is not known of a link that was not measured", "lock_waits=500 lock_wait_seconds=10 to_device_gb_per_s=nan", {BRANCH_WAITS, NONE}, NONE, NULL, 0, 0},
    {"encoded weights are for kernels that read them tile by tile", "encoded_bytes=2e10 decoded_bytes=4e10", {BRANCH_TILES, NONE}, NONE, NULL, 0, 0},
    {"host memory has no shared memory", "encoded_bytes=2e10 decoded_bytes=4e10 is_gpu=0", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"a pass that takes what reading takes needs fewer bytes", "pass_seconds=0.02", {BRANCH_MEMORY, NONE}, BRANCH_MEMORY, "pass_seconds", 0.02, 0.02 * 1.03125 / 2},
    {"a pass that takes far longer waits for its kernels", "pass_seconds=1", {BRANCH_KERNEL, NONE}, BRANCH_KERNEL, "pass_seconds", 1, 0.025},
    {"no kernel is promised less than reading takes", "pass_seconds=0.1", {BRANCH_KERNEL, NONE}, BRANCH_KERNEL, "pass_seconds", 0.1, 0.0125},
    {"a pass says nothing where memory was not measured", "pass_seconds=1 memory_gb_per_s=nan", {BRANCH_MEMORY, NONE}, NONE, NULL, 0, 0},
    {"many small attaches are one of all of it", "attaches=20000 attached_bytes=8e7 loose_bytes=4e6", {BRANCH_ATTACH, NONE}, BRANCH_ATTACH, "bytes_an_attach", 4000, 4e6},
    {"attaches of much are worth their time", "attaches=20000 attached_bytes=2e13 loose_bytes=4e6", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"attaches that take less than a hundredth of the time are none", "attaches=5000 attached_bytes=2e7 loose_bytes=4e6", {BRANCH_NOTHING, NONE}, NONE, NULL, 0, 0},
    {"what attaches cost is not known where none was measured", "attaches=20000 attached_bytes=8e7 loose_bytes=4e6 attach_seconds=nan", {BRANCH_ATTACHES, NONE}, NONE, NULL, 0, 0},
    {"bottlenecks that are real are all told", "copies=2 copied_bytes=1e10 needed_bytes=1.2e11 f16_bytes=0 attaches=20000 attached_bytes=8e7 loose_bytes=4e6", {BRANCH_SHARE, BRANCH_OFFLOAD, BRANCH_ATTACH, NONE}, NONE, NULL, 0, 0},
};
/* clang-format on */

/* "name=number ..." */
static void set(struct facts *facts, const char *text)
{
    while (*text) {
        const struct fact_row *row = fact_next(NULL);
        size_t length = strcspn(text, "=");
        char *end;
        while (row && (strlen(row->name) != length || strncmp(row->name, text, length)))
            row = fact_next(row);
        assert_non_null(row);
        *fact_of(facts, row) = strtod(text + length + 1, &end);
        text = end + strspn(end, " ");
    }
}

static void equal(double is, double expected)
{
    if (isnan(expected) ? !isnan(is) : !(fabs(is - expected) <= 1e-9 * fmax(1, fabs(expected))))
        fail_msg("%.10g instead of %.10g", is, expected);
}

static void check(const struct remarks *remarks, size_t n)
{
    unsigned expected = 0;

    for (; cases[n].says[expected] != NONE; expected++)
        if (expected >= remarks->n || remarks->all[expected].branch != cases[n].says[expected])
            fail_msg("remark %u is of another branch: %s", expected,
                     expected < remarks->n ? remarks->all[expected].why : "none");
    assert_int_equal(remarks->n, expected);
    for (unsigned i = 0; i < remarks->n; i++) {
        const struct remark *remark = &remarks->all[i];
        assert_non_null(remark->why);
        assert_true(!remark->strategy || remark->todo || remark->unknown);
        assert_true(remark->strategy || remark->unknown); /* what does not say what pays says what is missing */
        assert_null(strstr(remark->why, "nan"));
        assert_true(!remark->gain || !strstr(remark->gain, "nan"));
        if (remark->branch != cases[n].about)
            continue;
        assert_string_equal(remark->metric, cases[n].metric);
        equal(remark->before, cases[n].before);
        equal(remark->predicted, cases[n].predicted);
    }
}

static void each_branch_says_what_pays_and_by_how_much(void **state)
{
    bool seen[BRANCHES + 1] = {false};

    (void)state;
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        struct facts facts;
        struct remarks remarks = {0};
        print_message("  %s\n", cases[n].sentence);
        facts_begin(&facts);
        set(&facts, WELL);
        set(&facts, cases[n].facts);
        facts.copied = facts.copies > 0 ? strdup("models a, b") : NULL;
        facts.alike = facts.alike_bytes > 0 ? strdup("models a, b, off the device") : NULL;
        bottlenecks_find(&facts, "model:m", &remarks);
        check(&remarks, n);
        for (unsigned i = 0; i < remarks.n; i++)
            seen[remarks.all[i].branch] = true;
        remarks_clear(&remarks);
        facts_clear(&facts);
    }
    for (unsigned branch = 0; branch < BRANCHES; branch++)
        if (!seen[branch])
            fail_msg("no case is of branch %u", branch);
}

static void without_a_profile_nothing_is_claimed_of_the_device(void **state)
{
    struct facts facts;
    struct remarks remarks = {0};

    (void)state;
    facts_begin(&facts);
    set(&facts, WELL);
    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row))
        if (row->kind == FACT_MEASURED)
            *fact_of(&facts, row) = (double)NAN;
    set(&facts, "needed_bytes=1.2e11 f32_bytes=1.2e11 lock_waits=500 lock_wait_seconds=10 attaches=20000 "
                "attached_bytes=8e7 loose_bytes=4e6 pass_seconds=1");
    bottlenecks_find(&facts, "model:m", &remarks);
    assert_int_equal(remarks.n, 5);
    for (unsigned i = 0; i < remarks.n; i++) {
        assert_non_null(remarks.all[i].unknown);
        assert_true(remarks.all[i].branch == BRANCH_FP16 ||
                    strstr(remarks.all[i].unknown, "run hbmctl advise --measure"));
        assert_true(!remarks.all[i].gain || remarks.all[i].branch == BRANCH_FP16);
    }
    remarks_clear(&remarks);
    facts_clear(&facts);
}

static void facts_come_back_from_json_as_they_were(void **state)
{
    struct facts facts, again;

    (void)state;
    facts_begin(&facts);
    facts_begin(&again);
    set(&facts, WELL);
    set(&facts, "to_peer_gb_per_s=nan memory_gb_per_s=0.1");
    cJSON *json = facts_json(&facts, FACT_MEASURED);
    char *text = cJSON_Print(json);
    cJSON *parsed = cJSON_Parse(text);
    facts_read(&again, FACT_MEASURED, parsed);
    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row))
        equal(*fact_of(&again, row), row->kind == FACT_MEASURED ? *fact_of(&facts, row) : (double)NAN);
    cJSON_Delete(parsed);
    cJSON_Delete(json);
    free(text);
}

static void counters_since_then_are_what_was_added_unless_the_daemon_began_anew(void **state)
{
    struct facts before, now;

    (void)state;
    facts_begin(&before);
    facts_begin(&now);
    set(&before, "uptime_seconds=100 attaches=10 lock_wait_seconds=2 used_bytes=5");
    set(&now, "uptime_seconds=150 attaches=30 lock_wait_seconds=2.5 used_bytes=7");
    assert_true(facts_since(&now, &before));
    equal(now.uptime_seconds, 50);
    equal(now.attaches, 20);
    equal(now.lock_wait_seconds, 0.5);
    equal(now.used_bytes, 7);
    assert_false(facts_since(&now, &before));
    equal(now.attaches, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_branch_says_what_pays_and_by_how_much),
        cmocka_unit_test(without_a_profile_nothing_is_claimed_of_the_device),
        cmocka_unit_test(facts_come_back_from_json_as_they_were),
        cmocka_unit_test(counters_since_then_are_what_was_added_unless_the_daemon_began_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
