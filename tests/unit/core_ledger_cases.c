#include "core_cases.h"
#include "core_world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/ledger_internal.h"
#include "proto/memfd.h"

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
        assert_int_equal(buffer->encoding.codec == HBM_CODEC_INT8, buffer->scale != NULL);
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

/* ---- The store ---- */

static void memory_that_did_not_come_back_is_lost_by_name(void **state)
{
    char prefix[STORE_NAME_MAX];
    (void)state;
    make_kept(&w, "gone", 64, 256);
    make_kept(&w, "here", 64, 256);
    fill(named(&w, "here"), 2);
    extent_store_name(named(&w, "gone")->arena->extent, prefix);
    world_crash(&w);
    world_lose(&w, prefix);
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "gone")->arena->extent->lost);
    assert_true(is_filled(named(&w, "here"), 2));
    const struct event *event = event_get(&w.core->events, w.core->events.next - 1);
    assert_string_equal(event->what, "arena.lost");
    assert_string_equal(event->name, "gone");
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "gone", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, question)->error, HBM_E_LOST);
    question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, named(&w, "gone")->id);
    assert_int_equal(error_of(&w, question), 0);
    world_check_books(&w);
}

static void what_was_encrypted_with_another_key_is_lost_by_name(void **state)
{
    (void)state;
    make_kept(&w, "spilled", 64, 256);
    make_kept(&w, "here", 64, 256);
    offload(&w, "spilled", HBM_TIER_DISK, true);
    assert_int_equal(world_restart(&w), 0);
    assert_false(named(&w, "spilled")->arena->extent->lost);
    world_crash(&w);
    w.spill_key++;
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "spilled")->arena->extent->lost);
    assert_false(named(&w, "here")->arena->extent->lost);
    assert_int_equal(w.device->used[HBM_TIER_DISK], 0);
    world_check_books(&w);
}

/* What is kept under that name is exchanged for fd. */
static void swap(const char *prefix, int fd)
{
    struct kept *kept = world_kept(&w, prefix);

    assert_non_null(kept);
    close(kept->fd);
    kept->fd = fd;
}

static void an_fd_that_is_not_what_its_name_says_is_lost_and_not_used(void **state)
{
    char name[STORE_NAME_MAX];
    const int wrong[] = {eventfd(0, EFD_CLOEXEC), memfd_fixed("too small", 4096), memfd_fixed("too large", MIB),
                         open("/dev/null", O_RDWR | O_CLOEXEC)};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make_kept(&w, "w", 64, 256);
        extent_store_name(named(&w, "w")->arena->extent, name);
        world_crash(&w);
        swap(name, wrong[i]);
        assert_int_equal(world_come_back(&w), 0);
        assert_true(named(&w, "w")->arena->extent->lost);
        assert_int_equal(w.core->counters.lost, 1);
        assert_null(world_kept(&w, name));
        world_check_books(&w);
        struct ask *question = ask(&w, alice, NULL);
        verb_free(w.core, &question->call, named(&w, "w")->id);
        assert_int_equal(error_of(&w, question), 0);
    }
}

static void a_session_whose_pidfd_or_page_is_something_else_is_given_up(void **state)
{
    static const char *const prefixes[] = {"p-", "s-"};
    (void)state;
    make_kept(&w, "w", 8, 8);
    for (unsigned i = 0; i < 2; i++) {
        attach(&w, client(&w, alice), "w", HBM_RO);
        world_crash(&w);
        swap(prefixes[i], memfd_fixed("too small", 512));
        assert_int_equal(world_come_back(&w), 0);
        assert_int_equal(w.core->n_sessions, 0);
        assert_int_equal(named(&w, "w")->n_leases, 0);
        world_check_books(&w);
    }
}

static void metadata_that_is_something_else_is_none(void **state)
{
    (void)state;
    make_model(&w, "m", 1);
    world_crash(&w);
    swap("m-", memfd_sealed("another", "shorter", 7));
    assert_int_equal(world_come_back(&w), 0);
    const struct model *model = names_find(&w.core->model_names, alice.owner, "m");
    assert_int_equal(model->metadata_bytes, 0);
    assert_int_equal(model->metadata_fd, -1);
}

static void fds_that_no_row_names_are_left_to_the_caller(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    world_crash(&w);
    struct kept *stray = calloc(1, sizeof(*stray));
    snprintf(stray->name, sizeof(stray->name), "x-0123456789abcdef-0-4096");
    stray->fd = openat(w.dir_fd, "ledger", O_RDONLY | O_CLOEXEC);
    list_append(&w.store, &stray->node);
    assert_int_equal(world_come_back(&w), 0);
    assert_null(world_kept(&w, "x-0123456789abcdef"));
    assert_non_null(world_kept(&w, "x-"));
    world_check_books(&w);
}

static void a_device_that_is_not_configured_any_more_loses_its_arenas(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    world_crash(&w);
    w.device_name = "another";
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "w")->arena->extent->lost);
    assert_int_equal(named(&w, "w")->arena->device->state, DEVICE_FAILED);
    /* When it is back, nothing was lost. */
    w.device_name = "host";
    assert_int_equal(world_restart(&w), 0);
    assert_false(named(&w, "w")->arena->extent->lost);
    assert_int_equal(w.core->counters.lost, 0);
}

static void a_session_without_its_pidfd_is_given_up(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RO);
    make_buffer(&w, session, "mine", 8, 8, 0); /* kept by its lease alone */
    world_crash(&w);
    world_lose(&w, "p-");
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->n_sessions, 0);
    assert_int_equal(w.core->n_leases, 0);
    assert_int_equal(w.core->n_buffers, 1);
    assert_int_equal(named(&w, "w")->n_leases, 0);
    world_check_books(&w);
}

/* ---- Coming back ---- */

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

static void after_a_restart_everything_goes_on(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    offload(&w, "m/layer.1.w", HBM_TIER_DISK, true);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(restore(&w, "model:m")->state, WIRE_OP_DONE);
    struct ask *question = ask(&w, alice, NULL);
    verb_decompress(w.core, &question->call, "m/layer.0.w");
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    assert_true(is_filled(named(&w, "m/layer.1.w"), 3));
    struct session *session = client(&w, alice);
    detach(&w, attach(&w, session, "m/layer.1.b", HBM_RO));
    question = ask(&w, alice, NULL);
    session_gone(session, true, "bye");
    verb_rm(w.core, &question->call, "m");
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(w.core->n_buffers, 0);
    assert_null(world_kept(&w, "m-"));
    assert_null(world_kept(&w, "x-"));
    world_check_books(&w);
}

static void ids_mean_the_same_thing_or_nothing_after_a_restart(void **state)
{
    (void)state;
    uint64_t old[40], n = 0;
    make_kept(&w, "stays", 8, 8);
    uint64_t stays = named(&w, "stays")->id;
    for (unsigned life = 0; life < 4; life++) {
        for (unsigned i = 0; i < 10; i++) {
            struct buffer *buffer = make_kept(&w, "goes", 8, 8);
            old[n++] = buffer->id;
            struct ask *question = ask(&w, alice, NULL);
            verb_free(w.core, &question->call, buffer->id);
            assert_int_equal(error_of(&w, question), 0);
        }
        assert_int_equal(world_restart(&w), 0);
        assert_ptr_equal(buffer_get(w.core, stays), named(&w, "stays"));
        /* Many new ones, in all the slots that there were: none answers to an old id. */
        char name[16];
        for (unsigned i = 0; i < 100; i++) {
            snprintf(name, sizeof(name), "n%u.%u", life, i);
            make_kept(&w, name, 1, 1);
        }
        for (unsigned i = 0; i < n; i++)
            assert_null(buffer_get(w.core, old[i]));
        struct ask *question = ask(&w, alice, NULL);
        verb_free_sel(w.core, &question->call, "n*");
        op_of(&w, question);
    }
}

static void an_empty_ledger_begins_another_epoch(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 8, 8);
    uint64_t id = buffer->id;
    struct ask *question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, id);
    assert_int_equal(error_of(&w, question), 0);
    uint16_t epoch = w.core->ids.epoch;
    assert_int_equal(world_restart(&w), 0);
    assert_int_not_equal(w.core->ids.epoch, epoch);
    make_kept(&w, "again", 8, 8);
    epoch = w.core->ids.epoch;
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->ids.epoch, epoch);
    named(&w, "again");
}

static void a_quarantined_session_is_so_after_a_restart(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RW);
    session_gone(session, false, "killed");
    uint64_t id = session->id;
    assert_int_equal(world_restart(&w), 0);
    session = session_get(w.core, id);
    assert_int_equal(session->state, SESSION_QUARANTINED);
    assert_int_equal(w.core->n_quarantined, 1);
    session_process_ended(session);
    world_pass(&w, 5);
    assert_null(session_get(w.core, id));
    assert_int_equal(w.core->n_quarantined, 0);
    assert_int_equal(named(&w, "w")->n_leases, 0);
    world_check_books(&w);
}

static void the_residency_words_say_who_is_away(void **state)
{
    (void)state;
    make_kept(&w, "a", 8, 8);
    make_kept(&w, "b", 8, 8);
    struct session *session = client(&w, alice);
    uint64_t a = attach(&w, session, "a", HBM_RO)->id, b = attach(&w, session, "b", HBM_RO)->id;
    _Atomic uint64_t *word = &session->words[lease_get(w.core, a)->mappings[0]->slot];
    lockword_request(word);
    assert_true(lockword_try_release(word)); /* and its RELEASED is lost with the daemon */
    lockword_request(&session->words[lease_get(w.core, b)->mappings[0]->slot]);
    assert_int_equal(world_restart(&w), 0);
    assert_false(lease_get(w.core, a)->mappings[0]->present);
    const struct mapping *mapping = lease_get(w.core, b)->mappings[0];
    assert_true(mapping->present);
    assert_false(atomic_load(&mapping->session->words[mapping->slot]) & LOCKWORD_RECLAIM);
    assert_int_equal(offload(&w, "a", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    world_check_books(&w);
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
        CASE(memory_that_did_not_come_back_is_lost_by_name),
        CASE(what_was_encrypted_with_another_key_is_lost_by_name),
        CASE(an_fd_that_is_not_what_its_name_says_is_lost_and_not_used),
        CASE(a_session_whose_pidfd_or_page_is_something_else_is_given_up),
        CASE(metadata_that_is_something_else_is_none),
        CASE(fds_that_no_row_names_are_left_to_the_caller),
        CASE(a_device_that_is_not_configured_any_more_loses_its_arenas),
        CASE(a_session_without_its_pidfd_is_given_up),
        CASE(two_restarts_in_a_row_change_nothing),
        CASE(after_a_restart_everything_goes_on),
        CASE(ids_mean_the_same_thing_or_nothing_after_a_restart),
        CASE(an_empty_ledger_begins_another_epoch),
        CASE(a_quarantined_session_is_so_after_a_restart),
        CASE(the_residency_words_say_who_is_away),
        CASE(the_ledger_is_compacted_when_it_is_mostly_past),
        CASE(a_compaction_that_was_cut_short_leaves_the_old_ledger),
    };

    return cmocka_run_group_tests_name("the ledger", tests, NULL, NULL);
}
