"""Clients that outlive the owner (FAULTS 26): it is killed again and again under one that holds a model and a locked
buffer and calls from four threads, and which notices nothing."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import BUILD, Daemon
from helpers import root_only
from resuming import Holder, back, binary, killed, resumed, status  # noqa: F401 (a fixture)

RETRY, BUILDER_DIED, DISCONNECTED = -34, -24, -28


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(supervise=True).start()


@pytest.fixture
def holder(binary, daemon):
    holder = Holder(binary, daemon)
    yield holder
    if holder.process.poll() is None:
        holder.process.kill()
        holder.process.wait()


def row_of(daemon, name):
    return next(row for row in daemon.rpc("hbm.ls") if row["name"] == name)


def ends_clean(daemon, holder):
    """It says BYE, and nothing of it is left."""
    assert holder.end() == 0
    daemon.wait_for(lambda: not daemon.rpc("hbm.sessions"))
    assert {row["name"] for row in daemon.rpc("hbm.ls")} == {"kept", "m/t0", "m/t1", "m/t2", "m/t3"}


def test_a_client_does_not_notice_twenty_kills_of_the_owner(daemon, holder):
    waits = []
    for _ in range(20):
        before = holder.unharmed()
        old, at = killed(daemon)
        answer = holder.ask("ping")
        assert answer["error"] == 0
        waits.append(answer["at"] - at)
        back(daemon, old)
        daemon.wait_for(lambda: resumed(daemon, holder))
        leases = row_of(daemon, "mine")["leases"]
        assert [(lease["pid"], lease["access"], lease["locked"]) for lease in leases] == [(holder.process.pid, "rw", True)]
        assert row_of(daemon, "mine")["id"] == holder.start["mine"][0]
        time.sleep(1.1)  # the supervisor gives one that dies young a longer pause
        assert holder.unharmed() > before
    waits.sort()
    print(f"from SIGKILL to an answer: median {waits[10] * 1000:.0f} ms, longest {waits[-1] * 1000:.0f} ms")
    assert daemon.rpc("hbm.status")["lost"] == 0
    # What is locked stays, but for safe points, which may be late to call a move off; what is not moves under its lockers.
    holder.ask("stay")
    assert daemon.ctl("offload", "mine", "--to", "host", "--force").returncode != 0
    assert daemon.ctl("offload", "roving", "--to", "host", "--force").returncode in (0, 1)
    assert daemon.ctl("offload", "kept", "--to", "disk", "--force").returncode in (0, 1)
    holder.unharmed()
    ends_clean(daemon, holder)


def test_an_owner_killed_before_it_is_ready_is_waited_for(daemon, holder):
    for _ in range(3):
        old, _ = killed(daemon)
        daemon.wait_for(lambda old=old: status(daemon)["pid"] not in (0, old), 30)
    assert holder.ask("ping")["error"] == 0
    daemon.wait_ready()
    daemon.wait_for(lambda: resumed(daemon, holder))
    holder.unharmed()
    ends_clean(daemon, holder)


def test_memory_moves_under_its_lockers_while_owners_come_and_go(daemon, holder):
    """RECLAIM is pending, a LOCK waits, or a move is half-way when it dies; the bytes are right at every lock."""
    for turn in range(8):
        mover = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(daemon.runtime_dir), "offload", "roving", "--to",
                                  ("host", "disk")[turn % 2], "--force"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.003 * turn)
        old, _ = killed(daemon)
        mover.wait(30)
        assert holder.ask("ping")["error"] == 0
        back(daemon, old)
        daemon.ctl("offload", "roving", "--to", "host", "--force")
        time.sleep(0.6)
        holder.unharmed()
    ends_clean(daemon, holder)


def test_what_cannot_be_asked_twice_is_told_to_be_tried_again(daemon, holder):
    """The offload of a locked buffer waits for its reclaim when the owner dies."""
    holder.tell("offload mine")
    time.sleep(0.2)
    old, _ = killed(daemon)
    assert holder.hear()["error"] == RETRY
    back(daemon, old)
    assert holder.ask("half")["error"] == 0
    old, _ = killed(daemon)
    back(daemon, old)
    assert holder.ask("half") == {"error": BUILDER_DIED, "filled": BUILDER_DIED}
    holder.unharmed()
    ends_clean(daemon, holder)


def test_a_full_stop_is_the_end_of_the_session_and_not_of_its_memory(daemon, holder):
    """Under --supervise a good end is the end: what was kept goes. The next daemon does not know the session."""
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.process.wait(30)
    daemon.start()
    assert holder.ask("ping")["error"] == DISCONNECTED
    now = holder.ask("show")
    assert (now["mine"], now["model"]) == (holder.start["mine"], holder.start["model"])


def overwrite(path, where, what):
    with open(path, "r+b") as file:
        file.seek(where if where >= 0 else path.stat().st_size // 2)
        file.write(what)


DAMAGE = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: os.truncate(path, 0),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "overwritten": lambda path: overwrite(path, -1, b"\xff" * 100),
    "another file": lambda path: path.write_bytes(b"nothing of this is a ledger" * 100),
    "with another head": lambda path: overwrite(path, 8, b"\xff"),
}


@pytest.fixture
def holders(binary, daemon):
    made = [Holder(binary, daemon, prefix) for prefix in ("a", "b")]
    yield made
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_a_ledger_that_is_lost_or_damaged_costs_nothing(daemon, holders):
    """FAULTS 27: what the memory is, is known where the memory is. The clients go on, and what nobody holds is there too."""
    def picture():
        return sorted((row["id"], row["name"], row["keep"], row["hash"]) for row in daemon.rpc("hbm.hash", {"sel": "*"})
                      for row in [{**row, **next(each for each in daemon.rpc("hbm.ls") if each["id"] == row["id"])}])

    before = picture()
    for damage in DAMAGE.values():
        old = daemon.pid
        os.kill(daemon.process.pid, signal.SIGSTOP)
        os.kill(old, signal.SIGKILL)
        damage(daemon.runtime_dir / "ledger")
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert [holder.ask("ping")["error"] for holder in holders] == [0, 0]
        back(daemon, old)
        for holder in holders:
            daemon.wait_for(lambda holder=holder: resumed(daemon, holder))
            holder.unharmed()
        assert picture() == before
        assert daemon.rpc("hbm.status")["lost"] == 0
    assert daemon.log.count("made anew from the copy") == len(DAMAGE)
    assert [holder.end() for holder in holders] == [0, 0]
    daemon.wait_for(lambda: not daemon.rpc("hbm.sessions"))
    assert sorted(row["name"] for row in daemon.rpc("hbm.ls") if "/" not in row["name"]) == ["akept", "bkept"]


class Elsewhere(Daemon):
    """In a PID namespace of its own, which its clients are not in: to it, each of them has the number 0."""

    def command(self):
        return ["unshare", "--pid", "--fork", "--mount-proc", *super().command()]

    def outside(self, pid):
        """The number that we know its process by."""
        ours = [row.parent.name for row in pathlib.Path("/proc").glob("[0-9]*/status") if self.is_ours(row, pid)]
        assert len(ours) == 1, ours
        return int(ours[0])

    def is_ours(self, path, pid):
        try:
            numbers = re.search(r"^NSpid:\t(.*)$", path.read_text(encoding="ascii"), re.M)[1].split()
            return numbers[1:] == [str(pid)] and str(self.home) in (path.parent / "cmdline").read_text(encoding="ascii")
        except OSError:
            return False

    def stop(self, seconds=20):
        if self.process.poll() is None:
            os.kill(self.outside(1), signal.SIGTERM)
        return self.process.wait(seconds)


@root_only
def test_an_owner_in_another_pid_namespace_knows_its_clients_by_their_pidfds(binary):
    """FAULTS 16 and 26: SO_PEERCRED says 0 for all of them."""
    daemon = Elsewhere(supervise=True)
    try:
        daemon.start()
        holders = [Holder(binary, daemon, prefix) for prefix in ("a", "b")]
        assert [row["pid"] for row in daemon.rpc("hbm.sessions")] == [0, 0]
        for _ in range(2):
            old = daemon.pid
            os.kill(daemon.outside(old), signal.SIGKILL)
            back(daemon, old)
            daemon.wait_for(lambda: [row["state"] for row in daemon.rpc("hbm.sessions")] == ["open", "open"])
            assert [holder.ask("ping")["error"] for holder in holders] == [0, 0]
            for holder in holders:
                holder.unharmed()
        assert [holder.end() for holder in holders] == [0, 0]
        daemon.wait_for(lambda: not daemon.rpc("hbm.sessions"))
    finally:
        daemon.close()
