"""What a client sends may take for ever to close, and its memory long: nobody else waits for it (FAULTS 8, 9).

A TCP socket that lingers blocks whoever closes it last until its peer has read everything: here, for a minute. The kernel
closes it at the last reference, so that one which lies unread in a connection does it too."""
import contextlib
import os
import socket
import struct
import time

import pytest

from helpers import MIB, Client, as_user, deaf, let_others_in, module_daemon, root_only, serves, shared, used
from tables import sealed

LINGER = 60
QUICK = 20  # a slow machine's, and less than a linger


@contextlib.contextmanager
def peer():
    """Accepts what lingers and reads nothing; lets all of it go at the end."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # less than what is sent
        taken = []
        yield listener, taken
        for one in taken:
            one.close()


def lingering(meeting):
    """An fd that nobody closes in a hurry."""
    listener, taken = meeting
    one = socket.create_connection(listener.getsockname())
    taken.append(listener.accept()[0])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 18))
    return one.detach()


def send_away(link, name, fds, **how):
    try:
        return link.send(name, fds, **how)
    finally:
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def quickly():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < QUICK


def ranges(buffer):
    return sealed(struct.pack("=4Q", buffer, 0, 0, 4096))


def transfer_of_what_lingers(daemon, link, meeting):
    """It reaches the worker, which takes no socket for a file."""
    grant, fd = link.alloc(4096)
    os.close(fd)
    with deaf(daemon):
        serial = send_away(link, "transfer", [lingering(meeting), ranges(grant["buffer"])], n_ranges=1, write=1)
    op = link.reply(serial).fields["op"]
    ended = link.call("op_wait", op=op, timeout_ms=QUICK * 1000).fields
    assert "regular file" in ended["detail"], ended
    link.call("detach", lease=grant["lease"])


def one_where_none_belongs(daemon, link, meeting):
    with deaf(daemon):
        send_away(link, "device", [lingering(meeting)])
    link.gone()


def a_packet_of_the_wrong_form(daemon, link, meeting):
    with deaf(daemon):
        send_away(link, "device", [lingering(meeting)], n_fds=7)
    link.gone()


def some_that_lie_unread(daemon, link, meeting):
    """Behind what ends the link."""
    with deaf(daemon):
        for _ in range(3):
            send_away(link, "device", [lingering(meeting)])
    link.gone()


@pytest.mark.parametrize("send", [transfer_of_what_lingers, one_where_none_belongs, a_packet_of_the_wrong_form, some_that_lie_unread])
def test_what_a_client_sent_and_does_not_close_holds_up_nobody(shared, send):
    with peer() as meeting, quickly():
        with Client(shared.socket) as link:
            link.hello()
            send(shared, link, meeting)
        assert serves(shared)
        assert used(shared) == 0  # memory is closed beside it


def test_a_stop_does_not_wait_for_it(make_daemon):
    daemon = make_daemon().start()
    with peer() as meeting, quickly():
        with Client(daemon.socket) as link:
            link.hello()
            one_where_none_belongs(daemon, link, meeting)
        assert daemon.stop() == 0


@root_only
def test_a_user_whose_files_do_not_close_is_refused_alone_until_they_do(make_daemon):
    """Each such file costs an fd: so there is a bound, and it is the user's own."""
    daemon = make_daemon().start()
    let_others_in(daemon)

    def send_one():
        """What the daemon says to it. A signal would wake up who lingers: deaf only for the first."""
        with as_user(65534), Client(daemon.socket) as link:
            with contextlib.suppress(BrokenPipeError):
                send_away(link, "device", [os.open("/dev/null", os.O_RDONLY)])
            return link.gone()

    with peer() as meeting:
        with quickly():
            with as_user(65534), Client(daemon.socket) as link:
                link.hello()
                with deaf(daemon):
                    send_away(link, "device", [lingering(meeting)])
            assert "does not close" not in send_one()
            daemon.wait_for(lambda: "does not close" in send_one())
            with as_user(65534), Client(daemon.socket) as link:
                with contextlib.suppress(ConnectionError):
                    link.hello()
                assert "does not close" in link.gone()
            assert serves(daemon)
    with as_user(65534):
        daemon.wait_for(lambda: greets(daemon))


@root_only
def test_however_many_users_files_do_not_close_it_is_no_thread_each(make_daemon):
    """Without a thread to be had, the loop would close the next one itself, and hang there."""
    daemon = make_daemon().start()
    let_others_in(daemon)
    threads = f"/proc/{daemon.pid}/task"
    with peer() as meeting, contextlib.ExitStack() as stack:
        links = []
        for uid in range(60000, 60060):
            with as_user(uid):
                links.append(stack.enter_context(Client(daemon.socket)))
            links[-1].hello()
        before = len(os.listdir(threads))
        with deaf(daemon):
            for link in links:
                send_away(link, "device", [lingering(meeting)])
        for link in links:
            link.gone()
        assert before < len(os.listdir(threads)) < before + 40
        assert serves(daemon)


def greets(daemon):
    with Client(daemon.socket) as link:
        try:
            link.hello()
        except ConnectionError:
            return False
        return True


def test_memory_that_is_given_back_is_told_apart(shared):
    """hbm.devices: what is being closed is part of what is used."""
    with Client(shared.socket) as link:
        link.hello()
        grant, fd = link.alloc(64 * MIB)
        if fd is not None:
            os.close(fd)
        link.call("detach", lease=grant["lease"])
        for device in shared.rpc("hbm.devices"):
            for tier in device["tiers"]:
                assert 0 <= tier["closing"] <= tier["used"]
    assert used(shared) == 0
