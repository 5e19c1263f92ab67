"""Clients that outlive the owner (FAULTS 26): it is killed again and again under one that holds a model and a locked
buffer and calls from four threads, and which notices nothing."""
import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import re
import signal
import struct
import subprocess
import time

import pytest

import wire
from conftest import BUILD, ROOT, Daemon
from helpers import root_only, sanitizer_flags

RETRY, BUILDER_DIED, DISCONNECTED = -34, -24, -28
BAD_VERSION, INVALID, NOT_FOUND = -2, -3, -4
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "resume_program"
    subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", f"-I{ROOT}", "-Wall", "-Wextra", "-Werror", "-g", "-O1", *sanitizer_flags(),
                    str(ROOT / "tests/flow/resume_program.c"), str(BUILD / "libhbm.a"), "-pthread", "-ldl",
                    "-o", str(path)], check=True)
    return path


class Holder:
    def __init__(self, binary, daemon, prefix=""):
        self.daemon = daemon
        self.process = subprocess.Popen([str(binary), str(daemon.runtime_dir), prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
    assert holder.ask("half")["error"] == BUILDER_DIED
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


# ---- The message ----

def presented(leases, slots=(), seals=SEALS):
    used = bytearray(wire.LIMITS["lock_slots"] // 8)
    for slot in slots:
        used[slot // 8] |= 1 << slot % 8
    fd = os.memfd_create("leases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, struct.pack(f"={len(leases)}Q", *leases) + used)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Known:
    """A session of this process, opened and cut by the owner's death."""

    def __init__(self, daemon):
        self.daemon = daemon
        with contextlib.closing(wire.Client(daemon.socket)) as link:
            hello = link.hello()
            self.id, self.secret = hello["session"], hello["secret"]
            grant, fd = link.alloc(4096, "mine")
            os.close(fd)
            link.arrive(grant["slot"])
            self.lease, self.slot = grant["lease"], grant["slot"]
            self.page, link.page = link.page, None
            old, _ = killed(daemon)
            back(daemon, old)

    def resume(self, link, fd=None, **fields):
        fd = presented([self.lease], [self.slot]) if fd is None else fd
        try:
            return link.call("resume", [fd], **{"session": self.id, "secret": self.secret, "version": wire.LIMITS["version"],
                                                "n_leases": 1, "client": "known", **fields})
        finally:
            os.close(fd)


@pytest.fixture
def known(daemon):
    return Known(daemon)


def refusal(known, fd=None, **fields):
    with wire.Client(known.daemon.socket) as link:
        with pytest.raises(wire.Refused) as caught:
            known.resume(link, fd, **fields)
        link.gone()
        return caught.value.status, caught.value.detail


def test_whoever_guesses_learns_nothing(known):
    secret = bytearray(known.secret)
    secret[31] ^= 1
    words = {refusal(known, secret=bytes(secret)), refusal(known, session=known.id + 1), refusal(known, session=0),
             refusal(known, secret=bytes(32)), refusal(known, session=known.lease)}
    assert words == {(NOT_FOUND, "no session of that id waits for you")}
    child = os.fork()
    if child == 0:
        os._exit(0 if refusal(known)[0] == NOT_FOUND else 1)
    assert os.waitpid(child, 0)[1] == 0, "another process has it not, whatever it knows"
    with wire.Client(known.daemon.socket) as link:
        assert known.resume(link).fields["n_lost"] == 0
        assert refusal(known) == words.pop(), "nor a second time"
        link.call("detach", lease=known.lease)
        link.call("bye")


def test_a_malformed_resume_ends_nothing_but_its_link(known):
    assert refusal(known, version=99)[0] == BAD_VERSION
    assert refusal(known, n_leases=2)[0] == INVALID
    assert refusal(known, n_leases=0)[0] == INVALID
    assert refusal(known, n_leases=0xffffffff)[0] < 0
    assert refusal(known, presented([known.lease], seals=0))[0] == INVALID
    assert refusal(known, os.open("/dev/null", os.O_RDONLY))[0] == INVALID
    with wire.Client(known.daemon.socket) as link:
        link.hello()
        link.send("resume", [0], session=known.id, secret=known.secret, version=1)
        assert "RESUME after its HELLO" in link.gone()
    with wire.Client(known.daemon.socket) as link:
        link.send("resume", session=known.id, secret=known.secret, version=1)
        assert "fewer file descriptors" in link.gone()
    with wire.Client(known.daemon.socket) as link:
        known.resume(link)
        link.call("bye")


def test_what_a_client_does_not_list_ends_and_what_is_not_known_is_told(known):
    stranger = known.lease ^ 0xff << 40
    with wire.Client(known.daemon.socket) as link:
        reply = known.resume(link, presented([stranger], [known.slot]))
        assert reply.fields["n_lost"] == 1
        with mmap.mmap(reply.fds[0], 0, prot=mmap.PROT_READ) as lost:
            assert struct.unpack("=Q", lost[:]) == (stranger,)
        reply.close()
        link.page = known.page
        assert known.daemon.rpc("hbm.ls") == []
        row = known.daemon.rpc("hbm.sessions")[0]
        assert (row["state"], row["client"]) == ("open", "known")
        assert [event["id"] for event in known.daemon.rpc("hbm.events") if event["event"] == "session.resumed"]
        grant, fd = link.alloc(4096)
        os.close(fd)
        assert grant["slot"] != known.slot, "the client maps something there"
        link.call("bye")
