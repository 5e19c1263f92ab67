/* The ledger's copy, which is kept with the memory: whatever becomes of the file, everything comes back. */
#include "core_cases.h"
#include "core_world.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/ledger_internal.h"

#define STEP 7 /* behind the head; records are of eights, so each of their bytes has its turn */

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    w.copy = fcntl(ledger_keep_copy(w.ledger, -1), F_DUPFD_CLOEXEC, 3);
    assert_true(w.copy > 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close(w.copy);
    world_end(&w);
    return 0;
}

static char *whole;
static size_t whole_size;

static void read_ledger(void)
{
    struct stat status;
    int fd = openat(w.dir_fd, "ledger", O_RDONLY | O_CLOEXEC);

    assert_int_equal(fstat(fd, &status), 0);
    whole_size = (size_t)status.st_size;
    whole = malloc(whole_size);
    assert_int_equal(read(fd, whole, whole_size), whole_size);
    close(fd);
}

static void write_ledger(const char *bytes, size_t size)
{
    int fd = openat(w.dir_fd, "ledger", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

/* Something of each kind, and a client; the picture of it. */
static char *furnish(void)
{
    make_kept(&w, "w", 8, 8);
    make_model(&w, "m", 1);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RO);
    make_buffer(&w, session, "mine", 8, 8, 0);
    offload(&w, "m/layer.0.w", HBM_TIER_HOST, true);
    return world_picture(&w);
}

static void comes_back_as(const char *picture)
{
    assert_int_equal(world_come_back(&w), 0);
    char *now = world_picture(&w);
    assert_string_equal(now, picture);
    assert_int_equal(w.core->counters.lost, 0);
    world_check_books(&w);
    free(now);
    world_crash(&w);
}

static void nothing_is_lost_by_a_bit_that_flips_anywhere_in_the_file(void **state)
{
    (void)state;
    char *picture = furnish();
    read_ledger();
    world_crash(&w);
    for (size_t at = 0; at < whole_size; at += at < 64 ? 1 : STEP) {
        whole[at] ^= 0x10;
        write_ledger(whole, whole_size);
        whole[at] ^= 0x10;
        comes_back_as(picture);
    }
    free(whole);
    free(picture);
}

static void nothing_is_lost_by_a_file_that_is_cut_off_anywhere(void **state)
{
    (void)state;
    char *picture = furnish();
    read_ledger();
    world_crash(&w);
    for (size_t size = 0; size < whole_size; size += size < 64 ? 1 : STEP) {
        write_ledger(whole, size);
        comes_back_as(picture);
    }
    free(whole);
    free(picture);
}

static void nothing_is_lost_by_a_file_that_is_removed_or_is_another(void **state)
{
    (void)state;
    char *picture = furnish();
    world_crash(&w);
    unlinkat(w.dir_fd, "ledger", 0);
    comes_back_as(picture);
    write_ledger("this is a letter to my mother, not a ledger", 43);
    comes_back_as(picture);
    assert_int_equal(faccessat(w.dir_fd, "ledger.damaged", F_OK, 0), 0);
    free(picture);
}

static void an_owner_that_dies_before_it_has_taken_the_copy_leaves_it_to_the_next(void **state)
{
    (void)state;
    char *picture = furnish();
    world_crash(&w);
    unlinkat(w.dir_fd, "ledger", 0);
    assert_int_equal(ledger_open(w.dir_fd, &w.ledger), 0); /* the file is new, and sound */
    w.ledger = ledger_close(w.ledger);
    comes_back_as(picture);
    free(picture);
}

/* A build that knew of no copy was here in between. */
static void a_copy_that_was_left_behind_is_not_believed(void **state)
{
    (void)state;
    free(furnish());
    int copy = w.copy;
    w.copy = 0;
    assert_int_equal(world_restart(&w), 0);
    make_kept(&w, "later", 8, 8);
    assert_int_equal(ledger_compact(w.ledger), 0);
    char *picture = world_picture(&w);
    world_crash(&w);
    w.copy = copy;
    comes_back_as(picture);
    unlinkat(w.dir_fd, "ledger", 0); /* and it has caught up */
    comes_back_as(picture);
    free(picture);
}

static void what_the_file_had_no_room_for_is_in_the_copy(void **state)
{
    (void)state;
    free(furnish());
    int full = open("/dev/full", O_RDWR | O_CLOEXEC);
    assert_true(dup3(full, w.ledger->fd, O_CLOEXEC) >= 0);
    close(full);
    assert_int_equal(mkdirat(w.dir_fd, "ledger.new", 0700), 0); /* nor for another file */
    struct ask *question = ask(&w, alice, NULL);
    verb_rename(w.core, &question->call, "w", "renamed");
    assert_int_equal(error_of(&w, question), 0);
    assert_true(w.ledger->behind);
    char *picture = world_picture(&w);
    world_crash(&w);
    assert_int_equal(unlinkat(w.dir_fd, "ledger.new", AT_REMOVEDIR), 0);
    comes_back_as(picture);
    free(picture);
}

static void what_is_no_copy_is_left_alone(void **state)
{
    (void)state;
    char *picture = furnish();
    world_crash(&w);
    close(w.copy);
    w.copy = eventfd(0, EFD_CLOEXEC);
    comes_back_as(picture);
    close(w.copy);
    w.copy = openat(w.dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(write(w.copy, "a letter that is longer than a header", 37), 37);
    unlinkat(w.dir_fd, "ledger", 0);
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->n_buffers, 0);
    free(picture);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int core_copy_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(nothing_is_lost_by_a_bit_that_flips_anywhere_in_the_file),
        CASE(nothing_is_lost_by_a_file_that_is_cut_off_anywhere),
        CASE(nothing_is_lost_by_a_file_that_is_removed_or_is_another),
        CASE(an_owner_that_dies_before_it_has_taken_the_copy_leaves_it_to_the_next),
        CASE(a_copy_that_was_left_behind_is_not_believed),
        CASE(what_the_file_had_no_room_for_is_in_the_copy),
        CASE(what_is_no_copy_is_left_alone),
    };

    return cmocka_run_group_tests_name("the ledger's copy", tests, NULL, NULL);
}
