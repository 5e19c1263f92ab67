"""A model sleeps and wakes under its clients: layer by layer in the order of use, each usable as soon as it is there."""
import os
import signal

import pytest

from helpers import (client_program, ctl_done, ctl_refused, fails, hash_of, host_only, load_layers, module_daemon, program, shared,
                     sweep, used)
from test_faults_worker import Faulty
from test_prefetch import tiers

N = 4


def reader_of(daemon, program):
    """One that has the model attached, and nothing of it locked; and what it read there."""
    load_layers(daemon, "m", N)
    reader = program(daemon)
    reader.ask("model", "m", "ro", 0, 20000)
    sums = reader.ask("msum", 0)
    reader.ask("munlock", 0)
    return reader, sums


def kill_worker(daemon):
    os.kill(daemon.rpc("hbm.devices")[0]["worker_pid"], signal.SIGKILL)


@host_only
def test_a_lock_of_the_first_layer_is_granted_while_the_others_are_on_their_way(make_daemon, program):
    """FAULTS 24: the worker hangs with the second copy in its hands, and dies of it. What has come is usable, the rest where it was."""
    faulty = Faulty(f"copy:hang:{N + 2}", make_daemon)
    daemon = faulty.daemon
    reader, sums = reader_of(daemon, program)
    before = hash_of(daemon, "model:m")
    ctl_done(daemon, "sleep", "m")
    op = daemon.rpc("hbm.wake", {"model": "m", "async": True})["op"]
    daemon.wait_for(faulty.flag.exists)
    daemon.wait_for(lambda: [row for row in daemon.rpc("hbm.ops") if row["op"] == op and row["detail"] == "3 of 4 groups are there"])
    hung = tiers(daemon).index("host")  # one of the first two, which are copied side by side
    first = 1 - hung
    assert hung in (0, 1)
    reader.ask("mlock", 0, 20000, f"layers.{first}")
    assert reader.ask("msum", 0, first)[0] == sums[first]
    [row] = [row for row in daemon.rpc("hbm.ops") if row["op"] == op]
    assert row["state"] == "running"
    kill_worker(daemon)
    ended = daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 20})
    assert ended["error"] == "WORKER_DIED" and "3 of 4 groups are back" in ended["detail"]
    daemon.wait_for(faulty.ready)
    assert tiers(daemon) == ["host" if i == hung else "device" for i in range(N)]
    assert hash_of(daemon, "model:m") == before
    ctl_done(daemon, "wake", "m")
    reader.ask("mlock", 0, 0)
    assert reader.ask("msum", 0) == sums
    reader.end()
    sweep(daemon)


@host_only
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_sleeping_and_waking_twice_is_once(shared, program, tier):
    """Same pointers, same bytes; what it says the second time is where the model is already."""
    reader, sums = reader_of(shared, program)
    for _ in range(2):
        ctl_done(shared, "sleep", "m", "--to", tier)
        assert f"already there, {'in' if tier == 'host' else 'on'} {tier}" in ctl_done(shared, "sleep", "m", "--to", tier)
        assert tiers(shared) == [tier] * N and used(shared) == 0
        ctl_done(shared, "wake", "m")
        assert "already there, in device" in ctl_done(shared, "wake", "m")
        reader.ask("mlock", 0, 0)
        assert reader.ask("msum", 0) == sums
        reader.ask("munlock", 0)


@host_only
def test_a_model_goes_from_one_tier_to_the_other_in_its_sleep(shared, program):
    reader, sums = reader_of(shared, program)
    ctl_done(shared, "sleep", "m", "--to", "host")
    ctl_done(shared, "sleep", "m", "--to", "disk")
    assert tiers(shared) == ["disk"] * N
    reader.ask("mlock", 0, 20000)  # which is what wakes it
    assert tiers(shared) == ["device"] * N
    assert reader.ask("msum", 0) == sums


@host_only
def test_a_model_of_which_one_layer_is_locked_does_not_sleep_and_says_who_has_it(make_daemon, program):
    """FAULTS 13"""
    daemon = make_daemon(config="reclaim_seconds = 1\n").start()
    reader, sums = reader_of(daemon, program)
    reader.ask("mlock", 0, 0, "layers.2")
    ctl_refused(daemon.ctl("sleep", "m"), 1, f"pid {reader.process.pid}")
    assert tiers(daemon) == ["device"] * N
    assert reader.ask("msum", 0, 2)[0] == sums[2]
    reader.ask("munlock", 0, "layers.2")
    ctl_done(daemon, "sleep", "m")
    reader.end()


@host_only
@pytest.mark.parametrize("nth", range(1, N + 1))
def test_a_worker_that_dies_in_a_wake_takes_no_byte_with_it(make_daemon, program, nth):
    """FAULTS 24: killed at each of its copies."""
    faulty = Faulty(f"copy:kill:{N + nth}", make_daemon)
    reader, sums = reader_of(faulty.daemon, program)
    before = hash_of(faulty.daemon, "model:m")
    ctl_done(faulty.daemon, "sleep", "m")
    result = faulty.daemon.ctl("wake", "m")
    assert result.returncode == 1 and "worker died" in result.stderr, result.stderr
    faulty.daemon.wait_for(faulty.ready)
    assert hash_of(faulty.daemon, "model:m") == before and faulty.restarts() == 1
    ctl_done(faulty.daemon, "wake", "m")
    reader.ask("mlock", 0, 0)
    assert reader.ask("msum", 0) == sums
    reader.end()
    sweep(faulty.daemon)


@host_only
def test_the_first_layers_of_the_declared_order_wake_first(make_daemon, program):
    """Told by a worker that hangs with the third copy of the wake in its hands: two have begun before."""
    faulty = Faulty(f"copy:hang:{N + 3}", make_daemon)
    daemon = faulty.daemon
    reader, sums = reader_of(daemon, program)
    reader.ask("morder", 0, 0, "layers.3", "layers.1")
    ctl_done(daemon, "sleep", "m")
    op = daemon.rpc("hbm.wake", {"model": "m", "async": True})["op"]
    daemon.wait_for(faulty.flag.exists)
    for layer in (3, 1):
        reader.ask("mlock", 0, 20000, f"layers.{layer}")
        assert reader.ask("msum", 0, layer)[0] == sums[layer]
    daemon.wait_for(lambda: tiers(daemon).count("host") == 1)
    hung = tiers(daemon).index("host")
    assert hung in (0, 2)
    with fails("TIMEOUT"):
        reader.ask("mlock", 0, 50, f"layers.{hung}")
    kill_worker(daemon)
    assert daemon.rpc("hbm.wait", {"op": op, "timeout_seconds": 20})["error"] == "WORKER_DIED"
    daemon.wait_for(faulty.ready)
    ctl_done(daemon, "wake", "m")
    assert tiers(daemon) == ["device"] * N
    reader.end()
