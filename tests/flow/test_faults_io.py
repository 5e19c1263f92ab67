"""System calls that are refused or fail in the middle (FAULTS 19, 20), by a seccomp filter that the daemon and its workers
are started under."""
import contextlib
import os
import platform
import resource
import struct
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT
from helpers import (MIB, ctl_done, ctl_refused, get, hash_of, host_only, load_layers, put, root_only, serves, spill_fds,
                     sweep, tier_of, used)

DATA = bytes(range(256)) * 4 * 1024 * 33  # three chunks of a copy
IO_URING_SETUP = 425
PWRITE64 = {"x86_64": 18, "aarch64": 68}[platform.machine()]
EPERM, EIO = 1, 5
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000
NUMBER, OFFSET_LOW = 0, 16 + 3 * 8  # of struct seccomp_data: the call, and the low half of its fourth argument

LAUNCH = """
import ctypes, os, sys
code = bytes.fromhex(sys.argv[1])
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(code) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execv(sys.argv[2], sys.argv[2:])
"""


def under(make_daemon, *instructions, **how):
    """A daemon under that filter."""
    code = b"".join(struct.pack("<HBBI", *one) for one in instructions)
    daemon = make_daemon(**how)
    command = daemon.command
    daemon.command = lambda: [sys.executable, "-c", LAUNCH, code.hex(), *command()]
    return daemon.start()


NO_RING = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
# Every write that starts past the first chunk of 16 MiB.
NO_FAR_WRITE = [*NO_RING[:3], (EQUAL, 0, 3, PWRITE64), (LOAD, 0, 0, OFFSET_LOW), (AT_LEAST, 0, 1, 16 * MIB),
                (RETURN, 0, 0, ERRNO | EIO), (RETURN, 0, 0, ALLOW)]


def test_where_io_uring_is_forbidden_the_disk_is_read_and_written_all_the_same(make_daemon):
    daemon = under(make_daemon, *NO_RING)
    [row] = daemon.rpc("hbm.devices")
    assert (row["disk_io"]["by"], row["disk_io"]["why"]) == ("threads", os.strerror(EPERM))
    assert "without io_uring" in daemon.log and "without io_uring" in ctl_done(daemon, "devices")
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    ctl_done(daemon, "offload", "w", "--to", "disk")
    assert get(daemon, "w") == DATA
    ctl_done(daemon, "restore", "w")
    assert hash_of(daemon, "w") == before
    load_layers(daemon, "m", 3)
    ctl_done(daemon, "sleep", "m", "--to", "disk")
    ctl_done(daemon, "wake", "m")


def test_a_disk_that_fails_in_the_middle_of_an_offload_leaves_the_buffer_where_it_was(make_daemon):
    """FAULTS 20: EIO, after a chunk has been written."""
    daemon = under(make_daemon, *NO_FAR_WRITE)
    put(daemon, "large", DATA)
    put(daemon, "small", DATA[:MIB])
    load_layers(daemon, "m", 3)
    before = hash_of(daemon, "*")
    ctl_refused(daemon.ctl("offload", "large", "--to", "disk"), 1, "large", "Input/output error")
    assert tier_of(daemon, "large") == "device" and used(daemon, "disk") == 0 and not spill_fds(daemon)
    assert hash_of(daemon, "*") == before
    ctl_done(daemon, "offload", "small", "--to", "disk")  # what does not meet the bad place
    ctl_done(daemon, "sleep", "m", "--to", "disk")
    assert hash_of(daemon, "*") == before and serves(daemon)
    ctl_refused(daemon.ctl("get", "large", daemon.home / "out"), 1, "Input/output error")
    ctl_done(daemon, "offload", "large", "--to", "host")
    assert hash_of(daemon, "*") == before
    sweep(daemon)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_batch_restore_without_room_for_all_restores_none(make_daemon, tier):
    """CASES 20: five, and room for three."""
    daemon = make_daemon(config="device_bytes = 7MiB\nmemory_wait_seconds = 0.1\n").start()
    names = [f"w-{i}" for i in range(5)]
    for i, name in enumerate(names):
        put(daemon, name, bytes([i]) * 2 * MIB)
        ctl_done(daemon, "offload", name, "--to", tier)
    before = hash_of(daemon, "*")
    ctl_refused(daemon.ctl("restore", "w-*"), 1, "device tier")
    assert {tier_of(daemon, name) for name in names} == {tier} and used(daemon) == 0
    assert hash_of(daemon, "*") == before
    for name in names[:3]:
        ctl_done(daemon, "restore", name)
    assert used(daemon) == 6 * MIB and hash_of(daemon, "*") == before
    sweep(daemon)


@host_only
def test_a_worker_without_memory_to_map_refuses_with_a_reason_and_serves_when_there_is_some_again(make_daemon):
    """FAULTS 19: RLIMIT_AS of the worker is reached."""
    daemon = make_daemon().start()
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    pid = daemon.rpc("hbm.devices")[0]["worker_pid"]
    limit = resource.prlimit(pid, resource.RLIMIT_AS)
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (mapped + MIB, limit[1]))
    for command in (["offload", "w", "--to", "host"], ["offload", "w", "--to", "disk"], ["get", "w", daemon.home / "out"],
                    ["hash", "w"]):
        ctl_refused(daemon.ctl(*command), 1, "memory")
        assert tier_of(daemon, "w") == "device"
    assert used(daemon, "host") == used(daemon, "disk") == 0
    resource.prlimit(pid, resource.RLIMIT_AS, limit)
    ctl_done(daemon, "offload", "w", "--to", "host")
    assert hash_of(daemon, "w") == before and daemon.rpc("hbm.devices")[0]["worker_pid"] == pid
    sweep(daemon)


# ---- A client's file where nobody answers ----

@contextlib.contextmanager
def silent(where):
    """A file system there that answers nobody who reads its file or makes another."""
    server = subprocess.Popen([sys.executable, str(ROOT / "tests" / "flow" / "silent_fs.py"), str(where), str(MIB)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no FUSE here: {server.stderr.read()}")
        yield
    finally:
        server.kill()
        server.communicate()
        subprocess.run(["umount", "-l", str(where)], check=False)


@pytest.fixture
def silent_file(tmp_path):
    """Its size is known, its reads are never answered."""
    where = tmp_path / "silent"
    where.mkdir()
    with silent(where):
        yield where / "file"


@root_only
def test_a_file_where_nobody_answers_holds_up_its_own_client_alone_and_not_for_ever(make_daemon, silent_file):
    daemon = make_daemon(config="worker_patience_seconds = 4\n").start()
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    worker = daemon.rpc("hbm.devices")[0]["worker_pid"]
    stuck = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), "put", "stuck", str(silent_file)],
                             stderr=subprocess.PIPE, text=True)
    daemon.wait_for(lambda: daemon.rpc("hbm.ops"))
    assert get(daemon, "w") == DATA  # files of others,
    ctl_done(daemon, "offload", "w", "--to", "disk")  # and the disk, go on meanwhile
    ctl_done(daemon, "restore", "w")
    assert stuck.poll() is None
    _, error = stuck.communicate(timeout=20)
    assert stuck.returncode == 1 and "in time" in error, error
    # The process hangs in the kernel and cannot end; another serves.
    daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["state"] == "ready"
                    and daemon.rpc("hbm.devices")[0]["worker_pid"] != worker, 20)
    assert hash_of(daemon, "w") == before and get(daemon, "w") == DATA and serves(daemon)
    assert os.path.exists(f"/proc/{worker}")
    sweep(daemon)


@root_only
def test_a_disk_where_nobody_answers_holds_up_what_goes_there_alone_and_not_for_ever(make_daemon):
    """FAULTS 20, 24."""
    daemon = make_daemon(config="worker_patience_seconds = 4\n").start()
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    worker = daemon.rpc("hbm.devices")[0]["worker_pid"]
    with silent(daemon.state_dir):
        stuck = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), "offload", "w", "--to", "disk"],
                                 stderr=subprocess.PIPE, text=True)
        daemon.wait_for(lambda: [op for op in daemon.rpc("hbm.ops") if op["verb"] == "offload"])
        put(daemon, "other", DATA[::-1])  # memory is made meanwhile, files are read, and moves to other tiers go on
        ctl_done(daemon, "offload", "other", "--to", "host")
        ctl_done(daemon, "restore", "other")
        assert stuck.poll() is None
        _, error = stuck.communicate(timeout=20)
        assert stuck.returncode == 1 and "in time" in error, error
        daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["state"] == "ready"
                        and daemon.rpc("hbm.devices")[0]["worker_pid"] != worker, 20)
        assert tier_of(daemon, "w") == "device" and used(daemon, "disk") == 0
        assert hash_of(daemon, "w") == before and get(daemon, "other") == DATA[::-1] and serves(daemon)
    ctl_done(daemon, "offload", "w", "--to", "disk")
    assert get(daemon, "w") == DATA
    sweep(daemon)
