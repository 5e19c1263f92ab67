/* Ledgers of other builds (FAULTS 27): what older ones left (tests/golden/ledger, one for each version there was), and what
 * newer ones may leave. `HBM_GOLDEN_LEDGER=N test_core` writes the ledger of this build as the golden one of
 * version N.
 */
#include "core_cases.h"
#include "core_world.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/core/ledger_internal.h"
#include "proto/memfd.h"

#define GOLDEN "tests/golden/ledger/"

/* ---- Files ---- */

struct bytes {
    char *at;
    size_t size;
};

static struct bytes read_file(int dir_fd, const char *name)
{
    struct stat status;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) < 0)
        fail_msg("no %s: tests run in the root of the tree", name);
    struct bytes bytes = {calloc(1, (size_t)status.st_size + 1), (size_t)status.st_size};
    assert_int_equal(read(fd, bytes.at, bytes.size), bytes.size);
    close(fd);
    return bytes;
}

static void write_file(int dir_fd, const char *name, const void *bytes, size_t size)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static struct bytes read_golden(unsigned version, const char *what)
{
    char path[64];

    snprintf(path, sizeof(path), GOLDEN "%u%s", version, what);
    return read_file(AT_FDCWD, path);
}

static void write_golden(const char *version, const char *what, const void *bytes, size_t size)
{
    char path[64];

    snprintf(path, sizeof(path), GOLDEN "%s%s", version, what);
    write_file(AT_FDCWD, path, bytes, size);
}

/* ---- A catalog with each kind of thing in it ---- */

/* One that was demoted under it, and one that it has in place: since version 4. */
static void demote_under(struct session *session)
{
    struct attach_args args = {.name = "host", .flags = WIRE_IN_PLACE};
    struct ask *demoting = ask(&w, alice, NULL), *locking = ask(&w, alice, session), *attaching = ask(&w, alice, session);

    make_kept(&w, "live", 64, 256);
    const struct lease *lease = attach(&w, session, "live", HBM_RW);
    verb_demote(w.core, &demoting->call, "live", true);
    world_run(&w);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, demoting)->state, WIRE_OP_DONE);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 0);
    assert_int_equal(error_of(&w, locking), 0);
    lockword_arrive(&session->words[lease->mappings[0]->slot], 1);
    verb_attach(w.core, &attaching->call, &args);
    assert_int_equal(error_of(&w, attaching), 0);
}

/* Since version 9. */
static void observe(const char *name)
{
    struct ask *question = ask(&w, alice, NULL);

    fill(named(&w, name), 1);
    verb_observe(w.core, &question->call, name, 0.5);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
}

static void furnish(void)
{
    make_kept(&w, "device", 64, 256);
    make_kept(&w, "host", 64, 256);
    make_kept(&w, "disk", 64, 256);
    make_kept(&w, "int8", 64, 256);
    make_kept(&w, "parked", 64, 256);
    make_model(&w, "m", 2);
    observe("device");
    compress(&w, "int8", HBM_CODEC_INT8);
    park(&w, "parked", HBM_CODEC_INT8);
    park(&w, "m/layer.1.b", HBM_CODEC_BF16);
    offload(&w, "parked", HBM_TIER_DISK, true);
    compress(&w, "m/layer.0.w", HBM_CODEC_BF16);
    offload(&w, "host", HBM_TIER_HOST, true);
    offload(&w, "disk", HBM_TIER_DISK, true);
    struct session *session = client(&w, alice), *gone = client(&w, alice);
    attach(&w, session, "device", HBM_RO);
    attach(&w, session, "m/layer.1.w", HBM_RW);
    make_buffer(&w, session, "mine", 8, 8, 0);
    demote_under(session);
    attach(&w, gone, "device", HBM_RW);
    session_gone(gone, false, "killed");
}

static void keep_golden(const char *version)
{
    char *picture = world_picture(&w), *names = NULL;
    size_t size;
    FILE *out = open_memstream(&names, &size);

    list_for_each (node, &w.store)
        fprintf(out, "%s\n", list_entry(node, struct kept, node)->name);
    fclose(out);
    struct bytes ledger = read_file(w.dir_fd, "ledger");
    write_golden(version, "", ledger.at, ledger.size);
    write_golden(version, ".store", names, size);
    write_golden(version, ".picture", picture, strlen(picture));
    free(ledger.at);
    free(names);
    free(picture);
}

static uint64_t gone_session(void)
{
    list_for_each (node, &w.core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        if (session->state == SESSION_QUARANTINED)
            return session->id;
    }
    fail_msg("nobody is gone");
    return 0;
}

/* ---- Coming back to another's ledger ---- */

/* An fd such as that name stands for. */
static int fd_for(const char *name)
{
    uint64_t size;

    switch (name[0]) {
    case 'p':
        return (int)syscall(SYS_pidfd_open, getpid(), 0);
    case 's':
        return memfd_fixed(name, LOCKWORD_PAGE_BYTES);
    case 'm':
        return memfd_sealed(name, "metadata", 8);
    default:
        assert_int_equal(sscanf(name, "x-%*x-%*[0-9a-f.]-%" SCNx64, &size), 1);
        return memfd_fixed(name, size);
    }
}

static void put_into_store(const struct bytes *names)
{
    char *rest = NULL;

    for (char *name = strtok_r(names->at, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) {
        struct kept *kept = calloc(1, sizeof(*kept));
        snprintf(kept->name, sizeof(kept->name), "%s", name);
        kept->fd = fd_for(name);
        assert_true(kept->fd >= 0);
        list_append(&w.store, &kept->node);
    }
}

static void is_the_same(const char *picture)
{
    char *now = world_picture(&w);

    assert_string_equal(now, picture);
    assert_int_equal(w.core->counters.lost, 0);
    world_check_books(&w);
    free(now);
}

static void the_ledger_of_every_older_version_is_read(void **state)
{
    (void)state;
    for (unsigned version = 1; version <= LEDGER_VERSION; version++) {
        struct bytes ledger = read_golden(version, ""), names = read_golden(version, ".store"),
                     picture = read_golden(version, ".picture");
        world_crash(&w);
        while (!list_empty(&w.store))
            world_lose(&w, "");
        put_into_store(&names);
        write_file(w.dir_fd, "ledger", ledger.at, ledger.size);
        for (unsigned lives = 0; lives < 2; lives++) {
            assert_int_equal(lives ? world_restart(&w) : world_come_back(&w), 0);
            is_the_same(picture.at);
            /* Version 1 did not say how far it had come in giving ids. */
            assert_int_equal(w.core->ids.base > 4096, version == 1);
        }
        free(ledger.at);
        ledger = read_file(w.dir_fd, "ledger"); /* and is not for builds any more that ours is too new for */
        assert_int_equal(((struct ledger_header *)ledger.at)->since,
                         version < LEDGER_SINCE_PACKED ? LEDGER_SINCE : LEDGER_SINCE_PACKED);
        free(ledger.at);
        free(names.at);
        free(picture.at);
    }
}

/* ---- A newer build's: more in each row, rows of another kind, here and in batches ---- */

static const char KNEW_MORE[32] = "from a build that knew more";

static void append_newer(struct pack *to, const char *at, size_t size);

static void newer_record(struct pack *to, uint32_t type, uint64_t id, const char *payload, size_t size)
{
    static const unsigned char more[24] = {0xee, 0xdd, 0xcc, 0xbb};
    size_t start = to->size;
    struct ledger_record record = {.type = type, .id = id};

    pack_bytes(to, &record, sizeof(record));
    if (type == LEDGER_BATCH)
        append_newer(to, payload, size);
    else
        pack_bytes(to, payload, size);
    if (type != LEDGER_BATCH)
        pack_bytes(to, more, sizeof(more));
    record.size = (uint32_t)(to->size - start + sizeof(uint64_t));
    memcpy(to->bytes + start, &record, sizeof(record));
    pack_u64(to, ledger_checksum(to->bytes + start, to->size - start));
}

static void append_newer(struct pack *to, const char *at, size_t size)
{
    static uint64_t unknown = 0x1234;
    struct ledger_record record;

    for (; size; at += record.size, size -= record.size) {
        memcpy(&record, at, sizeof(record));
        newer_record(to, record.type, record.id, at + sizeof(record), record.size - LEDGER_RECORD_MIN);
        newer_record(to, 99, unknown++, KNEW_MORE, sizeof(KNEW_MORE));
    }
}

static void rewrite_as_newer(void)
{
    struct bytes ledger = read_file(w.dir_fd, "ledger");
    struct ledger_header header;
    struct pack newer = {0};

    memcpy(&header, ledger.at, sizeof(header));
    header.version = LEDGER_VERSION + 1;
    header.check = (uint32_t)ledger_checksum(&header, offsetof(struct ledger_header, check));
    pack_bytes(&newer, &header, sizeof(header));
    append_newer(&newer, ledger.at + sizeof(header), ledger.size - sizeof(header));
    write_file(w.dir_fd, "ledger", newer.bytes, newer.size);
    free(newer.bytes);
    free(ledger.at);
}

static void the_ledger_of_a_newer_build_is_read_and_what_it_alone_knows_is_kept(void **state)
{
    (void)state;
    furnish();
    char *picture = world_picture(&w);
    world_crash(&w);
    rewrite_as_newer();
    for (unsigned lives = 0; lives < 2; lives++) {
        assert_int_equal(lives ? world_restart(&w) : world_come_back(&w), 0);
        is_the_same(picture);
    }
    assert_int_equal(ledger_compact(w.ledger), 0);
    struct bytes ledger = read_file(w.dir_fd, "ledger");
    assert_non_null(memmem(ledger.at, ledger.size, KNEW_MORE, sizeof(KNEW_MORE)));
    free(ledger.at);
    free(picture);
}

static void a_rollback_after_an_upgrade_gives_nothing_away_that_is_held(void **state)
{
    (void)state;
    furnish();
    world_crash(&w);
    rewrite_as_newer();
    assert_int_equal(world_come_back(&w), 0);
    struct ask *question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, named(&w, "device")->id);
    assert_int_equal(error_of(&w, question), HBM_E_BUSY);
    const struct op *op = offload(&w, "m/layer.1.w", HBM_TIER_HOST, true);
    world_pass(&w, 600); /* its holder does not let go */
    assert_int_equal(op->error, HBM_E_BUSY);
    assert_int_equal(named(&w, "device")->n_leases, 2);
    session_process_ended(session_get(w.core, gone_session()));
    world_pass(&w, 5);
    assert_int_equal(named(&w, "device")->n_leases, 1);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_version_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(the_ledger_of_every_older_version_is_read),
        CASE(the_ledger_of_a_newer_build_is_read_and_what_it_alone_knows_is_kept),
        CASE(a_rollback_after_an_upgrade_gives_nothing_away_that_is_held),
    };
    const char *golden = getenv("HBM_GOLDEN_LEDGER");

    if (golden) {
        world_begin(&w);
        furnish();
        keep_golden(golden);
        world_end(&w);
    }
    return cmocka_run_group_tests_name("ledgers of other builds", tests, NULL, NULL);
}
