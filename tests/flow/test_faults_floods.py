"""Floods, and readers that stop (FAULTS 9, 10; CASES 24, 28)."""
import contextlib
import os
import select
import time

import wire
from helpers import (OTHER, Client, as_user, child, connect, deaf, events, fails, let_others_in, module_daemon, root_only, serves,
                     settled, shared)
from tables import publish_crowd
from wire import KEEP, UNLOCKED


def test_a_storm_of_connects_keeps_nobody_waiting(shared, child):
    """FAULTS 9, CASES 28: each comes and goes without a word."""
    def storm(say):
        say("begun")
        while True:
            with contextlib.suppress(OSError):
                connect(shared.socket).close()

    storms = [child(storm) for _ in range(3)]
    assert [storm.heard() for storm in storms] == ["begun"] * 3

    def served():
        """Room in the listen queue is waited for, as libhbm's blocking connect does."""
        with contextlib.suppress(BlockingIOError):
            return serves(shared)

    for _ in range(20):
        shared.wait_for(served)
    for each in storms:
        each.kill()
    shared.wait_for(lambda: settled(shared))


@root_only
def test_connections_that_never_say_hello_leave_room_for_others(make_daemon):
    """FAULTS 9: one user has half of all connections at most."""
    daemon = make_daemon(config="max_sessions = 20\n").start()
    let_others_in(daemon)
    with as_user(OTHER):
        links = [connect(daemon.socket) for _ in range(200)]
    with as_user(OTHER - 1):
        with Client(daemon.socket) as link:
            link.hello()
            link.call("device")
    for link in links:
        link.close()


def test_thousands_of_pipelined_requests_are_all_answered_in_order_while_others_are_served(shared):
    """FAULTS 9."""
    with Client(shared.socket) as flood, Client(shared.socket) as other:
        flood.hello()
        other.hello()
        asked, answered = [], []
        flood.socket.setblocking(False)
        while len(answered) < 5000:
            with contextlib.suppress(BlockingIOError):
                while len(asked) < 5000:
                    asked.append(flood.send("device", index=0))
            if len(asked) % 50 == 0:
                other.call("device", index=0)
            with contextlib.suppress(BlockingIOError):
                while packet := flood.receive():
                    answered.append(packet.serial)
        assert answered == asked
        flood.socket.settimeout(10)


def asks_until_it_is_left_unread(link):
    """Its own socket is full then: the daemon queues answers and reads no more of it."""
    asked, seconds = [], link.socket.gettimeout()
    link.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while True:
            asked.append(link.send("device", index=0))
    link.socket.settimeout(seconds)
    return asked


def test_a_reader_that_stops_for_two_seconds_during_a_burst_is_served(shared):
    """FAULTS 10, CASES 24: a client's answers, more of them than its socket holds, and a subscriber's events."""
    with Client(shared.socket) as link, Client(shared.socket) as busy, shared.operator() as operator:
        link.hello()
        busy.hello()
        assert operator.rpc("hbm.subscribe") is True
        asked = asks_until_it_is_left_unread(link)
        leases = [busy.grant(4096)["lease"] for _ in range(300)]
        time.sleep(2)
        assert [link.receive().serial for _ in asked] == asked
        heard = 0
        while heard < 300:
            heard += operator.receive()["params"]["event"] == "buffer.allocated"
        for lease in leases:
            busy.call("detach", lease=lease)


def test_a_client_that_never_reads_is_dropped_at_its_bound_alone(make_daemon):
    """FAULTS 10: it is asked to let go, again and again; requests it has none."""
    daemon = make_daemon(config="reclaim_seconds = 0.01\n").start()
    with wire.Client(daemon.socket) as silent, Client(daemon.socket) as busy:
        silent.hello("silent")
        busy.hello()
        for number in range(50):
            silent.grant(4096, f"b{number}", flags=KEEP)
        for _ in range(400):
            assert "did not let go" in daemon.ctl("offload", "b*", "--to", "host", "--force").stderr
            if dropped := events(daemon, "client.dropped"):
                break
        [event] = dropped
        assert "does not read" in event["detail"] and event["pid"] == os.getpid()
        busy.call("device", index=0)
        assert [session["session"] for session in daemon.rpc("hbm.sessions") if session["state"] == "open"] == [f"0x{busy.session:016x}"]


def test_a_subscriber_that_never_reads_costs_a_bound_and_holds_up_nobody(make_daemon):
    """FAULTS 9 and 10."""
    daemon = make_daemon().start()
    with daemon.operator() as deaf, daemon.operator() as reader, Client(daemon.socket) as busy:
        busy.hello()
        deaf.rpc("hbm.subscribe")
        before = daemon.rpc("hbm.status")["rss_bytes"]
        for _ in range(1000):
            busy.call("detach", lease=busy.grant(4096, "n" * 250)["lease"])
        assert reader.rpc("hbm.status")["rss_bytes"] < before + (64 << 20)
        busy.call("device", index=0)


@root_only
def test_one_users_connections_have_together_what_one_may_have_of_a_turn(make_daemon):
    """FAULTS 9: each asks for what takes milliseconds, on all of its connections at once."""
    daemon = make_daemon().start()
    let_others_in(daemon)
    with contextlib.ExitStack() as stack:
        with as_user(OTHER):
            flood = [stack.enter_context(Client(daemon.socket)) for _ in range(40)]
        link = stack.enter_context(Client(daemon.socket))
        for each in [*flood, link]:
            each.hello()
        publish_crowd(flood[0], "m", 10000)
        os.close(link.alloc(4096, "w")[1])
        with deaf(daemon):  # all of it is there at once
            asked = [each.send("attach_model", name="m", access=0, flags=UNLOCKED, timeout_ms=1000)
                     for _ in range(3) for each in flood]
            own = [link.send("attach", name="w", access=0, flags=UNLOCKED, timeout_ms=1000) for _ in range(40)]
        for number, serial in enumerate(asked):
            flood[number % len(flood)].reply(serial).close()
        for serial in own:
            link.reply(serial).close()
        served = [event["event"] for event in daemon.rpc("hbm.events") if event["event"].endswith(".attached")]
        last = len(served) - served[::-1].index("model.attached")
        assert served[:last].count("buffer.attached") > 10  # three, where each connection had its turn


class Lister:
    def __init__(self, operator):
        self.operator = operator

    def fileno(self):
        return self.operator.socket.fileno()

    def arrived(self):
        return self.operator.socket.recv(1 << 20).count(b"\n")


def answers_beside(link, flood, lines):
    """How often `link` is answered until so many lines of the flood have come."""
    own, ready, by_fd = 0, select.poll(), {one.fileno(): one for one in flood}
    for fd in by_fd:
        ready.register(fd, select.POLLIN)
    while lines > 0:
        link.call("device", index=0)
        own += 1
        for fd, _ in ready.poll(0):
            lines -= by_fd[fd].arrived()
    return own


def test_operators_who_ask_for_much_have_a_turn_together(shared):
    """FAULTS 9: no grant waits for more than one of them."""
    with contextlib.ExitStack() as stack:
        link, owner = (stack.enter_context(Client(shared.socket)) for _ in range(2))
        flood = [Lister(stack.enter_context(shared.operator())) for _ in range(20)]
        link.hello()
        owner.hello()
        publish_crowd(owner, "m", 20000)
        for each in flood:
            for number in range(10):  # what is found is little, and the search long
                each.operator.send({"jsonrpc": "2.0", "id": number, "method": "hbm.ls", "params": {"glob": "m/*x"}})
        assert answers_beside(link, flood, 10 * len(flood)) > 25


def test_what_is_too_long_to_be_told_is_not_counted_to_its_end(shared):
    """FAULTS 9: ten million rows each are minutes of the loop, for answers that nobody gets."""
    with Client(shared.socket) as link, shared.operator(timeout=120) as operator:
        link.hello()
        publish_crowd(link, "m", 10000)
        for _ in range(1000):
            link.call("attach_model", name="m", access=0, flags=UNLOCKED, timeout_ms=1000).close()
        asked = [("hbm.ls", {}), ("hbm.show", {"sel": "m/*"}), ("hbm.why_not_free", {"sel": "m/*"})]
        answers = operator.ask([{"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                                for number, (method, params) in enumerate(asked)])
        assert len(answers) == len(asked)
        assert all("longer than" in answer["error"]["message"] for answer in answers)
        link.call("device", index=0)


def test_an_operation_of_many_buffers_counts_as_several(make_daemon):
    """FAULTS 9: each has a row a buffer, and so many at once were gigabytes of the owner's."""
    daemon = make_daemon(config="account_ops = 2\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        publish_crowd(link, "few", 10000)
        publish_crowd(link, "many", 30000)
        with daemon.operator(120) as patient:
            assert len(patient.rpc("hbm.hash", {"sel": "model:many"})) == 30000
            with fails("LIMIT", "account_ops"):
                patient.rpc("hbm.hash", {"sel": "*"})
            assert len(patient.rpc("hbm.hash", {"sel": "model:few"})) == 10000
    daemon.wait_for(lambda: settled(daemon))
