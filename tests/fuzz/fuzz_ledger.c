/* What the owner finds at its start: a ledger of any bytes, whose checksums are made right (first byte's bit 0),
 * since otherwise none would get past them; with the fds that its rows speak of, some of them, or none, and then
 * half of it is lost but for its copy. Whatever comes back must be whole, can be used, and comes back the same once
 * more. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger_internal.h"
#include "proto/memfd.h"
#include "tests/fuzz/worker.h"
#include "tests/fuzz/world.h"

#define SLOTS ((uint64_t)0xfff) /* ids beyond it only cost memory, sixteen million of them much */

static struct world world;

/* Sizes, then checksums, of the records in [bytes, bytes + size); of those in batches too. */
static void mend(uint8_t *bytes, size_t size, unsigned depth)
{
    while (size >= LEDGER_RECORD_MIN) {
        struct ledger_record record;

        memcpy(&record, bytes, sizeof(record));
        record.size &= 0x7f8;
        record.size = record.size < LEDGER_RECORD_MIN ? LEDGER_RECORD_MIN : record.size;
        record.size = record.size > size ? (uint32_t)(size & ~(size_t)7) : record.size;
        record.id &= ~(uint64_t)0xffffff | SLOTS;
        memcpy(bytes, &record, sizeof(record));
        if (record.type == LEDGER_BATCH && depth < 4)
            mend(bytes + sizeof(record), record.size - LEDGER_RECORD_MIN, depth + 1);
        uint64_t checksum = ledger_checksum(bytes, record.size - sizeof(checksum));
        memcpy(bytes + record.size - sizeof(checksum), &checksum, sizeof(checksum));
        bytes += record.size;
        size -= record.size;
    }
}

/* Mutated heads would all be set aside. */
static void mend_head(uint8_t *bytes)
{
    struct ledger_header header;

    memcpy(&header, bytes, sizeof(header));
    header.check = header.version ? (uint32_t)ledger_checksum(&header, offsetof(struct ledger_header, check)) : 0;
    memcpy(bytes, &header, sizeof(header));
}

static void write_ledger(const uint8_t *bytes, size_t size)
{
    int fd = openat(world.dir_fd, "ledger", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
}

static void keep_copy(const uint8_t *bytes, size_t size)
{
    world.copy = memfd_create("copy", MFD_CLOEXEC);
    CHECK(world.copy >= 0 && write(world.copy, bytes, size) == (ssize_t)size);
}

static void keep(const char *kind, uint64_t id, int fd)
{
    char name[STORE_NAME_MAX];

    snprintf(name, sizeof(name), "%s-%016llx", kind, (unsigned long long)id);
    world_keep(&world, name, fd);
}

static void keep_extent(struct ledger_row *row)
{
    char name[STORE_NAME_MAX];

    unpack_text(&row->payload);
    uint32_t listener = unpack_u32(&row->payload);
    uint32_t uid = unpack_u32(&row->payload);
    unpack_u64(&row->payload); /* tier, kind */
    uint64_t size = unpack_u64(&row->payload);
    char behind[12] = "";
    if (listener)
        snprintf(behind, sizeof(behind), "%x.", listener);
    snprintf(name, sizeof(name), "x-%llx-%s%x-%llx", (unsigned long long)row->id, behind, uid,
             (unsigned long long)size);
    world_keep(&world, name, memfd_fixed("extent", size < (1ull << 40) ? size : 4096));
}

/* The fds that went with the rows, as far as the rows can be read. */
static void keep_fds(unsigned choice)
{
    struct ledger *ledger = NULL;
    struct ledger_row *rows = NULL;
    void *bytes = NULL;
    size_t n = 0;

    if (ledger_open(world.dir_fd, &ledger))
        return;
    CHECK(!ledger_load(ledger, &rows, &n, &bytes));
    for (size_t i = 0; i < n; i++) {
        if (choice & 4 && i % 3 == 0)
            continue;
        if (rows[i].type == LEDGER_EXTENT)
            keep_extent(&rows[i]);
        if (rows[i].type == LEDGER_MODEL)
            keep("m", rows[i].id, memfd_sealed("metadata", "metadata", 8));
        if (rows[i].type == LEDGER_SESSION) {
            keep("p", rows[i].id, (int)syscall(SYS_pidfd_open, getpid(), 0));
            keep("s", rows[i].id, memfd_fixed("page", choice & 8 ? 4096 : LOCKWORD_PAGE_BYTES));
        }
    }
    free(rows);
    free(bytes);
    ledger_close(ledger);
}

/* An operator tries everything on it. */
static void use(unsigned choice)
{
    struct core *core = world.core;
    struct compress_args compress = {.sel = "*", .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};

    verb_hash(core, world_call(root, NULL), "*");
    world_run(&world);
    verb_offload(core, world_call(root, NULL), "*", HBM_TIER_HOST, true);
    world_run(&world);
    if (choice & 0x10)
        verb_compress(core, world_call(root, NULL), &compress);
    if (choice & 0x20)
        verb_decompress(core, world_call(root, NULL), "*");
    world.now += 1000;
    world_run(&world);
    verb_restore(core, world_call(root, NULL), "*");
    world_run(&world);
    if (choice & 0x40)
        verb_free_sel(core, world_call(root, NULL), "*");
    if (choice & 0x80)
        list_for_each_safe (node, &core->sessions)
            session_process_ended(list_entry(node, struct session, node));
    world.now += 5000;
    world_run(&world);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    unsigned choice = take_byte(&in);
    uint8_t *copy = malloc(in.left + 1);

    CHECK(copy);
    memcpy(copy, in.at, in.left);
    if (!(choice & 1) && in.left > sizeof(struct ledger_header)) {
        mend_head(copy);
        mend(copy + sizeof(struct ledger_header), in.left - sizeof(struct ledger_header), 0);
    }
    worker_is_lenient = true;
    world_begin(&world, true);
    world_crash(&world);
    write_ledger(copy, choice & 2 ? in.left / 2 : in.left);
    if (choice & 2)
        keep_copy(copy, in.left);
    else
        keep_fds(choice);
    free(copy);
    int error = world_come_back(&world);
    if (!error) {
        world_digest(&world);
        use(choice);
        uint64_t before = world_digest(&world);
        CHECK(!world_restart(&world));
        CHECK(world.blocks || world_digest(&world) == before); /* cuda-ipc blocks die with their worker */
    } else {                                                   /* refused as a whole: it is kept as it is */
        CHECK(error < 0);
        world_crash(&world);
    }
    world_end(&world);
    return 0;
}
