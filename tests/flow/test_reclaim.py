"""Clients that hold on, operations that meet, and memory that is short (FAULTS 13, 14, 16, 18, 22, 23)."""
import os

import pytest

from conftest import Daemon
from helpers import (ERRORS, MIB, Client, child, client, client_program, ctl_done, ctl_json, ctl_refused, hash_of, host_only, load_layers,
                     module_daemon, program, put, refused, shared, sweep, tier_of, used)
from wire import KEEP, LOCK_RECLAIM, RO


@pytest.fixture(scope="module")
def quick_daemon():
    """Clients have no long time to let go, and there is little room, which nothing is moved away for."""
    daemon = Daemon(config="device_bytes = 16MiB\nhost_bytes = 64MiB\ndisk_bytes = 64MiB\nreclaim_seconds = 0.3\n"
                           "memory_wait_seconds = 0.2\ndevice_high = 0\n").start()
    yield daemon
    daemon.close()


@pytest.fixture
def quick(quick_daemon):
    yield quick_daemon
    quick_daemon.check()
    sweep(quick_daemon)


@host_only
def test_a_locked_arena_stays_and_the_refusal_names_the_pid(quick, program):
    """FAULTS 13, 16."""
    holder = program(quick)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 42)
    wrote = holder.ask("sum", lease)
    for command in (["offload", "w", "--to", "host"], ["free", "w"]):
        ctl_refused(quick.ctl(*command), 1, holder.process.pid)
    assert tier_of(quick, "w") == "device" and holder.ask("sum", lease) == wrote
    holder.ask("unlock", lease)
    ctl_done(quick, "offload", "w", "--to", "host")
    assert tier_of(quick, "w") == "host" and used(quick) == 0
    holder.ask("lock", lease, 5000)
    assert holder.ask("pointer", lease) == [address] and holder.ask("sum", lease) == wrote
    assert tier_of(quick, "w") == "device" and used(quick, "host") == 0
    holder.ask("detach", lease)


def test_a_compression_of_what_another_has_locked_is_refused_by_pid(quick):
    """FAULTS 13."""
    with Client(quick.socket) as link:
        link.hello()
        link.alloc(4096, "w", dtype=11, rank=1, dims=[1024])
        ctl_refused(quick.ctl("compress", "w", "--codec", "fp16"), 1, os.getpid())


@host_only
def test_a_reclaim_in_the_middle_of_a_step_waits_for_the_unlock(shared, program):
    """FAULTS 16: a lock goes on succeeding, the move comes when the count is 0."""
    holder = program(shared)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 1)
    op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
    assert ctl_json(shared, "ops")[-1]["state"] == "running"
    holder.ask("lock", lease, 1000)
    holder.ask("unlock", lease)
    assert tier_of(shared, "w") == "device"
    holder.ask("unlock", lease)
    ctl_done(shared, "wait", op)
    assert tier_of(shared, "w") == "host"
    holder.ask("lock", lease, 5000)
    assert holder.ask("pointer", lease) == [address] and holder.ask("peek", lease, 5) == ["1"]


@host_only
def test_a_safe_point_lets_go_of_all_and_takes_all_back(shared, program):
    """FAULTS 16."""
    holder = program(shared)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 3)
    holder.ask("safepoint", 1000)
    op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
    holder.ask("safepoint", 10000)
    assert holder.ask("pointer", lease) == [address] and holder.ask("peek", lease, 9) == ["3"]
    shared.ctl("wait", op)
    assert tier_of(shared, "w") == "device"


def test_a_client_that_never_reaches_a_safe_point_is_named_and_nothing_moved(quick):
    """FAULTS 16: the deadline is reclaim_seconds."""
    with Client(quick.socket) as link:
        link.hello()
        grant, _ = link.alloc(4096, "w")
        op = link.call("offload", sel="w", tier=1).fields["op"]
        end = link.call("op_wait", op=op, timeout_ms=10000).fields
        assert end["error"] == ERRORS["BUSY"] and str(os.getpid()) in end["detail"]
        assert not link.word(grant["slot"]) & LOCK_RECLAIM
        assert tier_of(quick, "w") == "device"


def test_a_reader_that_dies_in_a_reclaim_frees_the_move(shared, child):
    put(shared, "w", b"w" * MIB)

    def hold(say):
        link = Client(shared.socket)
        link.hello()
        grant, _ = link.attach("w")
        say()
        return link

    kept = []
    holder = child(lambda say: kept.append(hold(say)))
    holder.heard()
    op = ctl_done(shared, "offload", "w", "--to", "host", "--async").strip()
    holder.kill()
    ctl_done(shared, "wait", op)
    assert tier_of(shared, "w") == "host"


def test_a_lock_with_no_time_and_one_of_many_that_does_not_fit_take_nothing(quick):
    """FAULTS 16: bounded, and all or nothing."""
    with Client(quick.socket) as link:
        link.hello()
        grants = [link.alloc(5 * MIB, f"w{i}", flags=KEEP)[0] for i in range(2)]
        for grant in grants:
            link.unlock(grant["slot"])
            op = link.call("offload", sel=f"id:0x{grant['buffer']:x}", tier=1).fields["op"]
            link.let_go_when_asked(grant["slot"])
            link.call("op_wait", op=op, timeout_ms=5000)
            assert tier_of(quick, f"w{grants.index(grant)}") == "host"
        hog, _ = link.alloc(10 * MIB, "hog")
        with refused("TIMEOUT"):
            link.call("lock", n=2, slots=[grant["slot"] for grant in grants], timeout_ms=0)
        with refused("NO_MEMORY"):
            link.call("lock", n=2, slots=[grant["slot"] for grant in grants], timeout_ms=5000)
        assert {tier_of(quick, f"w{i}") for i in range(2)} == {"host"}
        link.call("detach", lease=hog["lease"])
        link.call("lock", n=2, slots=[grant["slot"] for grant in grants], timeout_ms=5000)
        assert {tier_of(quick, f"w{i}") for i in range(2)} == {"device"}


# ---- Two at once, cancels, no room ----

def test_a_group_restore_without_room_for_all_restores_none(quick):
    """FAULTS 22: the source tier is intact."""
    load_layers(quick, "m", 3, MIB)
    before = hash_of(quick, "model:m")
    ctl_done(quick, "sleep", "m")
    put(quick, "hog", b"h" * (7 * MIB))
    ctl_refused(quick.ctl("wake", "m"), 1, "memory")
    assert {row["tier"] for row in quick.rpc("hbm.ls", {"glob": "m/*"})} == {"host"}
    assert used(quick) <= 8 * MIB and used(quick, "host") >= 12 * MIB
    assert hash_of(quick, "model:m") == before
    ctl_done(quick, "free", "hog")
    ctl_done(quick, "wake", "m")
    assert hash_of(quick, "model:m") == before


def test_an_allocation_waits_for_memory_and_then_is_refused(quick):
    """FAULTS 18 on the host device: bounded, typed, nothing half-allocated."""
    put(quick, "hog", b"h" * (12 * MIB))
    with Client(quick.socket) as link:
        link.hello()
        with refused("NO_MEMORY"):
            link.alloc(8 * MIB, "w")
        serial = link.send("alloc", spec={"size": 8 * MIB, "device": 0, "mode": 0o600, "name": "w"})
        ctl_done(quick, "free", "hog")
        link.reply(serial).close()
    with Client(quick.socket) as link:
        link.hello()
        with refused("TOO_LARGE"):
            link.alloc(17 * MIB)


def test_two_operations_on_one_buffer_never_meet(shared, client):
    """FAULTS 14, 23: the second is refused by the first's id, or finds its work done."""
    put(shared, "w", os.urandom(8 * MIB))
    before = hash_of(shared, "w")
    refused_ends = 0
    for _ in range(20):
        ops = [client.send("offload", sel="w", tier=2), client.send("restore", sel="w"), client.send("offload", sel="w", tier=1)]
        ids = []
        for serial in ops:
            ids.append(client.reply(serial).fields["op"])
        ends = [client.call("op_wait", op=op, timeout_ms=20000).fields for op in ids]
        assert all(end["error"] in (0, ERRORS["BUSY"]) for end in ends), ends
        assert all("operation 0x" in end["detail"] for end in ends if end["error"])
        refused_ends += sum(end["error"] != 0 for end in ends)
    assert refused_ends, "in twenty rounds no two were ever under way at once"
    assert hash_of(shared, "w") == before


def test_an_offload_that_is_cancelled_moves_nothing(shared):
    """FAULTS 14."""
    with Client(shared.socket) as link:
        link.hello()
        link.alloc(MIB, "w")
        op = ctl_done(shared, "offload", "w", "--to", "disk", "--async").strip()
        ctl_done(shared, "cancel", op)
        assert [row["state"] for row in shared.rpc("hbm.ops") if row["op"] == op] == ["cancelled"]
        ctl_refused(shared.ctl("wait", op), 1, "cancelled")
        assert tier_of(shared, "w") == "device" and used(shared, "disk") == 0


def test_a_waiting_lock_calls_off_an_offload_that_waits_for_others(shared, client):
    """FAULTS 16: a move that is not committed gives way to who wants to work."""
    mine, _ = client.alloc(MIB, "w")
    with Client(shared.socket) as other:
        other.hello()
        other.attach("w")
        op = other.call("offload", sel="w", tier=1).fields["op"]
        client.unlock(mine["slot"])
        serial = client.send("lock", n=1, slots=[mine["slot"]], timeout_ms=3000)
        assert client.reply(serial).fields["fetched"][0] == 1
        end = other.call("op_wait", op=op, timeout_ms=3000).fields
        assert end["error"] == ERRORS["CANCELLED"] and "lock" in end["detail"]
    assert tier_of(shared, "w") == "device"


def test_a_disconnect_cancels_the_clients_own_operations(shared, client):
    """FAULTS 14."""
    client.alloc(MIB, "w")
    with Client(shared.socket) as asker:
        asker.hello()
        op = asker.call("offload", sel="w", tier=1).fields["op"]
    state = shared.wait_for(lambda: [row["state"] for row in shared.rpc("hbm.ops") if row["op"] == f"0x{op:016x}"
                                     and row["state"] != "running"])
    assert state == ["cancelled"] and tier_of(shared, "w") == "device"


def test_an_offload_while_others_attach_ends_well_for_all(shared, client):
    """FAULTS 23."""
    put(shared, "w", os.urandom(4 * MIB))
    before = hash_of(shared, "w")
    for _ in range(10):
        asked = [client.send("offload", sel="w", tier=1)]
        serial = client.send("attach", name="w", access=RO, timeout_ms=20000)
        op = client.reply(asked[0]).fields["op"]
        packet = client.reply(serial)
        grant = packet.fields["grant"]
        packet.close()
        assert grant["present"] == 1
        client.call("detach", lease=grant["lease"])
        client.call("op_wait", op=op, timeout_ms=20000)
    assert hash_of(shared, "w") == before


def test_a_drain_names_what_it_moves_as_ls_does(make_daemon):
    daemon = make_daemon().start()
    put(daemon, "idle", b"i" * MIB)
    assert [row["name"] for row in daemon.rpc("hbm.drain")] == [row["name"] for row in daemon.rpc("hbm.ls")] == ["idle"]


def test_a_drained_device_grants_nothing_new_and_its_idle_buffers_are_on_the_host(make_daemon):
    daemon = make_daemon().start()
    put(daemon, "idle", b"i" * MIB)
    with Client(daemon.socket) as link:
        link.hello()
        link.alloc(4096, "leased")
        moved = ctl_done(daemon, "drain", "--device", "0")
        assert moved.startswith("device 0: 1 buffer, 1.0 MiB to host in ")
        assert tier_of(daemon, "idle") == "host" and tier_of(daemon, "leased") == "device"
        with refused("DRAINED"):
            link.alloc(4096)
        with refused("DRAINED"):
            link.attach("idle")
    assert daemon.rpc("hbm.devices")[0]["state"] == "drained"
