/* What moves, under clients and by itself. */
#include "memory_scenes.h"

#include "daemon/core/host_ahead.h"

static _Atomic uint64_t *word_of(const struct lease *lease)
{
    return &lease->session->words[lease->mappings[0]->slot];
}

static void moves_what_is_mapped_and_locks_it(void)
{
    struct lease *lease;

    if (attach_to(alice, reader, "w", HBM_RW, &lease))
        return;
    uint64_t id = lease->id;
    struct ask *moving = ask(&w, alice, NULL);
    verb_offload(w.core, &moving->call, "w", HBM_TIER_HOST, true);
    world_run(&w);
    client_lets_go(&w, reader);
    end_of(moving);
    lease = lease_get(w.core, id);
    if (!DO(reader, verb_lock, &lease->mappings[0]->slot, 1, 1000))
        lockword_arrive(&reader->words[lease->mappings[0]->slot], 1);
}

static void locks_before_the_bytes_are_there(void)
{
    struct attach_args args = {.name = "away", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach, &args))
        return;
    uint32_t slot = lease->mappings[0]->slot;
    lockword_turn_back(&reader->words[slot]);
    w.hold = true;
    struct ask *locking = ask(&w, alice, reader);
    verb_lock_early(w.core, &locking->call, slot, 1000);
    while (!locking->answers && world_step(&w))
        ;
    w.hold = false;
    uint64_t coming;
    if (outcome(locking, &coming))
        return;
    DO(reader, verb_arrived, slot, 1000);
    verb_released(w.core, reader, slot);
}

static void demotes_what_is_mapped_and_promotes_it(void)
{
    struct lease *lease;

    if (attach_to(alice, reader, "w", HBM_RW, &lease))
        return;
    uint64_t id = lease->id;
    for (unsigned way = 0; way < 2; way++) {
        struct ask *moving = ask(&w, alice, NULL);
        if (way)
            verb_restore(w.core, &moving->call, "w");
        else
            verb_demote(w.core, &moving->call, "w", true);
        world_run(&w);
        client_lets_go(&w, reader);
        end_of(moving);
        lease = lease_get(w.core, id);
        if (*word_of(lease) & LOCKWORD_AWAY && !DO(reader, verb_lock, &lease->mappings[0]->slot, 1, 1000))
            lockword_arrive(word_of(lease), 0);
    }
}

/* What is idle goes for it: "w", "coded", a group of "m". */
static void makes_room(void)
{
    struct alloc_args args = {.size = 3 * 4096, .mode = 0600, .dtype = HBM_U8};
    struct lease *lease;

    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){100, 90};
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    LEASE(&lease, alice, reader, verb_alloc, &args);
    w.core->limits.watermarks[HBM_TIER_DEVICE].high = 0;
    w.device->capacity[HBM_TIER_DEVICE] = 64 * MIB;
}

static void prefetches(void)
{
    OP(verb_offload, "m/layer.0.*", HBM_TIER_HOST, true);
    OP(verb_prefetch, "*");
}

static void says_what_it_uses_next(void)
{
    struct attach_args args = {.name = "away", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach, &args))
        return;
    lockword_turn_back(&reader->words[lease->mappings[0]->slot]);
    for (unsigned i = 0; i < 2; i++) { /* the second finds the first one's operation */
        verb_ahead(w.core, reader, &lease->mappings[0]->slot, 1);
        world_run(&w);
        OP(verb_offload, "away", HBM_TIER_HOST, true);
    }
}

static void keeps_a_window(void)
{
    struct attach_args args = {.name = "m", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach_model, &args))
        return;
    uint32_t slots[] = {lease->mappings[0]->slot, lease->mappings[1]->slot};
    verb_order(w.core, reader, lease->id, 0, slots, 2);
    DO(reader, verb_window, lease->id, 1, true);
    for (unsigned i = 0; i < 2; i++) { /* the second finds the first one's operation */
        lockword_turn_back(&reader->words[slots[i]]);
        verb_released(w.core, reader, slots[i]);
        verb_behind(w.core, reader, slots + i, 1);
        verb_ahead(w.core, reader, slots + 1 - i, 1);
        world_run(&w);
    }
}

static void offloads_and_restores(void)
{
    OP(verb_offload, "w", HBM_TIER_DISK, true);
    OP(verb_offload, "coded", HBM_TIER_HOST, true);
    OP(verb_offload, "m/layer.0.*", HBM_TIER_HOST, true);
    OP(verb_restore, "*");
}

static void has_memory_made_ahead(void)
{
    w.core->limits.host_pool_idle_ms = 5000;
    host_ahead_limit(w.device, 64 * MIB);
    for (unsigned i = 0; i < 10; i++)
        world_pass(&w, 100);
    OP(verb_offload, "w", HBM_TIER_HOST, true);
    host_ahead_limit(w.device, 0);
    world_run(&w);
    assert_int_equal(w.device->pooled, 0);
}

static void puts_a_model_to_sleep(void)
{
    OP(verb_sleep, "m", HBM_TIER_HOST, NULL);
    OP(verb_wake, "m");
}

static void moves_to_a_peer_and_back(void)
{
    OP(verb_offload, "w", HBM_TIER_PEER, false);
    OP(verb_offload, "m/layer.0.*", HBM_TIER_PEER, false);
    OP(verb_offload, "w", HBM_TIER_HOST, true);
    OP(verb_restore, "*");
}

static void drains(void)
{
    OP(verb_drain, "");
    w.device->state = w.peer->state = DEVICE_READY;
}

static void is_cancelled(void)
{
    struct ask *question = ask(&w, alice, NULL);
    uint64_t id;

    w.hold = true;
    verb_sleep(w.core, &question->call, "m", HBM_TIER_DISK, NULL);
    if (!outcome(question, &id)) {
        DO(NULL, verb_op_cancel, id);
        w.hold = false;
        world_run(&w);
        assert_true(op_has_ended(op_get(w.core, id)));
    }
    w.hold = false;
}

const struct scene memory_move_scenes[] = {
    SCENE(moves_what_is_mapped_and_locks_it),
    SCENE(locks_before_the_bytes_are_there),
    SCENE(demotes_what_is_mapped_and_promotes_it),
    SCENE(offloads_and_restores),
    SCENE(moves_to_a_peer_and_back),
    SCENE(prefetches),
    SCENE(says_what_it_uses_next),
    SCENE(keeps_a_window),
    SCENE(puts_a_model_to_sleep),
    SCENE(drains),
    SCENE(makes_room),
    SCENE(has_memory_made_ahead),
    SCENE(is_cancelled),
    {0},
};
