"""A device's links: what goes over them, how much of it may, and moves that end between two chunks (FAULTS 14, 20).
A limit of one byte a second is one that a second chunk does not get past."""
import contextlib
import os
import re
import select
import signal
import subprocess

import pytest

from conftest import BUILD
from helpers import MIB, ctl_done, ctl_json, get, hash_of, host_only, put, spill_fds, sweep, tier_of, used

CHUNK = 16 * MIB
CHUNKS = 3
DATA = os.urandom(MIB) * (CHUNKS * 16)
LINKS = ["device_to_host", "host_to_device", "disk_write", "disk_read"]


def links(daemon):
    [row] = daemon.rpc("hbm.devices")
    return {link["link"]: link for link in row["links"]}


def configure(daemon, text):
    (daemon.home / "hbmd.conf").write_text(text)
    daemon.process.send_signal(signal.SIGHUP)


def op_of(daemon, op):
    [row] = [row for row in daemon.rpc("hbm.ops") if row["op"] == op]
    return row


def begin(daemon, *command):
    """An op that goes on after this."""
    return ctl_done(daemon, *command, "--async").strip()


def moved_by(daemon, op, n):
    return daemon.wait_for(lambda: (row := op_of(daemon, op))["bytes_done"] >= n and row)


@host_only
def test_every_link_counts_what_goes_over_it_and_is_idle_afterwards(make_daemon):
    daemon = make_daemon().start()
    assert list(links(daemon)) == LINKS
    assert {(link["jobs"], link["bytes_moved"], link["gb_per_s_measured"]) for link in links(daemon).values()} == {(0, 0, None)}
    put(daemon, "w", DATA)
    for n in range(1, 3):
        for tier in ("host", "disk"):
            ctl_done(daemon, "offload", "w", "--to", tier)
            ctl_done(daemon, "restore", "w")
        for link in links(daemon).values():
            assert (link["jobs"], link["bytes_queued"], link["bytes_moved"]) == (0, 0, n * len(DATA)), link
            assert link["busy_seconds"] > 0 and link["gb_per_s"] >= 0 and link["gb_per_s_limit"] is None
    assert all(link["gb_per_s_measured"] > 0 for link in links(daemon).values())
    assert get(daemon, "w") == DATA


@host_only
def test_the_links_are_a_screen_of_80_columns(make_daemon):
    daemon = make_daemon(config="disk_write_limit = 100GiB\n").start()
    screen = ctl_done(daemon, "devices", "--links").splitlines()
    assert [line.split()[1] for line in screen[1:]] == LINKS
    assert max(map(len, screen)) <= 80 and re.search("disk_write .*107 GB/s", "\n".join(screen))
    assert ctl_json(daemon, "devices", "--links")[0]["links"]


@host_only
@pytest.mark.parametrize("link, key, tier, back", [
    ("device_to_host", "host_link_limit", "host", False), ("host_to_device", "host_link_limit", "host", True),
    ("disk_write", "disk_write_limit", "disk", False), ("disk_read", "disk_read_limit", "disk", True)])
def test_a_limited_link_tells_how_far_it_is_and_a_reload_lifts_the_limit(make_daemon, link, key, tier, back):
    daemon = make_daemon(config="# nothing\n").start()
    put(daemon, "w", DATA)
    if back:
        ctl_done(daemon, "offload", "w", "--to", tier)
    configure(daemon, f"{key} = 1\n")
    daemon.wait_for(lambda: links(daemon)[link]["gb_per_s_limit"])
    op = begin(daemon, "restore", "w") if back else begin(daemon, "offload", "w", "--to", tier)
    row = moved_by(daemon, op, CHUNK)
    assert (row["state"], row["bytes_done"], row["bytes_total"]) == ("running", CHUNK, len(DATA))
    assert row["gb_per_s"] > 0 and row["seconds_left"] > 0
    queue = links(daemon)[link]
    assert (queue["jobs"], queue["bytes_queued"]) == (1, len(DATA) - CHUNK)
    configure(daemon, "")
    ctl_done(daemon, "wait", op)
    assert op_of(daemon, op)["seconds_left"] is None
    assert tier_of(daemon, "w") == ("device" if back else tier) and get(daemon, "w") == DATA


@host_only
def test_a_limit_holds_for_the_worker_that_follows_one_that_died(make_daemon):
    daemon = make_daemon(config="disk_write_limit = 1\n").start()
    put(daemon, "w", DATA)
    [row] = daemon.rpc("hbm.devices")
    os.kill(row["worker_pid"], signal.SIGKILL)
    daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["worker_restarts"] == 1)
    op = begin(daemon, "offload", "w", "--to", "disk")
    moved_by(daemon, op, CHUNK)
    assert op_of(daemon, op)["bytes_done"] == CHUNK
    ctl_done(daemon, "cancel", op)
    daemon.wait_for(lambda: op_of(daemon, op)["state"] == "cancelled")
    assert tier_of(daemon, "w") == "device" and get(daemon, "w") == DATA


@host_only
def test_a_restore_from_disk_passes_an_offload_to_disk_that_its_limit_holds_back(make_daemon):
    daemon = make_daemon(config="# nothing\n").start()
    put(daemon, "away", DATA)
    ctl_done(daemon, "offload", "away", "--to", "disk")
    put(daemon, "w", DATA[::-1])
    configure(daemon, "disk_write_limit = 1\n")
    daemon.wait_for(lambda: links(daemon)["disk_write"]["gb_per_s_limit"])
    op = begin(daemon, "offload", "w", "--to", "disk")
    moved_by(daemon, op, CHUNK)
    ctl_done(daemon, "restore", "away")
    assert op_of(daemon, op)["state"] == "running"
    ctl_done(daemon, "cancel", op)
    assert get(daemon, "away") == DATA and get(daemon, "w") == DATA[::-1]
    sweep(daemon)


@host_only
def test_what_the_disk_is_used_by_is_told(make_daemon):
    daemon = make_daemon().start()
    [row] = daemon.rpc("hbm.devices")
    assert row["disk_io"]["by"] in ("io_uring", "threads") and row["disk_io"]["past_page_cache"] is None
    assert (row["disk_io"]["why"] is None) == (row["disk_io"]["by"] == "io_uring")
    put(daemon, "w", DATA[:MIB])
    ctl_done(daemon, "offload", "w", "--to", "disk")
    [row] = daemon.rpc("hbm.devices")
    assert row["disk_io"]["past_page_cache"] in (True, False)
    assert ("page cache" in ctl_done(daemon, "devices")) != row["disk_io"]["past_page_cache"]


def gpudirect(daemon):
    """What the worker has said of it; None until it has."""
    return daemon.rpc("hbm.devices")[0]["disk_io"]["gpudirect"]


@host_only
@pytest.mark.parametrize("wanted, state", [("auto", "absent"), ("off", "off")])
def test_whether_gpudirect_storage_is_used_is_told(make_daemon, wanted, state):
    daemon = make_daemon(config=f"gpudirect_storage = {wanted}\n").start()
    daemon.wait_for(lambda: gpudirect(daemon))
    unmeasured = {"chosen": False, "gb_per_s": None, "gb_per_s_staged": None}
    assert gpudirect(daemon) == {"state": state, "read": unmeasured, "write": unmeasured}
    assert "GPUDirect" not in ctl_done(daemon, "devices")


@host_only
def test_what_was_measured_of_gpudirect_storage_is_told(make_daemon, monkeypatch):
    """The library is the unit tests' own; how fast it is decides, so either way may be chosen."""
    monkeypatch.setenv("HBM_WORKER_CUFILE", str(BUILD / "tests" / "fake_cufile.so"))
    daemon = make_daemon(config="spill_encryption = no\n").start()
    size = 304 * MIB
    put(daemon, "w", bytes(size))
    ctl_done(daemon, "offload", "w", "--to", "disk")
    if not daemon.rpc("hbm.devices")[0]["disk_io"]["past_page_cache"]:
        pytest.skip("the file system refuses O_DIRECT")
    ctl_done(daemon, "restore", "w")
    daemon.wait_for(lambda: gpudirect(daemon)["read"]["gb_per_s"] and gpudirect(daemon)["write"]["gb_per_s"])
    said, shown = gpudirect(daemon), ctl_done(daemon, "devices")
    assert said["state"] == "there"
    for way in ("read", "write"):
        assert said[way]["chosen"] == (said[way]["gb_per_s"] > said[way]["gb_per_s_staged"])
        assert f"disk {way}s {'go' if said[way]['chosen'] else 'do not go'} by GPUDirect Storage: " in shown
        assert f"disk {way}s {'go' if said[way]['chosen'] else 'do not go'} by GPUDirect Storage: " in daemon.log
    assert get(daemon, "w") == bytes(size)


@host_only
@pytest.mark.parametrize("waits", [False, True], ids=["the verb itself", "wait"])
def test_who_watches_a_long_move_sees_how_far_it_is_and_how_long_it_has_to_go(make_daemon, waits):
    daemon = make_daemon(config="disk_write_limit = 1\n").start()
    put(daemon, "w", DATA)
    command = ["wait", begin(daemon, "offload", "w", "--to", "disk")] if waits else ["offload", "w", "--to", "disk"]
    ours, theirs = os.openpty()
    watched = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), *command],
                               stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while not re.search(rb"33 %  16\.0 MiB of 48\.0 MiB  \S+ .B/s  \S+ \S+ left", shown):
        shown += os.read(ours, 4096)
    configure(daemon, "")
    while watched.poll() is None:
        if select.select([ours], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                os.read(ours, 4096)
    os.close(ours)
    assert watched.returncode == 0 and tier_of(daemon, "w") == "disk" and get(daemon, "w") == DATA


def at_every_chunk(action):
    """At the n-th chunk of the n-th offload, then of the n-th restore; one offload goes well in between."""
    return ",".join(f"copy:{action}:{n}@{n}" for n in range(1, CHUNKS + 1)) + "," + \
        ",".join(f"copy:{action}:{CHUNKS + 1 + n}@{n}" for n in range(1, CHUNKS + 1))


def as_before(daemon, tier, before):
    assert tier_of(daemon, "w") == tier
    if tier != "disk":  # it would be copied to be hashed, and which copy fails is counted
        assert hash_of(daemon, "*") == before
    for other in {"device", "host", "disk"} - {tier}:
        daemon.wait_for(lambda: sum(row["size"] for row in daemon.rpc("hbm.ls") if row["tier"] == other) == used(daemon, other))
    assert len(spill_fds(daemon)) == (tier == "disk")


def fail_everywhere(daemon, tier, fail):
    put(daemon, "w", DATA)
    put(daemon, "other", DATA[:MIB])
    before = hash_of(daemon, "*")
    for _ in range(CHUNKS):
        fail("offload", "w", "--to", tier)
        as_before(daemon, "device", before)
    ctl_done(daemon, "offload", "w", "--to", tier)
    for _ in range(CHUNKS):
        fail("restore", "w")
        as_before(daemon, tier, before)
    ctl_done(daemon, "restore", "w")
    assert get(daemon, "w") == DATA and hash_of(daemon, "*") == before
    sweep(daemon)


@host_only
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_move_that_is_cancelled_at_any_chunk_has_done_nothing(make_daemon, monkeypatch, tier):
    """FAULTS 14: all or nothing."""
    daemon = make_daemon()
    held = daemon.home / "held"
    monkeypatch.setenv("HBM_WORKER_FAULT", at_every_chunk("hold"))
    monkeypatch.setenv("HBM_WORKER_FAULT_HELD", str(held))
    daemon.start()
    seen = 0

    def cancel(*command):
        nonlocal seen
        op = begin(daemon, *command)
        daemon.wait_for(lambda: held.exists() and held.stat().st_size > seen)
        seen = held.stat().st_size
        ctl_done(daemon, "cancel", op)
        daemon.wait_for(lambda: op_of(daemon, op)["state"] != "running")
        assert op_of(daemon, op)["state"] == "cancelled"

    fail_everywhere(daemon, tier, cancel)


@host_only
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_move_that_fails_at_any_chunk_has_done_nothing(make_daemon, monkeypatch, tier):
    """FAULTS 20: EIO."""
    monkeypatch.setenv("HBM_WORKER_FAULT", at_every_chunk("io"))
    daemon = make_daemon().start()

    def fail(*command):
        result = daemon.ctl(*command)
        assert result.returncode == 1 and "w: " in result.stderr and "HBM_WORKER_FAULT" in result.stderr, result.stderr

    fail_everywhere(daemon, tier, fail)
