"""Moves whose client dies at any chunk, whose disk goes away under them, that host memory is short for, or that somebody never lets
go of: after each the hashes are equal and the books balanced (FAULTS 1, 14, 16, 19, 20)."""
import os
import subprocess

import pytest

from helpers import (MIB, Client, child, ctl_done, ctl_refused, empty, get, hash_of, host_only, load_layers, put, root_only, serves, settled,
                     sweep, tier_of, used)
from test_faults_worker import Faulty
from test_links import CHUNK, CHUNKS, DATA, at_every_chunk, begin, configure, fail_everywhere, moved_by, op_of

LAYERS = 4
TIERS = {"host": 1, "disk": 2}


def tiers(daemon):
    return [row["tier"] for row in daemon.rpc("hbm.ls", {"glob": "m/*"})]


# ---- Clients ----

@host_only
@pytest.mark.parametrize("tier", TIERS)
def test_a_move_whose_client_dies_at_any_chunk_has_done_nothing(make_daemon, monkeypatch, child, tier):
    """FAULTS 1 and 14: it was its own operation."""
    daemon = make_daemon()
    held = daemon.home / "held"
    monkeypatch.setenv("HBM_WORKER_FAULT", at_every_chunk("hold"))
    monkeypatch.setenv("HBM_WORKER_FAULT_HELD", str(held))
    daemon.start()
    deaths = 0

    def die(verb, *_):
        nonlocal deaths

        def move(say):
            link = Client(daemon.socket)
            link.hello()
            ops.append(link.call(verb, sel="w", **({"tier": TIERS[tier]} if verb == "offload" else {})).fields["op"])
            say(ops[0])
            kept.append(link)

        ops, kept, seen = [], [], held.stat().st_size if held.exists() else 0
        mover = child(move)
        op = f"0x{int(mover.heard()):016x}"
        daemon.wait_for(lambda: held.exists() and held.stat().st_size > seen)
        assert op_of(daemon, op)["state"] == "running"
        mover.kill()
        daemon.wait_for(lambda: settled(daemon) and op_of(daemon, op)["state"] == "cancelled")
        deaths += 1

    fail_everywhere(daemon, tier, die)
    assert deaths == 2 * CHUNKS


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_a_model_whose_client_never_lets_go_stays_awake_as_a_whole(make_daemon, locked):
    """FAULTS 16: it answers no RECLAIM. The others' layers are where they were, and its own is what it reads."""
    daemon = make_daemon(config="reclaim_seconds = 0.3\n").start()
    load_layers(daemon, "m", LAYERS)
    before, held = hash_of(daemon, "m/*"), used(daemon)
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.attach("m/layers.2.weight")
        if not locked:
            link.unlock(grant["slot"])
        for tier in TIERS:
            ctl_refused(daemon.ctl("sleep", "m", "--to", tier), 1, str(os.getpid()))
            assert tiers(daemon) == ["device"] * LAYERS and hash_of(daemon, "m/*") == before
            assert (used(daemon), empty(daemon, "host"), empty(daemon, "disk")) == (held, True, True)
    daemon.wait_for(lambda: settled(daemon))
    ctl_done(daemon, "sleep", "m")
    assert hash_of(daemon, "m/*") == before
    ctl_done(daemon, "wake", "m")
    assert hash_of(daemon, "m/*") == before and used(daemon) == held
    sweep(daemon)


# ---- Host memory ----

def stays_awake(daemon, before, held, *words):
    ctl_refused(daemon.ctl("sleep", "m"), 1, *words)
    assert tiers(daemon) == ["device"] * LAYERS and hash_of(daemon, "m/*") == before
    assert (used(daemon), empty(daemon, "host")) == (held, True)


@host_only
def test_a_model_that_the_host_tier_is_too_small_for_stays_awake_as_a_whole(make_daemon):
    """FAULTS 19 and 22: room for three layers of four; it has the disk."""
    daemon = make_daemon(config="host_bytes = 3MiB\nmemory_wait_seconds = 0\n").start()
    load_layers(daemon, "m", LAYERS, MIB // 4)
    before, held = hash_of(daemon, "m/*"), used(daemon)
    stays_awake(daemon, before, held, "host tier")
    ctl_done(daemon, "sleep", "m", "--to", "disk")
    assert used(daemon) == 0 and hash_of(daemon, "m/*") == before
    ctl_done(daemon, "wake", "m")
    assert hash_of(daemon, "m/*") == before and used(daemon) == held
    sweep(daemon)


def test_a_model_that_the_machine_is_short_of_memory_for_stays_awake_as_a_whole(make_daemon):
    """FAULTS 19: the tier has room, and the third layer's memory cannot be made."""
    faulty = Faulty(f"create:nomem:{LAYERS + 3}", lambda: make_daemon(config="memory_wait_seconds = 0\n"))
    daemon = faulty.daemon
    load_layers(daemon, "m", LAYERS)
    before, held = hash_of(daemon, "m/*"), used(daemon)
    stays_awake(daemon, before, held, "not enough memory")
    assert faulty.flag.exists()
    ctl_done(daemon, "sleep", "m")
    assert empty(daemon, "device") and hash_of(daemon, "m/*") == before
    ctl_done(daemon, "wake", "m")
    assert hash_of(daemon, "m/*") == before and used(daemon) == held
    sweep(daemon)


# ---- The disk ----

@pytest.fixture
def mounted(make_daemon):
    """A daemon whose state directory is a file system of its own; and what takes that away."""
    daemon = make_daemon(config="# nothing\n")
    daemon.state_dir.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=0700", "none", str(daemon.state_dir)], check=True)
    there = [True]

    def unmount():
        if there:
            there.pop()
            subprocess.run(["umount", "-l", str(daemon.state_dir)], check=True)

    try:
        yield daemon.start(), unmount
        daemon.stop()
    finally:
        unmount()


@host_only
@root_only
@pytest.mark.parametrize("back", [False, True], ids=["offload", "restore"])
def test_a_spill_directory_that_is_unmounted_in_the_middle_of_a_move_loses_nothing(mounted, back):
    """FAULTS 20: what is open stays whole, and what follows is done or refused as a whole."""
    daemon, unmount = mounted
    put(daemon, "w", DATA), put(daemon, "spilled", DATA[:MIB]), put(daemon, "later", DATA[:MIB][::-1])
    before, here = hash_of(daemon, "*"), used(daemon)
    ctl_done(daemon, "offload", "spilled", "--to", "disk")
    if back:
        ctl_done(daemon, "offload", "w", "--to", "disk")
    configure(daemon, "disk_write_limit = 1\ndisk_read_limit = 1\n")
    daemon.wait_for(lambda: all(link["gb_per_s_limit"] for link in daemon.rpc("hbm.devices")[0]["links"] if "disk" in link["link"]))
    op = begin(daemon, "restore", "w") if back else begin(daemon, "offload", "w", "--to", "disk")
    moved_by(daemon, op, CHUNK)
    unmount()
    configure(daemon, "# nothing\n")
    ctl_done(daemon, "wait", op)
    assert tier_of(daemon, "w") == ("device" if back else "disk")
    result = daemon.ctl("offload", "later", "--to", "disk")
    assert tier_of(daemon, "later") == ("device" if result.returncode else "disk"), result.stderr
    assert hash_of(daemon, "*") == before and serves(daemon)
    ctl_done(daemon, "restore", "*")
    assert hash_of(daemon, "*") == before and get(daemon, "w") == DATA
    assert used(daemon) == here and empty(daemon, "disk")
    sweep(daemon)
