"""A daemon whose file descriptors clients have used up (FAULTS 19): it refuses new work with a reason, goes on with the
rest, and answers operators."""
import contextlib
import os
import signal

import pytest

from conftest import Daemon
from helpers import ERROR_NAMES, MIB, Client, ctl_done, events, fds_of, refused, serves, used
from tables import publish
import wire
from wire import KEEP, UNLOCKED, Refused

LIMIT = 64


class Starved(Daemon):
    def command(self):
        return ["prlimit", f"--nofile={LIMIT}:{LIMIT}", *super().command()]


@pytest.fixture
def starved():
    daemon = Starved().start()
    yield daemon
    daemon.close()


@contextlib.contextmanager
def filled(daemon, client):
    """Buffers b0, b1 and so on until no more are made, then connections until no more are taken; the buffers' leases."""
    leases = []
    with refused("DEGRADED", "file descriptors", "LimitNOFILE"):
        for number in range(2 * LIMIT):
            grant, fd = client.alloc(4096, f"b{number}", flags=KEEP)
            os.close(fd)
            leases.append(grant["lease"])
    assert leases
    with contextlib.ExitStack() as stack:
        while not turned_away(stack.enter_context(Client(daemon.socket, timeout=0.2))):
            pass
        yield leases


def turned_away(link):
    try:
        return "LimitNOFILE" in link.gone()
    except TimeoutError:
        return False


def serves_again(daemon):
    try:
        return serves(daemon)
    except (Refused, ConnectionError):
        return False


@contextlib.contextmanager
def operators(daemon, n):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(daemon.operator()) for _ in range(n)]


def test_what_needs_an_fd_is_refused_with_a_reason_and_nothing_is_lost(starved):
    """FAULTS 19: and some are left for who is no client."""
    with Client(starved.socket) as client:
        client.hello()
        with filled(starved, client) as leases:
            before = used(starved)
            assert fds_of(starved.pid) <= LIMIT - LIMIT // 8, "a quarter is for who is no client, and he is there now"
            for _ in range(3):
                with refused("DEGRADED", "LimitNOFILE"):
                    client.alloc(MIB)
            assert used(starved) == before
            for lease in leases:
                client.call("detach", lease=lease)
            for number in range(len(leases)):
                starved.rpc("hbm.free", {"sel": f"b{number}"})
        assert used(starved) == 0
    starved.wait_for(lambda: serves_again(starved))


def test_what_was_under_way_as_they_ran_out_is_refused_and_its_memory_gone(starved):
    """The worker has made it and sent its fd: that has no room here."""
    with Client(starved.socket) as client:
        client.hello()
        [device] = starved.rpc("hbm.devices")
        spec = {"size": 2 * MIB, "device": 0, "mode": 0o600}
        serials, answers = [], {}

        def take():
            packet = client.receive()
            packet.close()
            answers[packet.serial] = packet

        for number in range(2 * LIMIT):
            serials.append(client.send("alloc", spec=spec))
            if number >= 8:  # no more unread, or a client that is slow to read would be sent away for that
                take()
        while len(answers) < len(serials):
            take()
        granted = sum(answers[serial].status == 0 for serial in serials)
        refusals = {(ERROR_NAMES[packet.status], "LimitNOFILE" in packet.detail) for packet in answers.values() if packet.status}
        assert granted and refusals and refusals <= {("LIMIT", True), ("DEGRADED", True)}, refusals
        assert used(starved) == granted * 2 * MIB
        assert starved.rpc("hbm.devices")[0]["worker_pid"] == device["worker_pid"]


def test_an_operator_is_answered_all_the_same(starved):
    with Client(starved.socket) as client:
        client.hello()
        with filled(starved, client), operators(starved, 8) as asking:
            for one in asking:
                assert one.rpc("hbm.status")["sessions"] == 1
            assert "b0" in ctl_done(starved, "ls")
            ctl_done(starved, "status")
            assert "no operator can be accepted" not in starved.log  # else it has waited for a client to go


def test_a_worker_that_dies_then_is_replaced(starved):
    with Client(starved.socket) as client:
        client.hello()
        with filled(starved, client):
            [device] = starved.rpc("hbm.devices")
            os.kill(device["worker_pid"], signal.SIGKILL)
            starved.wait_for(lambda: starved.rpc("hbm.devices")[0]["worker_pid"] not in (0, device["worker_pid"]))
            client.call("device")


def test_readers_of_one_buffer_share_its_fd(starved):
    """The daemon holds one for all of them, however many attach."""
    with Client(starved.socket) as client:
        client.hello()
        os.close(client.alloc(4096, "b", flags=KEEP)[1])
        for number in range(2 * LIMIT):
            os.close(client.attach("b")[1])
            if not number:
                before = fds_of(starved.process.pid)
        starved.wait_for(lambda: fds_of(starved.process.pid) <= before)


class Cramped(Daemon):
    def command(self):
        return ["prlimit", "--nofile=600:600", *super().command()]


def test_fds_that_a_client_leaves_unread_leave_workers_room_for_theirs():
    """FAULTS 9, 19: the kernel counts what is in flight of all processes of one user together."""
    daemon = Cramped().start()
    with wire.Client(daemon.socket) as hoard, Client(daemon.socket) as builder:
        hoard.hello()
        builder.hello()
        packet = publish(builder, "m", {f"t{number}": 64 for number in range(40)})
        packet.close()
        builder.call("commit", lease=packet.fields["lease"], commit=1)
        with contextlib.suppress(ConnectionError):  # it is ended in the middle of this
            for _ in range(50):
                hoard.send("attach_model", name="m", access=0, flags=UNLOCKED, timeout_ms=1000)
                hoard.send("attach_model", name="m", access=0, flags=0, timeout_ms=1000)
        daemon.wait_for(lambda: events(daemon, "client.dropped"))
        for _ in range(5):
            assert serves(daemon)
        assert [device["worker_restarts"] for device in daemon.rpc("hbm.devices")] == [0]
    daemon.close()
