#include <stdio.h>
#include <string.h>

#include "tests/soak/client.h"

#define PLACES 8
#define WAIT_MS 3000

static struct held places[PLACES];

static struct held *place(bool taken)
{
    unsigned first = dice(PLACES);

    for (unsigned i = 0; i < PLACES; i++) {
        struct held *held = &places[(first + i) % PLACES];
        if (taken == (held->lease != NULL))
            return held;
    }
    return NULL;
}

static void drop(struct held *held)
{
    hbm_lease *lease = held->lease;

    held->lease = NULL;
    went_well("hbm_detach", hbm_detach(lease), 0);
}

void drop_all(void)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].lease)
            drop(&places[i]);
}

void hold_or_drop(struct held held)
{
    struct held *free = chance(60) ? place(false) : NULL;

    if (free)
        *free = held;
    else
        drop(&held);
}

/* Which versions its memory may hold. A lease of who only reads may be on memory that was replaced since: that is
 * then as it was at some replacement. 0: too many to tell. */
static unsigned versions_of(const struct held *held, uint32_t versions[FROZEN + 2])
{
    const struct buffer_truth *row = &truth->buffers[held->row];
    unsigned n = 0;

    if (row->recodes - held->recodes >= FROZEN)
        return 0;
    versions[n++] = row->version;
    if (row->next)
        versions[n++] = row->next;
    for (uint32_t i = held->recodes; i != row->recodes; i++)
        versions[n++] = row->frozen[i % FROZEN];
    return n;
}

void check_held(const struct held *held)
{
    uint32_t versions[FROZEN + 2] = {held->version};
    unsigned n = held->row < BUFFERS ? versions_of(held, versions) : 1;
    struct hbm_info info;
    bool mixed;

    hbm_lease_info(held->lease, &info);
    if (!info.pointer || info.pointer != hbm_pointer(held->lease))
        broken("the buffer 0x%016llx is locked and not mapped", (unsigned long long)info.id);
    struct pattern pattern = {.key = held->row < BUFFERS ? held->row % NAMED : (uint32_t)self,
                              .bf16 = info.encoding.codec == HBM_CODEC_BF16};
    uint64_t size = info.size * (pattern.bf16 ? 2 : 1);
    if (held->row < BUFFERS && size != truth->buffers[held->row].size)
        broken("buffer %u has %llu bytes in its raw form instead of %llu", held->row, (unsigned long long)size,
               (unsigned long long)truth->buffers[held->row].size);
    if (!n)
        return;
    const char *wrong = memory_check(info.pointer, pattern, versions, n, info.size, &mixed);
    if (wrong)
        broken("the buffer 0x%016llx (row %u, %s, %s, version %u of the daemon's): %s", (unsigned long long)info.id,
               held->row, held->rw ? "rw" : "ro", hbm_codec_name(info.encoding.codec), info.version, wrong);
    count_checked(info.size, mixed);
}

static void read_it(struct held *held)
{
    if (held->row == BUFFERS) {
        check_held(held);
    } else if (row_share(held->row)) {
        if (!truth->buffers[held->row].by)
            check_held(held);
        row_leave(held->row);
    }
}

/* After a safe point that failed nobody tells which locks are left. */
static void settle_doubt(struct held *held)
{
    if (held->doubtful)
        held->locked = hbm_unlock(held->lease, NULL, 0) == 0 && hbm_lock(held->lease, 0) == 0;
    held->doubtful = false;
}

void do_held(void)
{
    struct held *held = place(true);

    if (!held)
        return;
    settle_doubt(held);
    if (chance(15)) {
        drop(held);
    } else if (!held->locked) {
        held->locked = went_well("hbm_lock", hbm_lock(held->lease, chance(20) ? 0 : WAIT_MS), 0);
    } else if (chance(40)) {
        went_well("hbm_unlock", hbm_unlock(held->lease, NULL, 0), 0);
        held->locked = false;
        return;
    }
    if (held->lease && held->locked)
        read_it(held);
}

void do_lock_many(void)
{
    hbm_lease *leases[PLACES];
    unsigned n = 0;

    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].lease && !places[i].locked && !places[i].doubtful)
            leases[n++] = places[i].lease;
    if (!n || !went_well("hbm_lock_many", hbm_lock_many(leases, n, WAIT_MS), 0))
        return;
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].lease && !places[i].locked && !places[i].doubtful) {
            places[i].locked = true;
            read_it(&places[i]);
        }
}

void do_safepoint(void)
{
    if (went_well("hbm_safepoint", hbm_safepoint(session, NULL, 0, WAIT_MS), 0))
        return;
    for (unsigned i = 0; i < PLACES; i++)
        places[i].doubtful |= places[i].locked;
}

/* Memory for this process alone: nothing of who had it before may be in it. */
void do_private(void)
{
    struct hbm_spec spec = {
        .device = HBM_DEVICE_ANY, .dtype = HBM_F32, .rank = 1, .dims = {1 + dice(200000 * memory_scale)}};
    struct held held = {.row = BUFFERS, .rw = true, .locked = true};

    if (!went_well("hbm_alloc", hbm_alloc(session, &spec, &held.lease), 0))
        return;
    check_held(&held);
    held.version = new_version();
    if (!memory_write(hbm_pointer(held.lease), (struct pattern){.key = (uint32_t)self, .version = held.version},
                      spec.dims[0] * sizeof(float), 1))
        broken("private memory cannot be written");
    check_held(&held);
    hold_or_drop(held);
}
