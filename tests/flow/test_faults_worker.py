"""A worker that dies or fails in each job (FAULTS 20, 24): the job fails with its typed error, a fresh worker goes on,
every buffer is as it was. HBM_WORKER_FAULT is in daemon/worker/fault.c."""
import os

import pytest

from helpers import (MIB, Client, ctl_done, ctl_refused, get, hash_of, layers, put, refused, safetensors, serves, sweep, tier_of, used)
from wire import KEEP

DATA = os.urandom(2 * MIB + 5)
FLOATS = bytes(range(256)) * 64


class Faulty:
    """A daemon whose worker does this once, when the flag's file is away."""

    def __init__(self, fault, make_daemon):
        self.daemon = make_daemon()
        self.flag = self.daemon.home / "struck"
        os.environ["HBM_WORKER_FAULT"], os.environ["HBM_WORKER_FAULT_ONCE"] = fault, str(self.flag)
        try:
            self.daemon.start()
        finally:
            del os.environ["HBM_WORKER_FAULT"], os.environ["HBM_WORKER_FAULT_ONCE"]

    def restarts(self):
        return self.daemon.rpc("hbm.devices")[0]["worker_restarts"]

    def ready(self):
        return self.daemon.rpc("hbm.devices")[0]["state"] == "ready"


def code_buffer(daemon, name):
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.alloc(len(FLOATS), name, dtype=11, rank=1, dims=[len(FLOATS) // 4], flags=KEEP)
        link.call("detach", lease=grant["lease"])


def prepare(daemon):
    """Two buffers and their hashes; nothing here takes a job that the test is about, but create and hash."""
    put(daemon, "w", DATA)
    code_buffer(daemon, "f")


STRIKES = {
    "copy": lambda daemon: daemon.ctl("offload", "w", "--to", "host"),
    "encode": lambda daemon: daemon.ctl("compress", "f", "--codec", "int8"),
    "decode": lambda daemon: daemon.ctl("decompress", "f"),
    "pack": lambda daemon: daemon.ctl("offload", "f", "--to", "host"),
    "unpack": lambda daemon: daemon.ctl("restore", "f"),
    "hash": lambda daemon: daemon.ctl("hash", "w"),
    "file": lambda daemon: daemon.ctl("get", "w", daemon.home / "out"),
    "create": lambda daemon: daemon.ctl("put", "fresh", daemon.home / "put.bytes"),
}
BEFORE = {"file": "2", "create": "3", "hash": "3", "unpack": "2"}  # jobs of that kind that prepare() and its hashes take


def strike(make_daemon, job, action):
    """The n-th job is struck, n being the first that is the test's own."""
    faulty = Faulty(f"{job}:{action}:{BEFORE.get(job, '1')}", make_daemon)
    daemon = faulty.daemon
    prepare(daemon)
    if job == "decode":
        ctl_done(daemon, "compress", "f", "--codec", "fp16")
    if job in ("pack", "unpack"):
        ctl_done(daemon, "compress", "f", "--codec", "fp16", "--mode", "park")
    if job == "unpack":
        ctl_done(daemon, "offload", "f", "--to", "host")
    before = hash_of(daemon, "*")
    rows = {row["name"]: row for row in daemon.rpc("hbm.ls")}
    held = used(daemon)
    result = STRIKES[job](daemon)
    return faulty, before, rows, held, result


def as_it_was(faulty, before, rows, held):
    daemon = faulty.daemon
    daemon.wait_for(faulty.ready)
    assert hash_of(daemon, "*") == before
    assert {row["name"]: row for row in daemon.rpc("hbm.ls")} == rows
    assert used(daemon) == held
    assert serves(daemon)


@pytest.mark.parametrize("job", STRIKES)
def test_a_worker_killed_in_a_job_fails_that_job_alone(make_daemon, job):
    """FAULTS 24: WORKER_DIED, a fresh worker serves, buffers as before."""
    faulty, before, rows, held, result = strike(make_daemon, job, "kill")
    ctl_refused(result, 1, "worker died")
    assert faulty.flag.exists()
    as_it_was(faulty, before, rows, held)
    assert faulty.restarts() == 1
    assert STRIKES[job](faulty.daemon).returncode == 0
    for name in list(rows) + ["fresh"] * (job == "create"):
        ctl_done(faulty.daemon, "free", name)
    sweep(faulty.daemon)


ACTIONS = [("copy", "io", "reading or writing"), ("copy", "nospace", "no room"), ("copy", "checksum", "not the bytes"),
           ("encode", "nomem", "not enough memory"), ("create", "nomem", "not enough memory"), ("hash", "io", "reading or writing"),
           ("file", "io", "reading or writing"), ("decode", "io", "reading or writing")]


@pytest.mark.parametrize("job, action, words", ACTIONS, ids=lambda value: value.split()[0])
def test_a_job_that_fails_leaves_every_buffer_as_it_was(make_daemon, job, action, words):
    """FAULTS 20 and 24: EIO, ENOSPC and the others in the middle."""
    faulty, before, rows, held, result = strike(make_daemon, job, action)
    ctl_refused(result, 1, words)
    as_it_was(faulty, before, rows, held)
    assert faulty.restarts() == 0
    assert STRIKES[job](faulty.daemon).returncode == 0


@pytest.mark.parametrize("action", ["kill", "io"])
def test_a_load_whose_worker_dies_leaves_no_half_model(make_daemon, action):
    """FAULTS 24."""
    faulty = Faulty(f"file:{action}", make_daemon)
    path = safetensors(faulty.daemon.home / "m.safetensors", layers(3))
    ctl_refused(faulty.daemon.ctl("load", path, "--as", "m"), 1)
    faulty.daemon.wait_for(faulty.ready)
    sweep(faulty.daemon)
    ctl_done(faulty.daemon, "load", path, "--as", "m")


@pytest.mark.parametrize("action, error", [("kill", "WORKER_DIED"), ("nomem", "NO_MEMORY")])
def test_an_allocation_whose_worker_dies_is_refused_and_charged_to_nobody(make_daemon, action, error):
    """FAULTS 24."""
    faulty = Faulty(f"create:{action}", make_daemon)
    with Client(faulty.daemon.socket) as link:
        link.hello()
        with refused(error):
            link.alloc(MIB, "w")
        assert used(faulty.daemon) == 0 and faulty.daemon.rpc("hbm.ls") == []
        faulty.daemon.wait_for(faulty.ready)
        link.alloc(MIB, "w")


def test_an_attach_whose_restore_dies_is_refused_and_the_buffer_stays_away(make_daemon):
    """FAULTS 24."""
    faulty = Faulty("copy:kill:2", make_daemon)
    put(faulty.daemon, "w", DATA)
    before = hash_of(faulty.daemon, "w")
    ctl_done(faulty.daemon, "offload", "w", "--to", "disk")
    with Client(faulty.daemon.socket) as link:
        link.hello()
        with refused("WORKER_DIED"):
            link.attach("w", timeout_ms=10000)
        assert tier_of(faulty.daemon, "w") == "disk"
        faulty.daemon.wait_for(faulty.ready)
        link.attach("w", timeout_ms=10000)
    assert hash_of(faulty.daemon, "w") == before


def test_a_worker_killed_from_outside_is_replaced_and_clients_go_on(make_daemon):
    """FAULTS 24: idle, and five times in a row."""
    daemon = make_daemon().start()
    put(daemon, "w", DATA)
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.attach("w")
        for n in range(1, 6):
            pid = daemon.rpc("hbm.devices")[0]["worker_pid"]
            os.kill(pid, 9)
            row = daemon.wait_for(lambda: [row for row in daemon.rpc("hbm.devices") if row["worker_pid"] not in (pid, None)
                                           and row["state"] == "ready"], 20)[0]
            assert row["worker_restarts"] == n
            assert get(daemon, "w") == DATA
        link.call("detach", lease=grant["lease"])


def test_a_worker_killed_while_it_starts_does_not_make_its_device_a_failed_one(make_daemon):
    """FAULTS 24: what is asked meanwhile waits for the next one."""
    faulty = Faulty("start:kill", make_daemon)
    assert faulty.flag.exists() and faulty.ready()
    put(faulty.daemon, "w", DATA)
