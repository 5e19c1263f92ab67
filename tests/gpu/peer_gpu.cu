/* Buffers that lie in another GPU's memory and come back, against a running daemon: `peer_gpu RUNTIME_DIR`. FAULTS 18, 22, 24. Wants
 * two GPUs; where they do not reach each other's memory, that this is said is what is tested. A line a result; 77: fewer than two. */
#include "tests/gpu/gpu_test.h"

static unsigned other; /* the second GPU, by the daemon's index */

static std::string device_row(unsigned index)
{
    return row_of(ask("hbm.devices"), "\"index\":" + std::to_string(index) + ",");
}

/* Once what has been let go of is given back. */
static uint64_t used_on(unsigned index)
{
    std::string row = device_row(index);

    for (double start = now_ms(); tier_in(row, "device", "closing") && now_ms() - start < 5000; row = device_row(index))
        sleep_ms(1);
    return tier_in(row, "device", "used");
}

static bool find_other(hbm_session *session)
{
    struct hbm_device_info info;

    for (int i = 0; i < hbm_device_count(session); i++)
        if ((unsigned)i != device && !hbm_device_get(session, (unsigned)i, &info) && info.is_cuda && info.ready) {
            other = (unsigned)i;
            return true;
        }
    return false;
}

static bool is_reached()
{
    std::string peers = device_row(device);
    size_t at = peers.find("\"peers\":[");

    return at != std::string::npos && peers.substr(at, peers.find(']', at) - at).find(text_in(device_row(other), "uuid")) != std::string::npos;
}

static void there_and_back(hbm_session *session, uint64_t size)
{
    struct hbm_spec spec = spec_of("peer.one", size);
    uint64_t here = used_on(device), there = used_on(other);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 3, size) && hbm_detach(lease) == 0,
               "18: a buffer of %llu bytes", (unsigned long long)size))
        return;
    uint64_t taken = used_on(device) - here;
    std::string before = hashes(spec.name);
    double start = now_ms();
    check(hbm_offload(session, spec.name, HBM_TIER_PEER, 0, nullptr) == 0, "18: it goes to the other GPU");
    note("18: %.1f MiB to a peer at %.1f GB/s", (double)size / MIB, (double)size / 1e6 / (now_ms() - start));
    check(tier_of(spec.name) == "peer" && used_on(device) == here && used_on(other) == there + taken,
          "18: its bytes are counted there, and here no more");
    check(hashes(spec.name) == before, "18: the daemon's hash of it, where it lies, is the same");
    start = now_ms();
    check(hbm_restore(session, spec.name, nullptr) == 0, "18: it comes back");
    note("18: and back at %.1f GB/s", (double)size / 1e6 / (now_ms() - start));
    check(used_on(device) == here + taken && used_on(other) == there, "18: nothing of it is left there");
    if (check(hbm_attach(session, spec.name, HBM_RW, 0, 10000, &lease) == 0 && has_pattern(hbm_pointer(lease), 3, size), "18: with its bytes"))
        put_away(session, lease);
}

/* From each tier to the peer and from there to each tier. */
static void by_every_way(hbm_session *session)
{
    static const enum hbm_tier way[] = {HBM_TIER_PEER, HBM_TIER_HOST, HBM_TIER_PEER, HBM_TIER_DISK, HBM_TIER_PEER};
    struct hbm_spec spec = spec_of("peer.ways", 40 * MIB + 5);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 5, spec.size) && hbm_detach(lease) == 0,
               "18: a buffer"))
        return;
    std::string before = hashes(spec.name);
    for (enum hbm_tier tier : way)
        check(hbm_offload(session, spec.name, tier, 0, nullptr) == 0 && tier_of(spec.name) == hbm_tier_name(tier) &&
                  hashes(spec.name) == before,
              "18: on its way to %s it stays the same", hbm_tier_name(tier));
    if (check(hbm_attach(session, spec.name, HBM_RW, 0, 10000, &lease) == 0 && has_pattern(hbm_pointer(lease), 5, spec.size),
              "18: and comes back from the peer to whoever attaches it"))
        put_away(session, lease);
}

static void under_a_lease(hbm_session *session)
{
    struct hbm_spec spec = spec_of("peer.leased", 64 * MIB);
    void *streams[] = {nullptr};
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 7, spec.size), "18: a leased buffer"))
        return;
    void *address = hbm_pointer(lease);
    bool good = true;
    uint64_t there = used_on(other);
    for (unsigned i = 0; i < 10 && good; i++)
        good = hbm_unlock(lease, streams, 1) == 0 && hbm_offload(session, spec.name, HBM_TIER_PEER, 0, nullptr) == 0 &&
               hbm_lock(lease, 10000) == 0 && hbm_pointer(lease) == address && has_pattern(address, 7, spec.size);
    check(good, "18: ten times to the peer and back by a lock: the same address, the same bytes");
    check(used_on(other) == there, "18: nothing is left there");
    put_away(session, lease);
}

/* FAULTS 24: of both devices, one after the other; what lies with the peer stays. */
static void workers_die(hbm_session *session)
{
    struct hbm_spec spec = spec_of("peer.workers", 24 * MIB);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 9, spec.size) && hbm_detach(lease) == 0 &&
                   hbm_offload(session, spec.name, HBM_TIER_PEER, 0, nullptr) == 0,
               "24: a buffer lies with the peer"))
        return;
    std::string before = hashes(spec.name);
    for (unsigned index : {device, other}) {
        uint64_t restarts = number_in(device_row(index), "worker_restarts");
        kill((pid_t)number_in(device_row(index), "worker_pid"), SIGKILL);
        for (double start = now_ms(); now_ms() - start < 30000 && (number_in(device_row(index), "worker_restarts") == restarts ||
                                                                  text_in(device_row(index), "state") != "ready");)
            sleep_ms(5);
        check(hashes(spec.name) == before, "24: its bytes are there after a worker of device %u was killed", index);
    }
    if (check(hbm_attach(session, spec.name, HBM_RW, 0, 20000, &lease) == 0 && has_pattern(hbm_pointer(lease), 9, spec.size),
              "24: and it comes back"))
        put_away(session, lease);
}

static void without_access(hbm_session *session)
{
    struct hbm_spec spec = spec_of("peer.none", MIB);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 1, spec.size) && hbm_detach(lease) == 0, "18: a buffer"))
        return;
    check(hbm_offload(session, spec.name, HBM_TIER_PEER, 0, nullptr) == HBM_E_UNSUPPORTED && strstr(hbm_last_error_detail(), "no peer access"),
          "18: GPUs that do not reach each other's memory are no peers, and that is said");
    check(tier_of(spec.name) == "device", "18: it stays where it is");
    if (hbm_attach(session, spec.name, HBM_RW, 0, 5000, &lease) == 0)
        put_away(session, lease);
}

static bool waived;

static void tests(hbm_session *session)
{
    if (!find_other(session)) {
        waived = true;
        return;
    }
    if (!is_reached()) {
        without_access(session);
        return;
    }
    for (uint64_t size : {(uint64_t)1000, 2 * MIB, 33 * MIB + 7, 2 * GIB})
        there_and_back(session, size);
    by_every_way(session);
    under_a_lease(session);
    workers_die(session);
}

static int no_child(hbm_session *, char **)
{
    return 2;
}

int main(int argc, char **argv)
{
    int status = run_program(argc, argv, no_child, tests);

    if (!waived)
        return status;
    printf("waived: the daemon serves one GPU, and this wants two\n");
    return WAIVED;
}
