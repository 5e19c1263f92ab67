"""The owner killed where memory is resident: the next one answers before its workers have started, by what the file `devices` says
of them; whatever has become of that file (FAULTS 24, 26, 27)."""
import os
import re
import stat
import threading

import pytest

from conftest import BUILD, DEVICE
from helpers import MIB, client_program, ctl_done, fails, get, hash_of, program, put, serves, used
from test_restart import kill_and_wait
from test_workers import MOODS, PATIENCE, WORKER, Switched

AT_ONCE = "is served at once"
OTHER_KIND = "cuda" if DEVICE == "host" else "host"


class Gated:
    """A supervised daemon whose workers, and whose probe, do not begin while the gate is closed."""

    def __init__(self, make_daemon):
        self.daemon = make_daemon(supervise=True)
        self.gate = self.daemon.home / "gate"
        wrapper = self.daemon.home / WORKER
        wrapper.write_text(f'#!/bin/sh\nwhile [ -e {self.gate} ]; do sleep 0.02; done\nexec {BUILD / WORKER} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        (self.daemon.home / "hbmd.conf").write_text(f"worker_dir = {self.daemon.home}\n")
        self.daemon.options = ["--config", str(self.daemon.home / "hbmd.conf")]
        self.daemon.start()

    def kill_owner(self):
        self.gate.touch()
        kill_and_wait(self.daemon)

    def open(self):
        self.gate.unlink()


def test_the_next_owner_answers_before_its_worker_has_started(make_daemon, program):
    """FAULTS 26: who was there goes on, who comes is served, and only what needs the worker waits for it."""
    gated = Gated(make_daemon)
    daemon = gated.daemon
    put(daemon, "w", b"w" * MIB)
    before, held = hash_of(daemon, "w"), used(daemon)
    holder = program(daemon)
    lease, _, _ = holder.attach("w")
    gated.kill_owner()

    holder.ask("unlock", lease), holder.ask("lock", lease, 5000), holder.ask("safepoint", 5000)
    other = program(daemon)
    second, _, _ = other.attach("w")
    other.ask("unlock", second), other.ask("lock", second, 5000)
    assert {row["name"]: row["tier"] for row in daemon.rpc("hbm.ls")} == {"w": "device"} and used(daemon) == held
    assert "w" in ctl_done(daemon, "ls") and "ready" in ctl_done(daemon, "status")
    device = daemon.rpc("hbm.devices")[0]
    assert (device["state"], device["worker_restarts"], device["worker_ended"]) == ("ready", 0, None)

    other.say("alloc", "new", MIB, 0, 0, "")
    hashes = []
    asking = threading.Thread(target=lambda: hashes.append(hash_of(daemon, "w")))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive() and [row["name"] for row in daemon.rpc("hbm.ls")] == ["w"]
    gated.open()
    other.hear()
    asking.join(20)
    assert hashes == [before] and get(daemon, "w") == b"w" * MIB
    assert daemon.rpc("hbm.devices")[0]["worker_restarts"] == 0 and serves(daemon)


@pytest.mark.parametrize("mood, words", MOODS, ids=[mood.split(":")[1] for mood, _ in MOODS])
def test_where_no_worker_comes_after_all_the_device_fails_and_its_memory_stays(make_daemon, program, mood, words):
    """FAULTS 24, 26: what waited for it ends with its reason."""
    switched = Switched(make_daemon, PATIENCE, supervise=True)
    daemon = switched.daemon
    put(daemon, "w", b"w" * MIB)
    before = hash_of(daemon, "w")
    switched.mood.write_text(mood)
    kill_and_wait(daemon)
    client = program(daemon)
    with pytest.raises(Exception) as caught:
        for _ in range(100):
            client.alloc("new", MIB)
    assert caught.value.name in ("WORKER_DIED", "DEVICE_LOST") and words in caught.value.detail
    daemon.wait_for(lambda: switched.device()["state"] == "failed", 30)
    row = switched.device()
    assert words in row["problem"] and "tried again" in row["remedy"]
    with fails("DEVICE_LOST", words):
        client.alloc("new", MIB)
    client.attach("w")
    assert [row["name"] for row in daemon.rpc("hbm.ls")] == ["w"]
    switched.mood.write_text("")
    daemon.wait_for(lambda: switched.device()["state"] == "ready", 20)
    assert hash_of(daemon, "w") == before and serves(daemon)


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "of another kind": lambda path: path.write_text(path.read_text().replace(f" {DEVICE}\n", f" {OTHER_KIND}\n")),
    "of another device": lambda path: path.write_text(re.sub(r"\n[^\t]+", "\nanother", path.read_text(), count=1)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_of_devices_that_is_not_to_be_believed_is_made_anew(supervised_daemon, damage):
    """FAULTS 27: the devices are looked for as at the first start, and nothing is lost. The unit tests have more of its kind."""
    daemon = supervised_daemon
    path, data = daemon.runtime_dir / "devices", damage.encode() * 1000
    put(daemon, "w", data)
    sound = path.read_text()
    DAMAGE[damage](path)
    kill_and_wait(daemon)
    assert AT_ONCE not in daemon.log and daemon.rpc("hbm.status")["lost"] == 0
    assert get(daemon, "w") == data
    if damage == "a directory":
        assert "Is a directory" in daemon.log
        return
    assert path.read_text() == sound
    kill_and_wait(daemon)
    assert AT_ONCE in daemon.log and get(daemon, "w") == data


def test_without_memory_the_devices_are_looked_for(supervised_daemon):
    kill_and_wait(supervised_daemon)
    assert AT_ONCE not in supervised_daemon.log and serves(supervised_daemon)
    assert (supervised_daemon.runtime_dir / "devices").exists()
