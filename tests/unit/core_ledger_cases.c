#include "core_cases.h"
#include "core_world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/ledger_internal.h"

/* ---- The file ---- */

struct bytes {
    unsigned char *at;
    size_t size;
};

static struct bytes read_ledger(void)
{
    struct stat status;
    int fd = openat(w.dir_fd, "ledger", O_RDONLY | O_CLOEXEC);

    assert_int_equal(fstat(fd, &status), 0);
    struct bytes bytes = {malloc((size_t)status.st_size), (size_t)status.st_size};
    assert_int_equal(pread(fd, bytes.at, bytes.size, 0), bytes.size);
    close(fd);
    return bytes;
}

static void write_ledger(const unsigned char *bytes, size_t size)
{
    int fd = openat(w.dir_fd, "ledger", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static size_t ledger_size(void)
{
    struct stat status;

    assert_int_equal(fstatat(w.dir_fd, "ledger", &status, 0), 0);
    return (size_t)status.st_size;
}

/* ---- A little of everything, with its picture after each thing done ---- */

struct moment {
    size_t size; /* of the ledger */
    char *picture;
};

static struct moment moments[64];

static size_t n_moments;

static void remember(void)
{
    moments[n_moments++] = (struct moment){ledger_size(), world_picture(&w)};
}

static void forget_moments(void)
{
    while (n_moments)
        free(moments[--n_moments].picture);
}

static void do_a_little_of_everything(void)
{
    make_kept(&w, "w", 64, 256);
    remember();
    make_model(&w, "m", 2);
    remember();
    struct session *session = client(&w, alice), *other = client(&w, alice);
    remember();
    struct lease *reader = attach(&w, session, "w", HBM_RO);
    remember();
    attach(&w, session, "m/layer.0.b", HBM_RW);
    remember();
    make_buffer(&w, other, "mine", 8, 8, 0);
    remember();
    compress(&w, "w", HBM_CODEC_INT8); /* the reader keeps the old one */
    remember();
    offload(&w, "m/layer.1.w", HBM_TIER_HOST, true);
    remember();
    offload(&w, "w", HBM_TIER_DISK, true);
    remember();
    restore(&w, "w");
    remember();
    detach(&w, reader);
    remember();
    session_gone(other, false, "killed"); /* quarantined */
    remember();
    struct ask *question = ask(&w, alice, NULL);
    verb_rename(w.core, &question->call, "w", "renamed");
    assert_int_equal(error_of(&w, question), 0);
    remember();
}

/* And what takes several rows away at once. */
static void take_it_away_again(void)
{
    make_model(&w, "n", 2);
    make_kept(&w, "v", 64, 256);
    compress(&w, "v", HBM_CODEC_INT8);
    struct ask *question = ask(&w, alice, NULL);
    verb_free_sel(w.core, &question->call, "v");
    op_of(&w, question);
    question = ask(&w, alice, NULL);
    verb_rm(w.core, &question->call, "n");
    assert_int_equal(error_of(&w, question), 0);
}

static void every_restart_restores_an_equal_catalog(void **state)
{
    (void)state;
    w.keep_all = true; /* at each moment of the past, what was in the store then was there */
    do_a_little_of_everything();
    struct bytes whole = read_ledger();
    world_crash(&w);
    size_t compared = 0;
    for (size_t i = 0; i < n_moments; i++) {
        write_ledger(whole.at, moments[i].size);
        assert_int_equal(world_come_back(&w), 0);
        char *picture = world_picture(&w);
        assert_string_equal(picture, moments[i].picture);
        free(picture);
        world_check_books(&w);
        world_crash(&w);
        compared++;
    }
    assert_true(compared > 10);
    free(whole.at);
    forget_moments();
}

/* Where the catalog says that something lies, it does, in the form that it says. */
static void check_contents(void)
{
    static const struct {
        const char *name;
        unsigned seed;
    } known[] = {{"w", 1},           {"renamed", 1},     {"m/layer.0.w", 1},
                 {"m/layer.0.b", 2}, {"m/layer.1.w", 3}, {"m/layer.1.b", 4}};

    list_for_each (node, &w.core->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        if (buffer->arena->extent->lost)
            continue;
        assert_true(buffer->offset + buffer->size <= buffer->arena->extent->size);
        assert_int_equal(buffer->encoding.codec == HBM_CODEC_INT8, buffer->parts[PART_SCALE] != NULL);
        for (unsigned i = 0; buffer->name && i < sizeof(known) / sizeof(known[0]); i++) {
            if (strcmp(buffer->name, known[i].name))
                continue;
            if (buffer->encoding.codec == HBM_CODEC_RAW) {
                assert_true(is_filled(buffer, known[i].seed));
                continue;
            }
            signed char *codes = malloc(buffer->size);
            buffer_bytes(buffer, codes);
            for (int at = 0; at < (int)buffer->size; at++)
                assert_int_equal(codes[at], (at * 7 + (int)known[i].seed * 13) % 201 - 100);
            free(codes);
        }
    }
}

/* Each has two groups of two. */
static void check_models(void)
{
    list_for_each (node, &w.core->models) {
        const struct model *model = list_entry(node, struct model, node);
        assert_int_equal(model->n_buffers, 4);
        assert_int_equal(model->n_arenas, 2);
    }
}

/* The ledger cut at every byte: it comes back as one of the pictures up to there, or between two of them; the books
 * balance, and what is restored is sound enough to be worked with. */
static void a_ledger_torn_at_any_byte_comes_back(void **state)
{
    (void)state;
    w.keep_all = true;
    do_a_little_of_everything();
    take_it_away_again();
    struct bytes whole = read_ledger();
    world_crash(&w);
    for (size_t size = 0; size <= whole.size; size += size < 4096 ? 1 : 7) {
        write_ledger(whole.at, size);
        assert_int_equal(world_come_back(&w), 0);
        world_check_books(&w);
        check_contents();
        check_models();
        assert_int_equal(w.core->counters.lost, 0);
        world_crash(&w);
    }
    free(whole.at);
    forget_moments();
}

static void a_flipped_bit_anywhere_costs_no_more_than_its_record(void **state)
{
    (void)state;
    make_kept(&w, "before", 64, 256);
    make_model(&w, "m", 1);
    struct session *session = client(&w, alice);
    attach(&w, session, "before", HBM_RO);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    make_kept(&w, "after", 64, 256);
    w.keep_all = true;
    struct bytes whole = read_ledger();
    world_crash(&w);
    for (size_t at = 0; at < whole.size; at++) {
        whole.at[at] ^= 0x10;
        write_ledger(whole.at, whole.size);
        whole.at[at] ^= 0x10;
        assert_int_equal(world_come_back(&w), 0);
        world_check_books(&w);
        check_contents();
        world_crash(&w);
    }
    free(whole.at);
}

static void a_ledger_that_says_it_is_not_for_us_is_left_untouched(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct bytes whole = read_ledger();
    world_crash(&w);
    struct ledger newer = {.since = LEDGER_VERSION + 1, .epoch = 1};
    *(struct ledger_header *)whole.at = ledger_header(&newer);
    write_ledger(whole.at, whole.size);
    assert_int_equal(world_come_back(&w), -EPROTO);
    struct bytes now = read_ledger();
    assert_int_equal(now.size, whole.size);
    assert_memory_equal(now.at, whole.at, now.size);
    free(now.at);
    free(whole.at);
}

static void a_file_that_is_no_ledger_is_set_aside(void **state)
{
    (void)state;
    world_crash(&w);
    write_ledger((const unsigned char *)"this is a letter to my mother, not a ledger", 43);
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(faccessat(w.dir_fd, "ledger.damaged", F_OK, 0), 0);
    make_kept(&w, "w", 8, 8);
    assert_int_equal(world_restart(&w), 0);
    named(&w, "w");
}

static void records_of_an_unknown_kind_are_carried_along(void **state)
{
    (void)state;
    struct pack pack = {0};
    make_kept(&w, "w", 8, 8);
    pack_text(&pack, "from a daemon that knew more");
    ledger_write(w.core, 99, 0x1234, &pack);
    assert_int_equal(world_restart(&w), 0);
    named(&w, "w");
    for (unsigned i = 0; i < 6000; i++) /* through a compaction */
        ledger_put_buffer(w.core, named(&w, "w"));
    struct bytes whole = read_ledger();
    assert_non_null(memmem(whole.at, whole.size, "from a daemon that knew more", 28));
    free(whole.at);
}

/* A disk that is full: rows are kept, and written when there is room. */
static void rows_that_the_file_could_not_take_are_written_later(void **state)
{
    (void)state;
    struct rlimit old, tight;
    struct pack pack = {0};
    make_kept(&w, "w", 8, 8);
    assert_int_equal(ledger_compact(w.ledger), 0);
    size_t size = ledger_size();
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = (struct rlimit){size + 40, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &tight);
    pack_text(&pack, "too long for the file by a few bytes, torn");
    ledger_write(w.core, 99, 0x1234, &pack);
    named(&w, "w")->version = 7;
    ledger_put_buffer(w.core, named(&w, "w"));
    size_t torn = ledger_size();
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(torn, size);                             /* cut back to what is whole */
    ledger_put_extent(w.core, named(&w, "w")->arena->extent); /* whatever comes next brings the rest along */
    assert_true(ledger_size() > size);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(named(&w, "w")->version, 7);
    world_check_books(&w);
}

static void two_restarts_in_a_row_change_nothing(void **state)
{
    (void)state;
    do_a_little_of_everything();
    forget_moments();
    char *before = world_picture(&w);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(world_restart(&w), 0);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        world_check_books(&w);
    }
    free(before);
}

/* ---- Size and trouble ---- */

static void the_ledger_is_compacted_when_it_is_mostly_past(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    size_t largest = 0;
    for (unsigned i = 0; i < 6000; i++) {
        ledger_put_buffer(w.core, named(&w, "w"));
        if (ledger_size() > largest)
            largest = ledger_size();
    }
    assert_true(largest > MIB);
    assert_true(largest < MIB + 65536);
    assert_true(ledger_size() < MIB);
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void a_compaction_that_was_cut_short_leaves_the_old_ledger(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    world_crash(&w);
    int fd = openat(w.dir_fd, "ledger.new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "HBML", 4), 4);
    close(fd);
    assert_int_equal(world_come_back(&w), 0);
    named(&w, "w");
    assert_int_equal(faccessat(w.dir_fd, "ledger.new", F_OK, 0), -1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_ledger_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(every_restart_restores_an_equal_catalog),
        CASE(a_ledger_torn_at_any_byte_comes_back),
        CASE(a_flipped_bit_anywhere_costs_no_more_than_its_record),
        CASE(a_ledger_that_says_it_is_not_for_us_is_left_untouched),
        CASE(a_file_that_is_no_ledger_is_set_aside),
        CASE(records_of_an_unknown_kind_are_carried_along),
        CASE(rows_that_the_file_could_not_take_are_written_later),
        CASE(two_restarts_in_a_row_change_nothing),
        CASE(the_ledger_is_compacted_when_it_is_mostly_past),
        CASE(a_compaction_that_was_cut_short_leaves_the_old_ledger),
    };

    return cmocka_run_group_tests_name("the ledger", tests, NULL, NULL);
}
