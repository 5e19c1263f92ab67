"""A large copy over the links of idle neighbours too (FAULTS 21, 24): all of it or nothing, with one checksum."""
import os

import pytest

from helpers import MIB, client_program, ctl_done, ctl_json, ctl_refused, fails, get, hash_of, host_only, program, put, serves, tier_of
from peers import TWO, THREE, devices, ready, used_on
from test_faults_worker import Faulty
from test_peer import extent_of, fresh_workers
from test_restart import kill_and_wait
from test_workers import Switched

DATA = os.urandom(9 * MIB + 12345)
SPLIT = "split_bytes = 4MiB\n"


def links_of(daemon, verb, *words):
    """How many the operation went over."""
    op = ctl_json(daemon, verb, *words, "--async")["op"]
    row = daemon.rpc("hbm.wait", {"op": op})
    assert row["state"] == "done", row
    return row.get("links")


@host_only
@pytest.mark.parametrize("config, n", [(TWO + SPLIT, 2), (THREE + SPLIT, 3), (TWO, None), (TWO + "split_bytes = 0\n", None), (SPLIT, None)],
                         ids=["two", "three", "too small", "switched off", "alone"])
def test_a_large_copy_goes_over_as_many_links_as_are_idle(make_daemon, config, n):
    daemon = make_daemon(config=config).start()
    daemon.wait_for(lambda: all(row["worker_pid"] and row["state"] == "ready" for row in devices(daemon).values()))
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    for _ in range(2):
        assert links_of(daemon, "offload", "w", "--to", "host") == n
        assert tier_of(daemon, "w") == "host" and hash_of(daemon, "w") == before
        assert links_of(daemon, "restore", "w") == n
        assert tier_of(daemon, "w") == "device" and hash_of(daemon, "w") == before
    assert get(daemon, "w") == DATA
    assert all(used_on(daemon, uuid) == 0 for uuid in devices(daemon) if uuid != "host")


@host_only
def test_what_one_link_stored_comes_back_over_two_and_the_other_way(make_daemon):
    daemon = make_daemon(supervise=True, config=TWO + "split_bytes = 0\n").start()
    conf = daemon.home / "hbmd.conf"
    put(daemon, "w", DATA)
    for split, down, up in ((4, None, 2), (0, 2, None)):
        assert links_of(daemon, "offload", "w", "--to", "host") == down
        conf.write_text(TWO + f"split_bytes = {split}MiB\n")
        kill_and_wait(daemon)
        ready(daemon)
        assert links_of(daemon, "restore", "w") == up
        assert get(daemon, "w") == DATA


def struck_on(monkeypatch, make_daemon, device, fault, config=""):
    """A daemon of two devices, and what that one's worker does once, when the flag is away."""
    monkeypatch.setenv("HBM_WORKER_FAULT_DEVICE", device)
    struck = Faulty(fault, lambda: make_daemon(config=TWO + SPLIT + "memory_wait_seconds = 0\n" + config))
    struck.flag.touch()
    ready(struck.daemon)
    put(struck.daemon, "w", DATA)
    return struck, struck.daemon


def balanced(daemon):
    """Its memory is all that is used, wherever that lies, and nothing of the neighbour's."""
    tier = tier_of(daemon, "w")
    return used_on(daemon, "host-1") == 0 and all((used_on(daemon, "host", each) >= len(DATA)) == (each == tier) for each in ("device", "host"))


@host_only
@pytest.mark.parametrize("action", ["kill", "io", "nomem"])
@pytest.mark.parametrize("when", ["", "@1"], ids=["before", "in the middle"])
def test_what_a_neighbour_fails_to_copy_goes_over_the_own_link(make_daemon, monkeypatch, action, when):
    """FAULTS 24: two devices of which one fails. Its worker is one of two that the copy needs, and it goes on without."""
    struck, daemon = struck_on(monkeypatch, make_daemon, "host-1", f"copy:{action}:1{when}")
    before = hash_of(daemon, "w")
    for words in (["offload", "w", "--to", "host"], ["restore", "w"]):
        fresh_workers(daemon)
        struck.flag.unlink(missing_ok=True)
        restarts = devices(daemon)["host-1"]["worker_restarts"]
        assert links_of(daemon, *words) == 2 and struck.flag.exists()
        daemon.wait_for(lambda n=restarts: devices(daemon)["host-1"]["worker_restarts"] == n + (action == "kill"), 20)
        ready(daemon)
        assert hash_of(daemon, "w") == before and balanced(daemon)
    assert daemon.log.count("cannot help with a copy") == 2
    assert get(daemon, "w") == DATA and serves(daemon)


@host_only
@pytest.mark.parametrize("action", ["kill", "io", "nomem"])
@pytest.mark.parametrize("verb", ["offload", "restore"])
def test_a_worker_that_fails_in_its_own_part_leaves_all_where_it_was(make_daemon, monkeypatch, verb, action):
    """FAULTS 24."""
    struck, daemon = struck_on(monkeypatch, make_daemon, "host", f"copy:{action}:1")
    if verb == "restore":
        ctl_done(daemon, "offload", "w", "--to", "host")
    before, tier = hash_of(daemon, "w"), tier_of(daemon, "w")
    words = ["offload", "w", "--to", "host"] if verb == "offload" else ["restore", "w"]
    fresh_workers(daemon)
    struck.flag.unlink()
    restarts = devices(daemon)["host"]["worker_restarts"]
    assert daemon.ctl(*words).returncode == 1 and struck.flag.exists()
    daemon.wait_for(lambda: devices(daemon)["host"]["worker_restarts"] == restarts + (action == "kill"), 20)
    ready(daemon)
    assert tier_of(daemon, "w") == tier and hash_of(daemon, "w") == before and balanced(daemon)
    ctl_done(daemon, *words)
    assert get(daemon, "w") == DATA and serves(daemon)


@host_only
def test_a_neighbour_that_hangs_fails_the_copy_whole(make_daemon, monkeypatch):
    """FAULTS 24: what it was to write it might still write, when the memory is somebody's."""
    struck, daemon = struck_on(monkeypatch, make_daemon, "host-1", "copy:hang:1", "worker_patience_seconds = 1\n")
    before = hash_of(daemon, "w")
    for words in (["offload", "w", "--to", "host"], ["restore", "w"]):
        fresh_workers(daemon)
        struck.flag.unlink()
        tier = tier_of(daemon, "w")
        ctl_refused(daemon.ctl(*words), 1, "worker died")
        ready(daemon)
        assert tier_of(daemon, "w") == tier and hash_of(daemon, "w") == before and balanced(daemon)
        assert links_of(daemon, *words) == 2 and hash_of(daemon, "w") == before
    assert get(daemon, "w") == DATA


@host_only
def test_a_neighbour_that_is_lost_in_the_middle_is_done_without_and_keeps_what_lies_there(make_daemon, monkeypatch):
    """FAULTS 24: two devices of which one is lost. Each other's memory is as it was, and the books are balanced."""
    monkeypatch.setenv("HBM_WORKER_FAULT_DEVICE", "host-1")
    switched = Switched(make_daemon, TWO + SPLIT)
    daemon = switched.daemon
    ready(daemon)
    put(daemon, "w", DATA), put(daemon, "there", DATA[:MIB])
    ctl_done(daemon, "offload", "there", "--to", "peer")
    before, on_peer = hash_of(daemon, "w"), used_on(daemon, "host-1")
    switched.mood.write_text("copy:kill:1@1")
    fresh_workers(daemon)
    daemon.wait_for(lambda: devices(daemon)["host-1"]["worker_ended"]["served_again_after"])  # it has read its mood
    switched.mood.write_text("start:kill")
    assert links_of(daemon, "offload", "w", "--to", "host") == 2
    daemon.wait_for(lambda: devices(daemon)["host-1"]["state"] == "failed", 60)
    assert hash_of(daemon, "w") == before
    assert links_of(daemon, "restore", "w") is None and links_of(daemon, "offload", "w", "--to", "host") is None
    assert used_on(daemon, "host-1") == on_peer and used_on(daemon, "host") == 0
    switched.mood.write_text("")
    ready(daemon)
    ctl_done(daemon, "restore", "there")
    assert links_of(daemon, "restore", "w") == 2
    assert get(daemon, "w") == DATA and get(daemon, "there") == DATA[:MIB]
    assert used_on(daemon, "host-1") == used_on(daemon, "host", "host") == 0 and serves(daemon)


@host_only
def test_a_flipped_bit_in_either_half_is_a_checksum_error(make_daemon):
    """FAULTS 21."""
    daemon = make_daemon(config=TWO + SPLIT).start()
    ready(daemon)
    put(daemon, "w", DATA)
    ctl_done(daemon, "offload", "w", "--to", "host")
    size = used_on(daemon, "host", "host")
    with open(extent_of(daemon, size), "r+b", buffering=0) as memory:
        for at in (100, len(DATA) - 100):
            for bit, ends in ((1, "CHECKSUM"), (1, None)):
                memory.seek(at)
                byte = memory.read(1)
                memory.seek(at)
                memory.write(bytes([byte[0] ^ bit]))
                if ends:
                    with fails(ends):
                        daemon.rpc("hbm.restore", {"sel": "w"})
                    assert tier_of(daemon, "w") == "host" and used_on(daemon, "host") == 0
    assert links_of(daemon, "restore", "w") == 2 and get(daemon, "w") == DATA


@host_only
def test_a_lock_brings_its_memory_back_over_both(make_daemon, program):
    daemon = make_daemon(config=TWO + SPLIT).start()
    ready(daemon)
    holder = program(daemon)
    lease, _, _ = holder.alloc("w", 12 * MIB)
    holder.ask("fill", lease, 7)
    before = holder.ask("sum", lease)
    for _ in range(3):
        holder.ask("unlock", lease)
        ctl_done(daemon, "offload", "w", "--to", "host")
        holder.ask("lock", lease, 10000)
        assert holder.ask("sum", lease) == before and tier_of(daemon, "w") == "device"
