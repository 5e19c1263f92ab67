#include "core_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/core/observation.h"

/* ---- What the core asks of the world ---- */

static void submit(void *context, struct job *job)
{
    struct world *world = context;

    job->sent = false;
    list_append(&world->jobs, &job->node);
}

static void cancel(void *context, struct job *job)
{
    (void)context;
    job->error = HBM_E_CANCELLED;
}

static void store(void *context, struct store_request *request)
{
    struct world *world = context;
    if (world->store_is_full && (request->use == STORE_NEW || world->store_is_full > 1)) {
        request->refused = true;
        request->done(request);
        return;
    }
    struct kept *kept = calloc(1, sizeof(*kept));
    assert_non_null(kept);
    snprintf(kept->name, sizeof(kept->name), "%s", request->name);
    kept->fd = fcntl(request->fd, F_DUPFD_CLOEXEC, 3);
    assert_true(kept->fd >= 0);
    list_append(&world->store, &kept->node);
    request->done(request);
}

static void forget(struct kept *kept)
{
    list_unlink(&kept->node);
    fd_close(kept->fd);
    free(kept);
}

static void unstore(void *context, const char *name)
{
    struct world *world = context;

    list_for_each_safe (node, &world->store) {
        struct kept *kept = list_entry(node, struct kept, node);
        if (!world->keep_all && !strcmp(kept->name, name))
            forget(kept);
    }
}

static uint64_t now_ms(void *context)
{
    return ((struct world *)context)->now;
}

static void wake_at(void *context, uint64_t at_ms)
{
    ((struct world *)context)->wake = at_ms;
}

static void close_memory(void *context, int fd, void (*closed)(void *argument), void *argument)
{
    struct world *world = context;
    struct slow_close *slow = calloc(1, sizeof(*slow));

    assert_non_null(slow);
    *slow = (struct slow_close){.fd = fd, .closed = closed, .argument = argument};
    list_append(&world->closes, &slow->node);
    if (!world->slow)
        world_close_one(world);
}

static bool forget_close(struct world *world, struct slow_close *slow)
{
    struct list *node = list_first(&world->closes);

    if (!node)
        return false;
    *slow = *list_entry(node, struct slow_close, node);
    list_unlink(node);
    free(list_entry(node, struct slow_close, node));
    fd_close(slow->fd);
    return true;
}

bool world_close_one(struct world *world)
{
    struct slow_close slow;

    if (!forget_close(world, &slow))
        return false;
    slow.closed(slow.argument);
    return true;
}

/* ---- Life and death ---- */

static const struct core_limits limits = {
    .offload_percent = 30, .reclaim_ms = 500, .memory_wait_ms = 200, .account[ACCOUNT_OPS] = 8};

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static struct device *add_device(struct world *world, const char *name)
{
    const uint64_t capacity[HBM_TIERS] = {64 * MIB, 64 * MIB, 64 * MIB};
    struct device *device = device_add(world->core, name, "host memory", false, capacity);

    device->state = DEVICE_READY;
    device->can_fd = device->can_cuda_ipc = true;
    device->worker_pid = 1;
    return device;
}

void world_start(struct world *world)
{
    const struct core_env env = {world, submit, cancel, store, unstore, now_ms, wake_at, close_memory, NULL, NULL};

    world->core = core_new(&env, &limits);
    assert_non_null(world->core);
    world->core->spill_key = world->spill_key;
    world->core->encrypts_spill = world->core->keeps = true;
    world->device = add_device(world, world->device_name);
    world->peer = world->two ? add_device(world, "host-1") : NULL;
}

static void quiet(enum log_level level, const char *field, const char *line)
{
    (void)field;
    if (getenv("VERBOSE"))
        fprintf(stderr, "  log %d: %s\n", level, line);
}

struct world w;

int world_setup(void **state)
{
    (void)state;
    world_begin(&w);
    return 0;
}

void world_add_peer(struct world *world)
{
    world->two = true;
    world->peer = add_device(world, "host-1");
}

int world_setup_two(void **state)
{
    (void)state;
    world_begin(&w);
    world_add_peer(&w);
    return 0;
}

int world_teardown(void **state)
{
    (void)state;
    world_end(&w);
    return 0;
}

void world_begin(struct world *world)
{
    *world = (struct world){
        .now = 1000, .fds_at_start = count_fds(), .device_name = "host", .spill_key = 7, .dir = "/tmp/test-core-XXXXXX"};
    log_set_sink(quiet);
    list_init(&world->jobs);
    list_init(&world->store);
    list_init(&world->closes);
    assert_non_null(mkdtemp(world->dir));
    world->dir_fd = open(world->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    world_start(world);
    assert_int_equal(ledger_open(world->dir_fd, &world->ledger), 0);
    world->core->ledger = world->ledger;
    assert_int_equal(ledger_readopt(world->core, NULL, 0), 0);
}

void world_crash(struct world *world)
{
    struct slow_close slow;

    list_init(&world->jobs); /* the workers go too; what the jobs belong to is freed with the core */
    world->core = core_free(world->core);
    world->ledger = ledger_close(world->ledger);
    while (forget_close(world, &slow)) {
    }
    while (world->n_blocks)
        fd_close(world->blocks[--world->n_blocks]);
}

static void empty_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while ((entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}

void world_end(struct world *world)
{
    if (world->core)
        world_crash(world);
    while (!list_empty(&world->store))
        forget(list_entry(list_first(&world->store), struct kept, node));
    fd_close(world->dir_fd);
    empty_dir(world->dir);
    assert_int_equal(count_fds(), world->fds_at_start);
}

int world_take_over(struct world *world)
{
    size_t n = 0;
    int error = ledger_open(world->dir_fd, &world->ledger);
    if (!error && world->copy)
        error = ledger_recover(world->ledger, world->copy);
    if (error)
        return error;
    if (world->copy)
        ledger_keep_copy(world->ledger, fcntl(world->copy, F_DUPFD_CLOEXEC, 3));
    world->core->ledger = world->ledger;
    list_for_each (node, &world->store)
        n++;
    struct kept_fd *fds = calloc(n + 1, sizeof(*fds));
    n = 0;
    list_for_each (node, &world->store) {
        const struct kept *kept = list_entry(node, struct kept, node);
        snprintf(fds[n].name, sizeof(fds[n].name), "%s", kept->name);
        fds[n++].fd = fcntl(kept->fd, F_DUPFD_CLOEXEC, 3);
    }
    error = ledger_readopt(world->core, fds, n);
    for (size_t i = 0; i < n; i++) {
        if (fds[i].fd >= 0 && !error)
            unstore(world, fds[i].name);
        fd_close(fds[i].fd);
    }
    free(fds);
    return error;
}

int world_come_back(struct world *world)
{
    world_start(world);
    return world_take_over(world);
}

int world_restart(struct world *world)
{
    world_crash(world);
    return world_come_back(world);
}

/* ---- Time ---- */

bool world_step(struct world *world)
{
    struct list *node = list_first(&world->jobs);

    if (!node)
        return false;
    struct job *job = list_entry(node, struct job, node);
    list_unlink(node);
    world->ran[job->opcode]++;
    if (world->fault_in && job->opcode == world->fault_opcode && !--world->fault_in) {
        job->error = world->fault_error;
        job->at_large = world->fault_at_large;
        job->late = world->fault_late;
    }
    if (!job->error)
        job->error = core_job_run(world, job);
    if (job->error)
        snprintf(job->detail, sizeof(job->detail), "the world made it fail");
    if (job->progress)
        job->progress(job);
    job->done(job);
    return true;
}

void world_run(struct world *world)
{
    for (unsigned rounds = 0; rounds < 10000; rounds++) {
        if (!world->hold && world_step(world))
            continue;
        if (!world->wake || world->wake > world->now)
            return;
        core_tick(world->core);
    }
    fail_msg("the world does not come to rest");
}

void world_pass(struct world *world, uint64_t ms)
{
    world->now += ms;
    world_run(world);
}

void world_fail(struct world *world, unsigned opcode, unsigned in, int error)
{
    world->fault_opcode = opcode;
    world->fault_in = in;
    world->fault_error = error;
}

struct kept *world_kept(struct world *world, const char *prefix)
{
    list_for_each (node, &world->store) {
        struct kept *kept = list_entry(node, struct kept, node);
        if (!strncmp(kept->name, prefix, strlen(prefix)))
            return kept;
    }
    return NULL;
}

void world_lose(struct world *world, const char *prefix)
{
    struct kept *kept = world_kept(world, prefix);

    assert_non_null(kept);
    forget(kept);
}

/* ---- Pictures ---- */

static void draw_mappings(FILE *out, const struct lease *lease)
{
    for (uint32_t i = 0; i < lease->n_mappings; i++) {
        const struct mapping *mapping = lease->mappings[i];
        fprintf(out, " [%sslot %u access %d arena %" PRIx64 " extent %" PRIx64 " leases %u present %d]",
                mapping->in_place ? "in place " : "", mapping->slot, mapping->access, mapping->arena ? mapping->arena->id : 0, mapping->extent->id,
                mapping->n_leases, mapping->present);
    }
}

static void draw_buffer(FILE *out, const struct buffer *buffer)
{
    fprintf(out,
            "buffer %" PRIx64 " %s listed %d arena %" PRIx64 " model %" PRIx64 " parent %" PRIx64 " scale %" PRIx64,
            buffer->id, buffer->name ? buffer->name : "-", buffer->listed, buffer->arena->id,
            buffer->model ? buffer->model->id : 0, buffer->parent ? buffer->parent->id : 0,
            buffer->parts[PART_SCALE] ? buffer->parts[PART_SCALE]->id : 0);
    for (unsigned i = PART_ZERO; i < PARTS; i++)
        if (buffer->parts[i])
            fprintf(out, " %s %" PRIx64, part_what(i), buffer->parts[i]->id);
    fprintf(out,
            " dtype %u rank %u dims %" PRIu64 " %" PRIu64 " at %" PRIu64 "+%" PRIu64
            " codec %d/%d/%d version %u leases %u keep %d receipt %d %g",
            buffer->dtype, buffer->rank, buffer->dims[0], buffer->dims[1], buffer->offset, buffer->size,
            buffer->encoding.codec, buffer->encoding.granularity, buffer->encoding.axis, buffer->version,
            buffer->n_leases, buffer->keep, buffer->has_receipt, buffer->receipt.sqnr_db);
    if (buffer->park.encoding.codec != HBM_CODEC_RAW)
        fprintf(out, " parks as %d/%d %g %g", buffer->park.encoding.codec, buffer->park.encoding.granularity,
                buffer->park.min_sqnr_db, buffer->park.max_error);
    if (buffer_packed(buffer))
        fprintf(out, " lies as %d in %" PRIu64, buffer_packed(buffer)->encoding.codec, buffer_stored_size(buffer));
    if (buffer->observation) {
        const struct hbm_observation *seen = &buffer->observation->seen;
        uint64_t sum = 0;
        for (unsigned i = 0; buffer->observation->bins && i < JOB_OBSERVE_BINS; i++)
            sum += buffer->observation->bins[i] * (i + 1);
        fprintf(out, " observed %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %g %g %g %g %g %g imported %u bins %" PRIu64, buffer->observation->id,
                seen->batches, seen->elements, seen->nonfinite, (double)seen->lo, (double)seen->hi, (double)seen->average_lo,
                (double)seen->average_hi, (double)seen->last_lo, (double)seen->last_hi, seen->imported, sum);
    }
    fprintf(out, "\n");
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Lists have no order that must survive, but for a model's buffers, which are on one line. */
static char *sorted(char *text)
{
    char *lines[4096], *save = NULL, *out = NULL;
    size_t n = 0, size;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        lines[n++] = line;
    qsort(lines, n, sizeof(*lines), by_text);
    FILE *stream = open_memstream(&out, &size);
    for (size_t i = 0; i < n; i++)
        fprintf(stream, "%s\n", lines[i]);
    fclose(stream);
    free(text);
    return out;
}

char *world_picture(const struct world *world)
{
    const struct core *core = world->core;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    list_for_each (node, &core->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        fprintf(out,
                "arena %" PRIx64 " %u shared %d mode %o handle %d %s extent %" PRIx64 " %s size %" PRIu64
                " check %d %" PRIx64 " lost %d%s%s",
                arena->id, arena->owner.uid, arena->shared, arena->mode, arena->handle, arena->group,
                arena->extent->id, hbm_tier_name(arena_tier(arena)), arena->extent->size,
                arena->extent->has_checksum, arena->extent->checksum, arena->extent->lost,
                arena->extent->exported ? " exported" : "", arena->live ? " live" : "");
        if (arena->extent->packing)
            fprintf(out, " packed of %" PRIu64 " in %u pieces", extent_raw_size(arena->extent), arena->extent->packing->n_pieces);
        fprintf(out, "\n");
    }
    list_for_each (node, &core->buffers)
        draw_buffer(out, list_entry(node, struct buffer, node));
    list_for_each (node, &core->models) {
        const struct model *model = list_entry(node, struct model, node);
        fprintf(out,
                "model %" PRIx64 " %s key %s listed %d state %d hash %" PRIx64 " arenas %u leases %u metadata %u:",
                model->id, model->name, model->key, model->listed, model->state, model->layout_hash,
                model->n_arenas, model->n_leases, model->metadata_bytes);
        list_for_each (inner, &model->buffers)
            fprintf(out, " %" PRIx64, list_entry(inner, struct buffer, model_node)->id);
        fprintf(out, "\n");
    }
    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        fprintf(out, "session %" PRIx64 " uid %u pid %d %s quarantined %d secret %02x\n", session->id,
                session->who.owner.uid, session->pid, session->client, session->state == SESSION_QUARANTINED,
                session->secret[0]);
        list_for_each (inner, &session->leases) {
            const struct lease *lease = list_entry(inner, struct lease, node);
            fprintf(out, "lease %" PRIx64 " session %" PRIx64 " buffer %" PRIx64 " model %" PRIx64 " access %d",
                    lease->id, session->id, lease->buffer ? lease->buffer->id : 0,
                    lease->model ? lease->model->id : 0, lease->access);
            draw_mappings(out, lease);
            fprintf(out, "\n");
        }
    }
    fprintf(out, "counts %u %u %u %u %u\n", core->n_buffers, core->n_models, core->n_sessions, core->n_leases,
            core->n_quarantined);
    fclose(out);
    return sorted(text);
}

/* What is kept of each model is what a walk over its buffers gives. */
static void check_weights(const struct core *core)
{
    list_for_each (node, &core->models) {
        const struct model *model = list_entry(node, struct model, node);
        uint64_t all = 0, away = 0, leases = 0;
        list_for_each (inner, &model->buffers) {
            const struct buffer *buffer = list_entry(inner, struct buffer, model_node);
            leases += buffer->n_leases;
            FOR_EACH_PART(part, buffer)
                leases += part->n_leases;
            all += buffer->size;
            away += arena_tier(buffer->arena) != HBM_TIER_DEVICE || buffer->arena->transition ? buffer->size : 0;
        }
        assert_int_equal(model->n_buffer_leases, leases);
        assert_int_equal(model->weight, all);
        assert_int_equal(model->weight_away, away);
    }
}

void world_check_books(struct world *world)
{
    const struct core *core = world->core;
    uint64_t used[HBM_TIERS] = {0}, charged[HBM_TIERS] = {0};
    const struct extent *seen[256];
    size_t n = 0, objects = 0, observed = 0;

    check_weights(core);
    list_for_each (node, &core->buffers)
        observed += list_entry(node, struct buffer, node)->observation != NULL;
    list_for_each (node, &core->arenas)
        seen[n++] = list_entry(node, struct arena, node)->extent;
    list_for_each (node, &core->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->mappings) {
            const struct mapping *mapping = list_entry(inner, struct mapping, session_node);
            const struct extent *held[] = {mapping->extent, mapping->early};
            for (size_t h = 0; h < 2; h++) {
                bool known = !held[h];
                for (size_t i = 0; i < n; i++)
                    known |= seen[i] == held[h];
                if (!known)
                    seen[n++] = held[h];
            }
        }
    for (size_t i = 0; i < n; i++)
        used[seen[i]->tier] += seen[i]->uncounted ? 0 : seen[i]->size; /* lost with its fd: it takes no room */
    list_for_each (node, &core->accounts) {
        const struct account *account = list_entry(node, struct account, node);
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            charged[tier] += account->use[tier];
        objects += account->use[ACCOUNT_OBJECTS];
        assert_int_equal(account->use[ACCOUNT_OPS], 0);
        observed -= account->use[ACCOUNT_OBSERVATIONS];
    }
    list_for_each (node, &world->store)
        objects -= strchr("xm", *list_entry(node, struct kept, node)->name) != NULL;
    assert_int_equal(observed, 0);
    assert_true(!objects || world->keep_all);
    for (unsigned tier = 0; tier < HBM_TIERS; tier++) {
        uint64_t on_peer = world->peer ? world->peer->used[tier] : 0;
        uint64_t nobodys = tier == HBM_TIER_HOST ? world->device->pooled : 0;
        assert_int_equal(world->device->closing[tier], 0);
        assert_int_equal(world->device->used[tier] + on_peer, used[tier] + nobodys);
        assert_int_equal(charged[tier], used[tier]);
    }
}

struct wire_range *mapped_ranges(const struct wire_range *ranges, uint32_t n)
{
    size_t size = n * sizeof(*ranges);
    struct wire_range *mapped = n ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;

    assert_ptr_not_equal(mapped, MAP_FAILED);
    if (n)
        memcpy(mapped, ranges, size);
    return mapped;
}
