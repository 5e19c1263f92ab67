"""Clients that die, fork or exec at the worst moment (FAULTS 1-6; CASES 26-29)."""
import os
import signal

import pytest

from helpers import (MIB, Client, child, client_program, connect, events, load_layers, module_daemon, program, put, refused,
                     row_of, serves, shared, used)
from tables import publish
from vocab import CODECS, DTYPES
from wire import KEEP, LIMITS, RO, WAIT

SIZE = 8 * MIB


def connected(daemon, say):
    connection = connect(daemon.socket)
    say()
    return connection


def half_a_hello(daemon, say):
    link = Client(daemon.socket)
    link.send("hello", version=LIMITS["version"])
    say()
    return link


def greeted(daemon, say):
    link = Client(daemon.socket)
    link.hello()
    say()
    return link


def reply_unread(daemon, say):
    link = greeted(daemon, lambda: None)
    for _ in range(20):
        link.send("alloc", spec={"size": MIB, "device": 0, "mode": 0o600})
    say()
    return link


def granted_but_not_mapped(daemon, say):
    link = greeted(daemon, lambda: None)
    packet = link.call("alloc", spec={"size": SIZE, "device": 0, "mode": 0o600})
    say()
    return link, packet


def holding_a_write_lock(daemon, say):
    link = greeted(daemon, lambda: None)
    held = link.alloc(SIZE, "held"), link.alloc(SIZE)
    say()
    return link, held


def waiting_for_a_builder(daemon, say):
    builder, waiter = greeted(daemon, lambda: None), greeted(daemon, lambda: None)
    publish(builder, "half", {"t": MIB})
    waiter.send("attach_model", name="half", access=RO, flags=WAIT, timeout_ms=60000)
    say()
    return builder, waiter


def waiting_for_a_lock(daemon, say):
    """Its own other session holds what its offload and its attach wait for."""
    holder, asker = greeted(daemon, lambda: None), greeted(daemon, lambda: None)
    grant, fd = holder.alloc(SIZE, "wanted")
    asker.call("offload", sel="wanted", tier=1)
    asker.send("lock", n=1, slots=[grant["slot"]], timeout_ms=60000)
    say()
    return holder, asker, fd


def in_its_own_offload(daemon, say):
    link, held = holding_a_write_lock(daemon, lambda: None)
    link.unlock(held[0][0]["slot"])
    link.call("offload", sel="held", tier=2)
    say()
    return link, held


def in_its_own_compression(daemon, say):
    link = greeted(daemon, lambda: None)
    spec = {"size": SIZE, "device": 0, "mode": 0o600, "dtype": DTYPES["F32"], "rank": 1, "dims": [SIZE // 4], "name": "floats"}
    grant = link.call("alloc", spec=spec).fields["grant"]
    link.call("compress", sel="floats", encoding={"codec": CODECS["FP16"]}, mode=1)
    say()
    return link, grant


STEPS = [connected, half_a_hello, greeted, reply_unread, granted_but_not_mapped, holding_a_write_lock, waiting_for_a_builder,
         waiting_for_a_lock, in_its_own_offload, in_its_own_compression]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_client_killed_at_any_step_leaves_nothing(shared, child, step):
    """FAULTS 1, CASES 27 and 28: the books name it, its memory comes back without a restart, others are served."""
    kept = []
    victim = child(lambda say: kept.append(step(shared, say)))
    victim.heard()
    pid = victim.pid
    serves(shared)
    shared.wait_for(lambda: step is connected or pid in {row["pid"] for row in shared.rpc("hbm.sessions")})
    victim.kill()
    shared.wait_for(lambda: pid not in {row["pid"] for row in shared.rpc("hbm.sessions")})
    for row in shared.rpc("hbm.ls"):
        if "@" in row["name"]:  # a copy that was whole before its client was killed is kept
            shared.rpc("hbm.free", {"sel": "id:" + row["id"]})
    shared.wait_for(lambda: used(shared) == 0)
    if step is not connected:
        gone = [event for event in events(shared, "session.reclaimed") if event["pid"] == pid]
        assert gone and "after" in gone[-1]["detail"]
    assert serves(shared)


def test_the_time_from_a_kill_to_the_reclaim_is_told_in_milliseconds(shared, child):
    """CASES 29: no heartbeat is waited for. The time itself is measured in the benchmarks."""
    victim = child(lambda say: holding_a_write_lock(shared, say))
    victim.heard()
    victim.kill()
    shared.wait_for(lambda: used(shared) == 0)
    assert " ms" in events(shared, "session.reclaimed")[-1]["detail"]


def test_who_holds_what_is_in_the_books_by_pid(shared, child):
    """CASES 27."""
    victim = child(lambda say: holding_a_write_lock(shared, say))
    victim.heard()
    row = row_of(shared, "held")
    assert [(lease["pid"], lease["access"], lease["locked"]) for lease in row["leases"]] == [(victim.pid, "rw", True)]
    session = [row for row in shared.rpc("hbm.sessions") if row["pid"] == victim.pid][0]
    assert session["bytes"] == 2 * SIZE and session["leases"] == 2


def test_the_memory_of_a_hung_up_writer_waits_for_its_process(shared, child):
    """FAULTS 2: HUP alone frees nothing that the process could still write."""
    def hang_up(say):
        link, _ = holding_a_write_lock(shared, lambda: None)
        link.socket.close()
        say()

    victim = child(hang_up)
    victim.heard()
    row = shared.wait_for(lambda: [row for row in shared.rpc("hbm.sessions") if row["state"] == "quarantined"])[0]
    assert row["pid"] == victim.pid and row["awaiting"] == "its process to end"
    assert used(shared) == 2 * SIZE and shared.rpc("hbm.status")["quarantined"] == 1
    with Client(shared.socket) as other:
        other.hello()
        with refused("EXISTS"):
            other.alloc(SIZE, "held")
    assert used(shared) == 2 * SIZE
    victim.kill()
    shared.wait_for(lambda: used(shared) == 0)
    assert shared.rpc("hbm.status")["quarantined"] == 0


def test_the_reclaim_comes_with_the_pidfd_while_a_forked_child_holds_the_socket(shared, child):
    """FAULTS 3: no hang-up comes, and none is needed."""
    def fork_and_stay(say):
        link, held = holding_a_write_lock(shared, lambda: None)
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        say(grandchild)
        return link, held

    victim = child(fork_and_stay)
    grandchild = int(victim.heard())
    try:
        pid = victim.pid
        victim.kill()
        shared.wait_for(lambda: pid not in {row["pid"] for row in shared.rpc("hbm.sessions")})
        shared.wait_for(lambda: used(shared) == 0)
        os.kill(grandchild, 0)
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("what, answer", [("close", "0"), ("exit", "0"), ("use", "FORKED"), ("detach", "FORKED")])
def test_a_forked_child_cannot_hurt_its_parents_session(shared, program, what, answer):
    """FAULTS 4."""
    parent = program(shared)
    lease, _, _ = parent.alloc("mine", MIB)
    assert parent.ask("fork", what) == ["exited", answer]
    parent.ask("unlock", lease)
    parent.ask("lock", lease, 1000)
    assert len(row_of(shared, "mine")["leases"]) == 1
    parent.ask("detach", lease)


def test_a_forked_child_keeps_no_socket_of_its_parents_session(shared, program):
    """FAULTS 4: the daemon hears the parent hang up, whatever the child goes on with."""
    parent = program(shared)
    parent.alloc("mine", MIB)
    assert parent.ask("fork", "sockets") == ["exited", "0"]


def test_nothing_of_the_session_is_inherited_by_exec(shared, program):
    """FAULTS 5: the sockets, pages and memory are all CLOEXEC."""
    before = program(shared, opened=False)
    baseline = before.ask("exec")
    holder = program(shared)
    holder.alloc("mine", MIB)
    load_layers(shared)
    holder.ask("model", "m", "ro", 0, 1000)
    assert holder.ask("exec") == baseline
    shared.wait_for(lambda: not [row for row in shared.rpc("hbm.sessions") if row["client"] == "client_program"
                                 and row["state"] == "open"])
    # The image is gone, the process is not: what it could write waits for it.
    holder.end()


def test_a_session_is_known_by_its_pidfd_and_not_by_its_number(shared, child):
    """FAULTS 6: the daemon holds a pidfd for each session, so a number that is used again is nobody's."""
    with Client(shared.socket) as link:
        link.hello()
        watched = [os.readlink(f"/proc/{shared.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{shared.process.pid}/fd")]
        assert sum("pidfd" in name for name in watched) >= len(shared.rpc("hbm.sessions"))


def test_a_client_that_frees_all_of_its_own_frees_nobody_elses(shared):
    """CASES 26."""
    put(shared, "kept", b"k" * 5000)
    with Client(shared.socket) as one, Client(shared.socket) as two:
        one.hello(), two.hello()
        mine, _ = one.alloc(4096, "mine", flags=KEEP)
        theirs, _ = two.alloc(4096, "theirs")
        one.call("detach", lease=mine["lease"])
        one.call("free", id=mine["buffer"])
        with refused("BUSY"):
            one.call("free", id=theirs["buffer"])
    assert {row["name"] for row in shared.rpc("hbm.ls")} >= {"kept"}


def test_a_kicked_client_hears_why_and_keeps_nothing(shared, child):
    def stay(say):
        link, _ = holding_a_write_lock(shared, say)
        say(link.gone())

    victim = child(stay)
    victim.heard()
    session = [row["session"] for row in shared.rpc("hbm.sessions") if row["pid"] == victim.pid][0]
    assert shared.rpc("hbm.kick", {"session": session})["pid"] == victim.pid
    assert "operator" in victim.heard()
    victim.kill()
    shared.wait_for(lambda: used(shared) == 0)
