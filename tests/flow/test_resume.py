"""Clients that outlive the owner (FAULTS 26): it is killed again and again under one that holds a model and a locked
buffer and calls from four threads, and which notices nothing."""
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import BUILD, DEVICE, ROOT

if DEVICE != "host":
    pytest.skip("the program touches the memory itself", allow_module_level=True)

RETRY, BUILDER_DIED = -34, -24
SANITIZERS = [flag for flag in os.environ.get("HBM_SANITIZE", "").split() if flag]


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "resume_program"
    subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", f"-I{ROOT}", "-Wall", "-Wextra", "-Werror", "-g", "-O1", *SANITIZERS,
                    str(ROOT / "tests/flow/resume_program.c"), str(BUILD / "libhbm.a"), "-pthread", "-ldl",
                    "-o", str(path)], check=True)
    return path


class Holder:
    def __init__(self, binary, daemon):
        self.daemon = daemon
        self.process = subprocess.Popen([str(binary), str(daemon.runtime_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1)
        self.start = self.hear()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def unharmed(self):
        """No error so far, and everything where and what it was. The number of calls made."""
        now = self.ask("show")
        assert now["errors"] == 0, now["first_error"]
        assert (now["mine"], now["model"]) == (self.start["mine"], self.start["model"])
        return now["calls"]

    def end(self):
        self.process.stdin.close()
        return self.process.wait(30)


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


def status(daemon):
    try:
        return daemon.rpc("hbm.status")
    except (OSError, ConnectionError):
        return {"pid": 0}


def killed(daemon):
    """SIGKILL to the owner; when it was."""
    old = daemon.pid
    at = time.monotonic()
    os.kill(old, signal.SIGKILL)
    return old, at


def back(daemon, old):
    daemon.wait_for(lambda: status(daemon)["pid"] not in (0, old), 30)
    daemon.wait_ready()


def resumed(daemon, holder):
    states = [row["state"] for row in daemon.rpc("hbm.sessions") if row["pid"] == holder.process.pid]
    return states == ["open"]


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
    # What is locked stays, what is not moves under its lockers.
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
    assert holder.ask("half")["error"] == BUILDER_DIED
    holder.unharmed()
    ends_clean(daemon, holder)


def test_a_stop_in_good_order_and_a_start_is_no_end_either(daemon, holder):
    """As systemctl restart: sessions are kept, clients are told, and wait."""
    old = daemon.pid
    os.kill(old, signal.SIGTERM)
    daemon.process.wait(30)  # under --supervise a good end is the end: memory goes, and the session with it
    daemon.start()
    assert holder.ask("ping")["error"] == -28
    assert holder.ask("show")["mine"] == holder.start["mine"]
    holder.process.kill()
