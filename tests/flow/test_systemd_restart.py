"""What hbmd survives under a real systemd, with a model in every place and a client that has memory mapped, and what it does not.

Faults 26 and 27 of the design, as far as the service manager is part of them.
"""
import os
import re
import shutil
import struct
import subprocess

import pytest

from conftest import BUILD, ROOT
from helpers import client_program, layers, safetensors, sanitizer_flags  # noqa: F401 (fixtures)
from installed import CONFIG, DROP_INS, VERSION, Client, booted, machine  # noqa: F401 (fixtures)
from machine import Failed

NEWER = VERSION + "+next"
# All that says its version, and the ledger, whose rows have more fields; the rest of a newer build is the same.
SPEAKS_VERSION = ("daemon/listen", "daemon/rpc/discover", "daemon/rpc/status", "daemon/setup", "client/ctl/main", "client/ctl/doctor_daemon")
SPEAKS_LEDGER = ("daemon/core/ledger", "daemon/core/ledger_open", "daemon/core/ledger_compact", "daemon/core/ledger_copy")


@pytest.fixture(scope="module")
def newer_build():
    """The same sources under another version, with a ledger of another: a second build folder with the programs in it."""
    build = BUILD / "next"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    subprocess.run(["cp", "-a", str(BUILD / "obj"), str(build / "obj")], check=True)
    for each in SPEAKS_VERSION + SPEAKS_LEDGER:
        (build / "obj" / f"{each}.o").unlink()
    subprocess.run(["make", "-C", str(ROOT), "--no-print-directory", f"BUILD={build}", f"VERSION={NEWER}", "NVCC=",
                    "CFLAGS=-O2 -g -DHBM_LEDGER_NEXT",
                    f"SANITIZE={','.join(flag.partition('=')[2] for flag in sanitizer_flags())}", "all"],
                   check=True, stdout=subprocess.DEVNULL)
    yield build
    shutil.rmtree(build)


@pytest.fixture
def client(machine):
    process = Client(machine)
    yield process
    process.end()


class Kept:
    """A model on the device, one in host memory, one on disk, an encoded one and a buffer; and what they are."""

    def __init__(self, machine):
        self.machine = machine
        self.file = safetensors(machine.outside("/tmp") / "m.safetensors", layers(3), {"format": "pt"})
        for name in ("here", "hosted", "spilled", "coded"):
            machine.ctl("load", "/tmp/m.safetensors", "--as", name)
        machine.ctl("sleep", "hosted", "--to", "host")
        machine.ctl("sleep", "spilled", "--to", "disk")
        machine.ctl("compress", "model:coded", "--codec", "int8")
        machine.outside("/tmp/bytes").write_bytes(os.urandom(100_000))
        machine.ctl("put", "loose", "/tmp/bytes")
        self.before = self.now()
        assert len(self.before["buffers"]) >= 13

    def now(self):
        columns = ("id", "tier", "encoding", "size", "dtype", "shape", "model", "group", "owner", "keep", "version")
        return {
            "hashes": {row["id"]: (row["name"], row["hash"]) for row in self.machine.json("hash", "*")},
            "buffers": {row["name"]: [row.get(column) for column in columns] for row in self.machine.json("ls")},
            "models": {row["name"]: (row["id"], row["layout_hash"], row["bytes_by_tier"]) for row in self.machine.json("models")},
            "epoch": self.machine.json("status")["epoch"],
        }

    def check(self):
        """Equal ids, hashes, places and encodings; and a file read back, byte for byte."""
        assert self.now() == self.before
        assert self.machine.json("status")["lost"] == 0
        self.machine.ctl("save", "here", "/tmp/again.safetensors")
        assert self.machine.outside("/tmp/again.safetensors").read_bytes() == self.file.read_bytes()
        self.machine.outside("/tmp/again.safetensors").unlink()


@pytest.fixture
def kept(machine):
    return Kept(machine)


class Attached:
    """A client that maps a model of another process and a buffer of its own."""

    def __init__(self, client):
        self.client = client
        self.buffer, self.id, _ = client.alloc("mine", 300_000)
        client.ask("fill", self.buffer, 0xA5)
        self.model = int(client.ask("model", "here", "ro", 0, 5000)[0])
        self.before = self.now()

    def now(self):
        return self.client.ask("msum", self.model), self.client.ask("sum", self.buffer)

    def check(self):
        """The same bytes under the same addresses, and still its own to write."""
        assert self.now() == self.before
        for value in (0x17, 0xA5):
            self.client.ask("poke", self.buffer, 12345, value)
            assert self.client.ask("peek", self.buffer, 12345) == [str(value)]
        self.client.ask("unlock", self.buffer)
        self.client.ask("lock", self.buffer, 1000)


@pytest.fixture
def attached(kept, client):  # pylint: disable=unused-argument
    found = Attached(client)
    kept.before = kept.now()
    return found


def drop_in(machine, *lines):
    """More lines for [Service], or none, as `systemctl edit` does it."""
    path = machine.outside(f"{DROP_INS}/test.conf")
    path.parent.mkdir(parents=True, exist_ok=True)
    if lines:
        path.write_text("[Service]\n" + "".join(f"{line}\n" for line in lines))
    else:
        path.unlink()
    machine.systemctl("daemon-reload")


def store_count(machine):
    return int(machine.property("NFileDescriptorStore"))


# ---- What it survives ----

def test_sigkill_of_the_owner_loses_no_byte_and_no_client(machine, kept, attached):
    before, stored = machine.main_pid(), store_count(machine)
    assert machine.kill() != before
    kept.check()
    attached.check()
    assert store_count(machine) == stored


def test_ten_kills_in_a_row_do_not_reach_a_start_limit(machine, kept, attached):
    restarts = int(machine.property("NRestarts"))
    stored = store_count(machine)
    for _ in range(10):
        machine.kill()
    assert int(machine.property("NRestarts")) == restarts + 10
    assert machine.property("Result") == "success"
    assert store_count(machine) == stored
    kept.check()
    attached.check()


def test_a_kill_before_it_serves_again_loses_nothing(machine, kept, attached):
    for _ in range(5):
        before = machine.main_pid()
        machine.run("kill", "-KILL", before)
        machine.wait_for(lambda: machine.main_pid() not in (0, before))  # pylint: disable=cell-var-from-loop
    machine.wait_for(machine.serves)
    kept.check()
    attached.check()


def test_an_owner_that_hangs_is_killed_by_the_watchdog_and_loses_nothing(machine, kept, attached):
    assert machine.property("WatchdogUSec") == "30s"
    drop_in(machine, "WatchdogSec=1s")
    try:
        machine.systemctl("restart", "hbmd")
        since, before = machine.cursor(), machine.main_pid()
        machine.run("sleep", "1.5")
        assert machine.main_pid() == before, "the watchdog killed a loop that was well"
        machine.kill("STOP")
        assert "Watchdog timeout" in machine.messages(since)
        kept.check()
        attached.check()
    finally:
        drop_in(machine)
        machine.systemctl("restart", "hbmd")


def test_a_worker_that_dies_is_replaced_without_a_restart(machine, kept, attached):
    before, worker = machine.main_pid(), machine.json("devices")[0]["worker_pid"]
    machine.run("kill", "-KILL", worker)
    machine.wait_for(lambda: machine.json("devices")[0]["worker_pid"] not in (None, worker))
    assert machine.main_pid() == before
    kept.check()
    attached.check()


def test_systemctl_restart_loses_no_byte_and_no_client(machine, kept, attached):
    before, stored, since = machine.main_pid(), store_count(machine), machine.cursor()
    machine.systemctl("restart", "hbmd")
    assert machine.main_pid() != before
    kept.check()
    attached.check()
    assert store_count(machine) == stored
    machine.systemctl("restart", "hbmd")  # what was re-adopted is kept as well as what was made
    kept.check()
    attached.check()
    assert "LOST" not in machine.messages(since)


def test_a_restart_does_not_wait_for_ever_for_an_operation_that_hangs_and_undoes_it(machine, kept, attached):
    """FAULTS 28: drained within the daemon's own bound, which is below the unit's."""
    struck = machine.outside("/run/hbmd/struck")
    drop_in(machine, "Environment=HBM_WORKER_FAULT=copy:hang HBM_WORKER_FAULT_ONCE=/run/hbmd/struck")
    try:
        machine.systemctl("restart", "hbmd")
        mover = subprocess.Popen(machine.enter("hbmctl", "offload", "loose", "--to", "disk"), stderr=subprocess.DEVNULL)
        machine.wait_for(struck.exists)
        since = machine.cursor()
        machine.systemctl("restart", "hbmd")
        assert mover.wait(10) != 0
        assert "operations did not end in 10 s: they are undone" in machine.messages(since)
        assert machine.property("Result") == "success"
        kept.check()
        attached.check()
    finally:
        drop_in(machine)
        machine.systemctl("restart", "hbmd")
        struck.unlink()


def test_systemctl_reload_changes_a_key_in_the_same_process(machine, kept, attached):
    before, config = machine.main_pid(), machine.outside(CONFIG)
    text = config.read_text()

    def limit():
        return next(row["value"] for row in machine.json("config") if row["key"] == "offload_limit")

    try:
        config.write_text(text + "offload_limit = 77\n")
        machine.systemctl("reload", "hbmd")
        machine.wait_for(lambda: limit() == "77")
        config.write_text(text + "offload_limit = many\n")
        since = machine.cursor()
        machine.systemctl("reload", "hbmd")
        machine.wait_for(lambda: "offload_limit" in machine.messages(since))
        assert limit() == "77"
        assert "the last reload failed" in machine.property("StatusText")
    finally:
        config.write_text(text)
        machine.systemctl("reload", "hbmd")
        machine.wait_for(lambda: limit() == "30")
    assert machine.main_pid() == before
    kept.check()
    attached.check()


@pytest.mark.parametrize("word", ["daemon-reload", "daemon-reexec"])
def test_systemd_itself_may_be_reloaded_or_started_anew(machine, kept, attached, word):
    before, stored = machine.main_pid(), store_count(machine)
    machine.systemctl(word)
    machine.wait_for(machine.serves)
    assert (machine.main_pid(), store_count(machine)) == (before, stored)
    machine.kill()
    kept.check()
    attached.check()


def test_an_upgrade_and_the_rollback_lose_no_byte_and_no_client(machine, kept, attached, newer_build):
    try:
        for build, version in ((newer_build, NEWER), (BUILD, VERSION)):
            before = machine.main_pid()
            machine.install(build, version)
            machine.systemctl("daemon-reload")
            machine.systemctl("restart", "hbmd")
            assert machine.main_pid() != before
            assert machine.json("status")["version"] == version
            kept.check()
            attached.check()
            if build == newer_build:  # what it made is there after the rollback
                machine.ctl("put", "newer", "/tmp/bytes")
                machine.ctl("offload", "newer", "--to", "disk")
                kept.before = kept.now()
                assert b"what only a newer build knows" in machine.outside("/run/hbmd/ledger").read_bytes()
        machine.ctl("restore", "newer")
        machine.ctl("get", "newer", "/tmp/again")
        assert machine.outside("/tmp/again").read_bytes() == machine.outside("/tmp/bytes").read_bytes()
        machine.ctl("free", "newer")
    finally:
        machine.install(BUILD, VERSION)


def test_a_build_that_is_too_old_for_the_ledger_leaves_all_to_the_newer_one(machine, kept, attached):
    """The rollback that goes too far: the memory waits in the store for the newer build to be back."""
    stored, ledger = store_count(machine), machine.outside("/run/hbmd/ledger")
    machine.run("mv", "/usr/sbin/hbmd", "/usr/sbin/hbmd.away")
    with pytest.raises(Failed):
        machine.systemctl("restart", "hbmd")
    ours = ledger.read_bytes()
    magic, _, epoch = struct.unpack_from("=IIH", ours)
    try:
        ledger.write_bytes(struct.pack("=IIHHI", magic, 99, epoch, 0, 0) + ours[16:])  # to be read since version 99
        since = machine.cursor()
        machine.run("mv", "/usr/sbin/hbmd.away", "/usr/sbin/hbmd")
        machine.wait_for(lambda: "a newer hbmd wrote it" in machine.messages(since))
        assert store_count(machine) == stored and not machine.serves()
    finally:
        ledger.write_bytes(ours)
    machine.wait_for(machine.serves)
    kept.check()
    attached.check()


def test_a_broken_configuration_at_a_restart_loses_nothing_once_it_is_corrected(machine, kept, attached):
    config, stored = machine.outside(CONFIG), store_count(machine)
    text = config.read_text()
    since = machine.cursor()
    try:
        config.write_text(text + "offload_limit = many\n")
        with pytest.raises(Failed):
            machine.systemctl("restart", "hbmd")
        # Tried again and again meanwhile, and whoever connects waits.
        asker = subprocess.Popen(machine.enter("hbmctl", "status"), stdout=subprocess.PIPE, text=True)
        machine.run("sleep", "1.5")
        assert store_count(machine) == stored
        assert f"{CONFIG}:{len(text.splitlines()) + 1}: " in machine.messages(since)
        assert asker.poll() is None
    finally:
        config.write_text(text)
    assert asker.communicate(timeout=10)[0].startswith(f"hbmd {VERSION}")
    machine.wait_for(machine.serves)
    kept.check()
    attached.check()


def test_a_client_that_dies_while_no_owner_runs_is_reclaimed_by_the_next(machine, kept):
    client = Client(machine)
    client.alloc("mine", 300_000)
    session, stored = machine.json("sessions")[0], store_count(machine)
    machine.run("mv", "/usr/sbin/hbmd", "/usr/sbin/hbmd.away")
    try:
        machine.run("kill", "-KILL", machine.main_pid())
        machine.run("kill", "-KILL", session["pid"])
        client.process.wait(10)
        machine.run("sleep", "0.3")
        assert store_count(machine) == stored, "systemd let go of the process that has ended"
    finally:
        machine.run("mv", "/usr/sbin/hbmd.away", "/usr/sbin/hbmd")
    machine.wait_for(machine.serves)
    machine.wait_for(lambda: machine.json("status")["reclaimed_sessions"] == 1)
    assert machine.json("sessions") == []
    kept.check()


def test_a_missing_program_at_a_restart_loses_nothing_once_it_is_back(machine, kept, attached):
    machine.run("mv", "/usr/sbin/hbmd", "/usr/sbin/hbmd.away")
    try:
        with pytest.raises(Failed):
            machine.systemctl("restart", "hbmd")
    finally:
        machine.run("mv", "/usr/sbin/hbmd.away", "/usr/sbin/hbmd")
    machine.wait_for(machine.serves)
    kept.check()
    attached.check()


# ---- What it does not survive ----

def test_a_full_stop_empties_the_store_and_says_what_is_lost(machine, kept, attached):
    since = machine.cursor()
    machine.systemctl("stop", "hbmd.socket")  # first: the client that is attached connects again, which would start it anew
    machine.systemctl("stop", "hbmd.service")
    buffers = len(kept.before["buffers"])
    said = re.search(r"if this is a stop, (\d+) buffers are lost with it \((\d+) MiB\); `systemctl restart` keeps",
                     machine.messages(since))
    assert said and int(said[1]) == buffers and int(said[2]) > 0
    assert machine.property("Result") == "success"
    machine.wait_for(lambda: store_count(machine) == 0)  # systemd closes them in a moment of its own
    attached.check()  # who maps memory keeps it
    since = machine.cursor()
    machine.systemctl("start", "hbmd.service")
    lost = "\n".join(line for line in machine.messages(since).splitlines() if line.startswith("LOST: "))
    for name in ("here/layers.0.weight", "hosted/layers.1.weight", "spilled/layers.2.weight", "coded/layers.0.weight", "loose"):
        assert name in lost, lost
    assert machine.json("status")["lost"] > 0
    with pytest.raises(Failed) as refused:
        machine.ctl("get", "loose", "/tmp/out")
    assert "the contents are gone" in refused.value.result.stderr
    machine.systemctl("start", "hbmd.socket")
    since = machine.cursor()
    machine.systemctl("stop", "hbmd.service")
    assert "if this is a stop" not in machine.messages(since), "what was lost before is not lost again"
    machine.systemctl("start", "hbmd.service")


def test_a_stop_with_nothing_to_lose_says_nothing_of_loss(machine):
    since = machine.cursor()
    machine.systemctl("stop", "hbmd.service", "hbmd.socket")
    said = machine.messages(since)
    assert "stopped" in said and "lost" not in said and "LOST" not in said
    machine.systemctl("start", "hbmd.service", "hbmd.socket")
