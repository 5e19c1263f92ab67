"""Without room for the ledger, or short of fds: what is new is refused with the reason, what is there goes on, and it is over
by itself (FAULTS 19)."""
import os
import resource
import subprocess
import time

import pytest

from helpers import (MIB, Client, ctl_done, ctl_refused, fds_of, hash_of, put, refused, root_only, serves, used)
from wire import KEEP

DATA = bytes(range(256)) * 4096


@pytest.fixture
def small_runtime_dir(make_daemon):
    """Its runtime directory is a file system with room for 1 MiB; its supervisor keeps the memory."""
    daemon = make_daemon(supervise=True)
    daemon.runtime_dir.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(daemon.runtime_dir)], check=True)
    try:
        yield daemon.start()
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", str(daemon.runtime_dir)], check=True)


def fill(daemon):
    """No byte is left beside what the ledger has."""
    with open(daemon.runtime_dir / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass


def degraded(daemon):
    return {row["what"]: row for row in daemon.rpc("hbm.status")["degraded"]}


@root_only
def test_nothing_is_granted_while_the_ledger_cannot_be_written_and_frees_go_on(small_runtime_dir):
    daemon = small_runtime_dir
    put(daemon, "w", DATA)
    put(daemon, "x", DATA)
    before = hash_of(daemon, "w")
    with Client(daemon.socket) as link:
        link.hello()
        fill(daemon)
        names = iter(range(10000))
        with refused("DEGRADED", "the ledger cannot be written: No space left on device", "make room in the runtime directory"):
            while True: # the page that is begun has room for some rows still
                grant, _ = link.alloc(4096, f"n{next(names)}", flags=KEEP)
                link.call("detach", lease=grant["lease"])
        with refused("DEGRADED"):
            link.attach("w")
        ctl_refused(daemon.ctl("offload", "w", "--to", "host"), 1, "can take on nothing new", "No space left")
        assert degraded(daemon)["ledger"]["remedy"] == "make room in the runtime directory"
        assert "degraded: nothing new is taken on for" in ctl_done(daemon, "status")
        granted = {row["name"] for row in daemon.rpc("hbm.ls")}
        ctl_done(daemon, "free", "x")
        (daemon.runtime_dir / "filler").unlink()
        daemon.wait_for(lambda: not degraded(daemon))
        assert daemon.rpc("hbm.status")["degraded_times"] == 1
        assert {event["event"] for event in daemon.rpc("hbm.events")} >= {"daemon.degraded", "daemon.recovered"}
        link.alloc(4096, "after")
    daemon.kill9()
    daemon.wait_ready()
    assert {row["name"] for row in daemon.rpc("hbm.ls")} >= granted - {"x"} and hash_of(daemon, "w") == before
    assert "x" not in {row["name"] for row in daemon.rpc("hbm.ls")}


def test_a_daemon_short_of_fds_refuses_what_is_new_and_serves_what_is_there(make_daemon):
    daemon = make_daemon().start()
    pid = daemon.pid
    put(daemon, "w", DATA)
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.attach("w")
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (fds_of(pid) + 6, limit[1]))
        time.sleep(0.05)  # where there was plenty it does not look at each grant
        with refused("DEGRADED", "file descriptors are left", "LimitNOFILE"):
            link.alloc(MIB)
        with Client(daemon.socket) as other:
            with refused("DEGRADED"):
                other.hello()
        assert degraded(daemon)["fds"]["cause"]
        link.unlock(grant["slot"])
        link.call("detach", lease=grant["lease"])
        ctl_done(daemon, "free", "w")
        assert used(daemon) == 0
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
        link.alloc(MIB)
    assert serves(daemon) and not degraded(daemon) and daemon.rpc("hbm.status")["degraded_times"] == 1
