"""RESUME: by which a client whose link was cut says who it is and what it holds (FAULTS 26)."""
import contextlib
import fcntl
import mmap
import os
import struct

import pytest

import wire
from resuming import back, killed

BAD_VERSION, INVALID, NOT_FOUND = -2, -3, -4
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(supervise=True).start()


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
