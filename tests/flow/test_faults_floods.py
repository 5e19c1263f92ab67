"""Floods, and readers that stop (FAULTS 9, 10; CASES 24, 28)."""
import contextlib
import time

from helpers import OTHER, Client, as_user, child, connect, let_others_in, module_daemon, root_only, serves, settled, shared


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


def test_a_reader_that_stops_for_two_seconds_during_a_burst_is_served(shared):
    """FAULTS 10, CASES 24: a client's answers, and a subscriber's events."""
    with Client(shared.socket) as link, Client(shared.socket) as busy, shared.operator() as operator:
        link.hello()
        busy.hello()
        assert operator.rpc("hbm.subscribe") is True
        asked = [link.send("device", index=0) for _ in range(100)]
        leases = [busy.grant(4096)["lease"] for _ in range(300)]
        time.sleep(2)
        assert [link.receive().serial for _ in asked] == asked
        heard = 0
        while heard < 300:
            heard += operator.receive()["params"]["event"] == "buffer.allocated"
        for lease in leases:
            busy.call("detach", lease=lease)


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
