"""The spill directory full, gone or lying (FAULTS 20, 21; CASES 19)."""
import os
import resource
import shutil
import subprocess

import pytest

from helpers import (MIB, Client, ctl_done, ctl_refused, get, hash_of, load_layers, module_daemon, put, refused, root_only, serves, shared,
                     spill_fds, tier_of, used)

DATA = bytes(range(256)) * 4096 * 2  # 2 MiB


@pytest.fixture
def small_disk(make_daemon):
    """Its state directory is a file system with room for 3 MiB."""
    daemon = make_daemon()
    daemon.state_dir.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "none", str(daemon.state_dir)], check=True)
    try:
        daemon.options += ["--config", str(daemon.home / "hbmd.conf")]
        (daemon.home / "hbmd.conf").write_text("disk_bytes = 1GiB\n")
        yield daemon.start()
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", str(daemon.state_dir)], check=True)


@root_only
def test_a_disk_without_room_leaves_the_buffer_where_it_was(small_disk):
    """FAULTS 20: ENOSPC in the middle of an offload."""
    put(small_disk, "spill-a", DATA)
    put(small_disk, "spill-b", DATA[::-1])
    before = hash_of(small_disk, "*")
    ctl_done(small_disk, "offload", "spill-a", "--to", "disk")
    [row] = small_disk.rpc("hbm.devices")
    if row["disk_io"]["past_page_cache"] is False:  # newer kernels let tmpfs take O_DIRECT
        assert "page cache" in small_disk.log and "page cache" in ctl_done(small_disk, "devices")
    ctl_refused(small_disk.ctl("offload", "spill-b", "--to", "disk"), 1, "room")
    assert (tier_of(small_disk, "spill-a"), tier_of(small_disk, "spill-b")) == ("disk", "device")
    assert hash_of(small_disk, "*") == before
    ctl_refused(small_disk.ctl("get", "spill-b", small_disk.state_dir / "got"), 1, "there is no room on that disk")
    assert not list(small_disk.state_dir.iterdir())
    ctl_done(small_disk, "free", "spill-a")
    ctl_done(small_disk, "offload", "spill-b", "--to", "disk")
    assert get(small_disk, "spill-b") == DATA[::-1]


@root_only
def test_a_read_only_spill_directory_refuses_and_loses_nothing(small_disk):
    """FAULTS 20: EROFS."""
    put(small_disk, "spill-a", DATA)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk.state_dir)], check=True)
    result = small_disk.ctl("offload", "spill-a", "--to", "disk")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk.state_dir)], check=True)
    ctl_refused(result, 1, "Read-only")
    assert tier_of(small_disk, "spill-a") == "device" and get(small_disk, "spill-a") == DATA
    ctl_done(small_disk, "offload", "spill-a", "--to", "disk")


def test_what_is_larger_than_the_worker_may_write_is_refused_and_the_worker_lives(shared):
    """FAULTS 20: a limit of a file's size, whose signal would end the worker with all its jobs."""
    put(shared, "spill-a", DATA)
    worker = shared.rpc("hbm.devices")[0]["worker_pid"]
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    ctl_refused(shared.ctl("offload", "spill-a", "--to", "disk"), 1, "File too large", "ulimit -f")
    resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
    assert shared.rpc("hbm.devices")[0]["worker_pid"] == worker
    assert tier_of(shared, "spill-a") == "device" and get(shared, "spill-a") == DATA
    ctl_done(shared, "offload", "spill-a", "--to", "disk")


def test_a_vanished_spill_directory_refuses_and_keeps_what_was_spilled(make_daemon):
    """FAULTS 20, CASES 19: files deleted behind its back are open files, which stay whole."""
    daemon = make_daemon().start()
    put(daemon, "spill-a", DATA)
    put(daemon, "spill-b", DATA[::-1])
    ctl_done(daemon, "offload", "spill-a", "--to", "disk")
    spilled = used(daemon, "disk")
    shutil.rmtree(daemon.state_dir)
    result = daemon.ctl("offload", "spill-b", "--to", "disk")
    if result.returncode:
        ctl_refused(result, 1, daemon.state_dir)
        assert tier_of(daemon, "spill-b") == "device" and used(daemon, "disk") == spilled
    assert get(daemon, "spill-a") == DATA and get(daemon, "spill-b") == DATA[::-1]
    ctl_done(daemon, "restore", "spill-a")
    assert get(daemon, "spill-a") == DATA
    ctl_done(daemon, "free", "*")
    assert used(daemon, "disk") == 0


def test_a_full_disk_tier_is_capped_and_its_counter_is_what_is_there(make_daemon):
    """CASES 19."""
    daemon = make_daemon(config="disk_bytes = 5MiB\n").start()
    for name in ("spill-a", "spill-b", "spill-c"):
        put(daemon, name, DATA)
    for name in ("spill-a", "spill-b"):
        ctl_done(daemon, "offload", name, "--to", "disk")
    ctl_refused(daemon.ctl("offload", "spill-c", "--to", "disk"), 1, "memory")
    assert used(daemon, "disk") == 2 * len(DATA) and tier_of(daemon, "spill-c") == "device"
    assert sum(os.stat(fd).st_size for fd in spill_fds(daemon)) == used(daemon, "disk")
    ctl_done(daemon, "restore", "spill-a")
    ctl_done(daemon, "offload", "spill-c", "--to", "disk")
    assert sum(os.stat(fd).st_size for fd in spill_fds(daemon)) == used(daemon, "disk") == 2 * len(DATA)


# ---- Bytes that come back wrong ----

def flip(fd, at):
    with open(fd, "r+b", buffering=0) as spill:
        spill.seek(at)
        byte = spill.read(1)
        spill.seek(at)
        spill.write(bytes([byte[0] ^ 0x10]))
        os.fsync(spill.fileno())


def refuses_to_come_back(daemon, name):
    """Every way back ends in a checksum error that names it; no wrong byte is ever seen."""
    for command in (["restore", name], ["hash", name], ["get", name, daemon.home / "out"]):
        result = daemon.ctl(*command)
        assert result.returncode == 1 and "bytes" in result.stderr and name in result.stderr, (command, result.stdout, result.stderr)
    assert not (daemon.home / "out").exists()
    with Client(daemon.socket) as link:
        link.hello()
        with refused("CHECKSUM"):
            link.attach(name, timeout_ms=10000)


@pytest.mark.parametrize("at", [0, 12345, 2 * MIB - 1], ids=["first", "middle", "last"])
def test_a_flipped_bit_in_a_spill_file_is_a_checksum_error_by_name(shared, at):
    """FAULTS 21."""
    put(shared, "weights", DATA)
    put(shared, "other", DATA)
    ctl_done(shared, "offload", "weights", "--to", "disk")
    [spill] = spill_fds(shared)
    flip(spill, at)
    refuses_to_come_back(shared, "weights")
    assert tier_of(shared, "weights") == "disk", "the source is kept for whoever wants to look"
    assert get(shared, "other") == DATA and serves(shared)
    flip(spill, at)
    ctl_done(shared, "restore", "weights")
    assert get(shared, "weights") == DATA


def test_a_truncated_spill_file_is_an_error_by_name(shared):
    """FAULTS 21: torn."""
    put(shared, "weights", DATA)
    ctl_done(shared, "offload", "weights", "--to", "disk")
    [spill] = spill_fds(shared)
    os.truncate(spill, MIB)
    for command in (["restore", "weights"], ["hash", "weights"], ["get", "weights", shared.home / "out"]):
        result = shared.ctl(*command)
        assert result.returncode == 1 and "weights" in result.stderr, command
    assert serves(shared)


def test_two_spill_files_that_were_swapped_are_checksum_errors(shared):
    """FAULTS 21."""
    put(shared, "first", DATA)
    put(shared, "second", DATA[::-1])
    ctl_done(shared, "offload", "first", "--to", "disk")
    [first] = spill_fds(shared)
    ctl_done(shared, "offload", "second", "--to", "disk")
    [second] = [fd for fd in spill_fds(shared) if fd != first]
    contents = []
    for fd in (first, second):
        with open(fd, "rb") as spill:
            contents.append(spill.read())
    for fd, data in zip((first, second), reversed(contents)):
        with open(fd, "r+b") as spill:
            spill.write(data)
    for name in ("first", "second"):
        refuses_to_come_back(shared, name)


@pytest.mark.parametrize("codec", [[], ["--codec", "int8"]], ids=["raw", "parked"])
def test_one_bad_layer_stays_asleep_and_is_named(shared, codec):
    """FAULTS 21: what has come before it is usable, and the rest where it was."""
    load_layers(shared, "m", 3)
    ctl_done(shared, "sleep", "m", "--to", "disk", *codec)
    spills = spill_fds(shared)
    assert len(spills) == 3
    before = hash_of(shared, "model:m")
    flip(spills[1], 7)
    result = shared.ctl("wake", "m")
    assert result.returncode == 1 and "m/layers" in result.stderr, result.stderr
    assert "disk" in {row["tier"] for row in shared.rpc("hbm.ls")}
    flip(spills[1], 7)
    assert hash_of(shared, "model:m") == before
    ctl_done(shared, "wake", "m")
    assert {row["tier"] for row in shared.rpc("hbm.ls")} == {"device"} and hash_of(shared, "model:m") == before
