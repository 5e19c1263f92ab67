"""Prefetch: what will be used soon comes back in order, as far as there is room, and nobody has to wait for it."""
import contextlib
import os
import pathlib
import signal

import pytest

from conftest import Daemon
from helpers import (MIB, Program, client, client_program, ctl_done, ctl_json, ctl_refused, fails, hash_of, host_only,
                     load_layers, module_daemon, program, put, serves, settled, shared, sweep, used)
from test_faults_worker import Faulty
from resuming import back
from wire import RO, UNLOCKED

LAYER = MIB // 4  # elements of 1 MiB


def is_stopped(pid):
    """Every thread of it: one may go on for a moment after the signal."""
    states = [path.read_text().rsplit(")", 1)[1].split()[0] for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@contextlib.contextmanager
def stopped_worker(daemon):
    """Jobs that are given to it meanwhile are under way until the end of the block."""
    worker = daemon.rpc("hbm.devices")[0]["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    daemon.wait_for(lambda: is_stopped(worker))
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def tiers(daemon, model="m"):
    """Of its layers, in order."""
    return [row["tier"] for row in sorted(daemon.rpc("hbm.show", {"sel": f"model:{model}"}), key=lambda row: row["name"])]


def running(daemon):
    return [op for op in daemon.rpc("hbm.ops") if op["verb"] == "prefetch" and op["state"] == "running"]


def ended(daemon, op):
    return daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 20})


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_prefetch_brings_a_model_back_and_one_that_is_there_is_done_at_once(shared, tier):
    load_layers(shared, "m", 4)
    before, device = hash_of(shared, "model:m"), used(shared)
    ctl_done(shared, "sleep", "m", "--to", tier)
    rows = ctl_json(shared, "prefetch", "model:m")
    assert [row["name"] for row in rows] == [f"m/layers.{i}.weight" for i in range(4)]
    assert {row["tier"] for row in rows} == {"device"}
    assert tiers(shared) == ["device"] * 4 and used(shared) == device
    assert hash_of(shared, "model:m") == before
    assert "already there, in device" in ctl_done(shared, "prefetch", "model:m")


@pytest.fixture(scope="module")
def small_daemon():
    daemon = Daemon(config="device_bytes = 32MiB\nhost_bytes = 64MiB\nmemory_wait_seconds = 30\n").start()
    yield daemon
    daemon.close()


def test_what_a_prefetch_finds_no_room_for_stays_away_and_is_named(small_daemon):
    """FAULTS 18: it waits for no memory, though an allocation would for half a minute, and evicts nothing."""
    load_layers(small_daemon, "m", 4, 4 * LAYER)
    before = hash_of(small_daemon, "model:m")
    ctl_done(small_daemon, "sleep", "m")
    put(small_daemon, "large", b"l" * 24 * MIB)
    lines = ctl_done(small_daemon, "prefetch", "model:m").splitlines()
    assert lines[0].startswith("model:m: 2 buffers, 8.0 MiB to device")
    assert lines[1:] == [f"m/layers.{i}.weight: left as it is: the device has no room for it" for i in (2, 3)]
    assert tiers(small_daemon) == ["device", "device", "host", "host"]
    ctl_done(small_daemon, "free", "large")
    ctl_done(small_daemon, "prefetch", "model:m")
    assert tiers(small_daemon) == ["device"] * 4 and hash_of(small_daemon, "model:m") == before
    sweep(small_daemon)


def test_a_cancelled_prefetch_leaves_away_what_had_not_come(shared):
    load_layers(shared, "m", 4)
    before = hash_of(shared, "model:m")
    ctl_done(shared, "sleep", "m")
    with shared.operator() as operator:
        with stopped_worker(shared):
            op = ctl_done(shared, "prefetch", "model:m", "--async").strip()
            operator.send({"jsonrpc": "2.0", "id": 1, "method": "hbm.cancel", "params": {"op": op}})
            assert running(shared), "what is in the worker's hands ends first"
        assert operator.receive()["result"]["state"] == "cancelled"
    assert tiers(shared) == ["host"] * 4 and used(shared) == 0
    assert hash_of(shared, "model:m") == before
    ctl_done(shared, "prefetch", "model:m")
    assert tiers(shared) == ["device"] * 4


def test_a_prefetch_ends_with_the_client_that_asked_for_it(shared, client_program):
    """FAULTS 1 and 14: killed in the middle of it."""
    load_layers(shared, "m", 4)
    before = hash_of(shared, "model:m")
    ctl_done(shared, "sleep", "m")
    user = Program(client_program, shared)
    user.ask("open", 0)
    with stopped_worker(shared):
        user.say("op", "prefetch", "model:m")
        op = shared.wait_for(lambda: running(shared))[0]["op"]
        user.kill()
        shared.wait_for(lambda: not shared.rpc("hbm.sessions"))
    assert ended(shared, op)["state"] == "cancelled"
    shared.wait_for(lambda: settled(shared))
    assert tiers(shared) == ["host"] * 4 and used(shared) == 0
    assert hash_of(shared, "model:m") == before


@host_only
def test_a_lock_of_what_is_on_its_way_has_it_with_that_move(shared, program):
    load_layers(shared, "m", 4)
    reader = program(shared)
    reader.ask("model", "m", "ro", 0, 5000)
    before = reader.ask("msum", 0)
    reader.ask("munlock", 0)
    ctl_done(shared, "sleep", "m")
    with stopped_worker(shared):
        op = ctl_done(shared, "prefetch", "model:m", "--async").strip()
        for i in (0, 3):  # on its way, and not yet
            reader.say("mlock", 0, 20000, f"layers.{i}")
            if i == 0:
                os.kill(shared.rpc("hbm.devices")[0]["worker_pid"], signal.SIGCONT)
            reader.hear()
    assert ended(shared, op)["state"] == "done"
    reader.ask("mlock", 0, 0)
    assert reader.ask("msum", 0) == before


def test_a_worker_that_dies_in_a_prefetch_takes_no_byte_with_it(make_daemon):
    """FAULTS 24: what was in its hands stays away, and the prefetch says so."""
    faulty = Faulty("copy:kill:6", make_daemon)
    load_layers(faulty.daemon, "m", 4)
    before = hash_of(faulty.daemon, "model:m")
    ctl_done(faulty.daemon, "sleep", "m")
    ctl_refused(faulty.daemon.ctl("prefetch", "model:m"), 1, "worker died")
    faulty.daemon.wait_for(faulty.ready)
    assert hash_of(faulty.daemon, "model:m") == before and faulty.restarts() == 1
    assert "host" in tiers(faulty.daemon)
    ctl_done(faulty.daemon, "prefetch", "model:m")
    assert tiers(faulty.daemon) == ["device"] * 4 and hash_of(faulty.daemon, "model:m") == before
    sweep(faulty.daemon)


def test_nothing_is_prefetched_to_a_drained_device(make_daemon):
    daemon = make_daemon().start()
    load_layers(daemon, "m", 2)
    ctl_done(daemon, "drain")
    lines = ctl_done(daemon, "prefetch", "model:m").splitlines()
    assert lines == [f"m/layers.{i}.weight: left as it is: its device is drained" for i in (0, 1)]
    assert tiers(daemon) == ["host", "host"]


def test_a_client_prefetches_what_it_may_read(shared, program):
    load_layers(shared, "m", 3)
    ctl_done(shared, "sleep", "m")
    user = program(shared)
    user.ask("op", "prefetch", "model:m")
    assert tiers(shared) == ["device"] * 3
    with fails("NOT_FOUND"):
        user.ask("op", "prefetch", "nothing")


# ---- By declared order ----

def ordered(daemon, program, depth, n=6):
    """A reader that has declared its order, holds nothing locked, and whose model is away; and the sums of its layers."""
    load_layers(daemon, "m", n)
    reader = program(daemon)
    reader.ask("model", "m", "ro", 0, 5000)
    sums = reader.ask("msum", 0)
    reader.ask("morder", 0, depth)
    reader.ask("munlock", 0)
    ctl_done(daemon, "sleep", "m")
    return reader, sums


def comes(daemon, *layers, n=6):
    """These are on the device, and no others."""
    wanted = ["device" if i in layers else "host" for i in range(n)]
    daemon.wait_for(lambda: tiers(daemon) == wanted and not running(daemon))
    return True


@host_only
def test_while_a_layer_is_locked_the_next_ones_come_by_themselves(shared, program):
    """A decode loop, three rounds of it, with what was used sent away behind it."""
    reader, sums = ordered(shared, program, 2)
    last = shared.rpc("hbm.events")[-1]["seq"]
    for turn in range(18):
        at = turn % 6
        reader.ask("mlock", 0, 20000, f"layers.{at}")
        assert comes(shared, *((at + i) % 6 for i in range(3)))
        assert reader.ask("msum", 0)[at] == sums[at]
        reader.ask("munlock", 0, f"layers.{at}")
        ctl_done(shared, "offload", f"m/layers.{at}.weight", "--to", "host", "--force")
    reader.ask("morder", 0, 0)
    reader.ask("mlock", 0, 20000, "layers.4")
    assert comes(shared, 0, 1, 4)
    assert not [event for event in shared.rpc("hbm.events", {"since": last}) if event["name"] == "prefetch"]


@host_only
def test_what_comes_by_order_ends_with_its_client_and_no_byte_is_lost(shared, client_program):
    """FAULTS 1: killed while it is on its way."""
    reader = Program(client_program, shared)
    reader.ask("open", 0)
    reader, _ = ordered(shared, lambda _: reader, 3)
    before = hash_of(shared, "model:m")
    ctl_done(shared, "restore", "m/layers.2.weight")
    with stopped_worker(shared):
        reader.ask("mlock", 0, 20000, "layers.2")
        op = shared.wait_for(lambda: running(shared))[0]["op"]
        reader.kill()
        shared.wait_for(lambda: not shared.rpc("hbm.sessions"))
    assert ended(shared, op)["state"] == "cancelled"
    shared.wait_for(lambda: settled(shared))
    assert comes(shared, 2)
    assert hash_of(shared, "model:m") == before


@host_only
def test_what_comes_by_order_is_asked_for_again_of_the_next_owner(make_daemon, program):
    """FAULTS 26: killed in the middle. A prefetch is not remembered; the next lock asks anew."""
    daemon = make_daemon(supervise=True).start()
    reader, sums = ordered(daemon, program, 2)
    ctl_done(daemon, "restore", "m/layers.0.weight")
    with stopped_worker(daemon):
        reader.ask("mlock", 0, 20000, "layers.0")
        daemon.wait_for(lambda: running(daemon))
        old = daemon.kill9()
    back(daemon, old)
    daemon.wait_for(lambda: [row["state"] for row in daemon.rpc("hbm.sessions")] == ["open"])
    assert comes(daemon, 0)
    reader.ask("mlock", 0, 20000, "layers.0")
    assert comes(daemon, 0, 1, 2)
    reader.ask("mlock", 0, 20000, "layers.1")
    assert reader.ask("msum", 0)[:2] == sums[:2]
    reader.end()


@host_only
def test_an_order_of_ones_own_names_groups(shared, program):
    reader, _ = ordered(shared, program, 1)
    reader.ask("morder", 0, 1, "layers.5", "layers.1")
    reader.ask("mlock", 0, 20000, "layers.5")
    assert comes(shared, 5, 1)
    with fails("NOT_FOUND", "layers.6"):
        reader.ask("morder", 0, 1, "layers.6")


def test_a_flood_of_what_is_used_next_is_one_operation_and_others_are_served(shared, client):
    """FAULTS 9: of slots that are there, of slots that map nothing, and of more than a message has."""
    load_layers(shared, "m", 4)
    client.call("attach_model", name="m", access=RO, flags=UNLOCKED, timeout_ms=5000).close()
    ctl_done(shared, "sleep", "m")
    with stopped_worker(shared):
        for i in range(2000):
            client.send("ahead", serial=0, n=129 if i % 3 == 0 else 128, slots=list(range(i % 7, 128 + i % 7)))
        assert len(shared.wait_for(lambda: running(shared))) == 1
        client.call("device")
        assert len(running(shared)) == 1
    shared.wait_for(lambda: not running(shared))
    assert tiers(shared) == ["device"] * 4
    assert serves(shared)


# ---- What a lock waits ----

def waits(row):
    return row["lock_waits"], row["prefetched_locks"]


@host_only
def test_a_lock_that_waits_and_one_that_a_prefetch_has_helped_are_counted(make_daemon, program):
    daemon = make_daemon().start()
    reader, _ = ordered(daemon, program, 1, 3)
    assert waits(daemon.rpc("hbm.status")) == (0, 0) and "locks that found" not in ctl_done(daemon, "status")
    reader.ask("mlock", 0, 20000, "layers.0")
    assert comes(daemon, 0, 1, n=3)
    reader.ask("mlock", 0, 20000, "layers.1")
    assert comes(daemon, 0, 1, 2, n=3)
    for _ in range(50):  # resident: nothing is asked of the daemon
        reader.ask("mlock", 0, 0, "layers.1")
    with stopped_worker(daemon):
        assert comes(daemon, 0, 1, 2, n=3)
    rows = daemon.rpc("hbm.show", {"sel": "model:m"})
    assert [waits(row) for row in rows] == [(1, 0), (0, 1), (0, 0)]
    assert [waits(row) for row in daemon.rpc("hbm.models")] == [(1, 1)]
    assert waits(daemon.rpc("hbm.status")) == (1, 1)
    assert rows[1]["lock_wait_seconds"] == rows[2]["lock_wait_seconds"] == 0
    reader.end()


@host_only
def test_what_a_lock_waits_is_told_with_its_time(make_daemon, program):
    daemon = make_daemon().start()
    reader, _ = ordered(daemon, program, 0, 2)
    with stopped_worker(daemon):
        reader.say("mlock", 0, 20000, "layers.1")
        daemon.wait_for(lambda: [op for op in daemon.rpc("hbm.ops") if op["verb"] == "restore" and op["seconds"] >= 0.05])
    reader.hear()
    row = daemon.rpc("hbm.show", {"sel": "m/layers.1.weight"})[0]
    model, status = daemon.rpc("hbm.models")[0], daemon.rpc("hbm.status")
    assert row["lock_wait_seconds"] >= 0.05
    assert row["lock_wait_seconds"] == model["lock_wait_seconds"] == status["lock_wait_seconds"]
    assert "locks that found memory away 1, and took" in ctl_done(daemon, "status")
    assert "1 for " in ctl_done(daemon, "models") and "lock_wait_seconds" in ctl_done(daemon, "show", "m/layers.1.weight")
    reader.end()
