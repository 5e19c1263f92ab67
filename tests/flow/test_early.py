"""Memory that is given before its bytes are there (LOCK_EARLY, ARRIVED), as libhbm asks for it where a GPU's stream waits: what it
comes to, and who dies, fails or changes his mind meanwhile. What libhbm makes of it is in tests/unit/test_libhbm_early.c."""
import contextlib
import mmap
import os

import pytest

from helpers import (MIB, Client, client, ctl_done, hash_of, host_only, module_daemon, put, refused, row_of, shared, sweep, tier_of,
                     used)
from test_faults_worker import Faulty
from wire import LOCK_AWAY, UNLOCKED

DATA = os.urandom(2 * MIB + 5)


@contextlib.contextmanager
def away(daemon):
    """"w" in the host tier, and a client that has it attached and not mapped: (link, slot)."""
    put(daemon, "w", DATA)
    ctl_done(daemon, "offload", "w", "--to", "host")
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.attach("w", flags=UNLOCKED)
        link.set_word(grant["slot"], LOCK_AWAY)
        yield link, grant["slot"]


def lock_early(link, slot):
    """The fd of memory that is not said to be there yet."""
    packet = link.call("lock_early", slot=slot, timeout_ms=20000)
    assert packet.fields["coming"] == 1
    [fd] = packet.fds
    return fd


def lock(link, slot):
    [fd] = link.call("lock", n=1, slots=[slot], timeout_ms=20000).fds
    link.arrive(slot)
    return fd


def bytes_at(fd):
    """And closes it."""
    with mmap.mmap(fd, len(DATA), access=mmap.ACCESS_READ) as memory:
        os.close(fd)
        return bytes(memory)


@host_only
def test_memory_is_given_before_its_bytes_and_holds_them_when_that_is_said(shared):
    with away(shared) as (link, slot):
        fd = lock_early(link, slot)
        link.call("arrived", slot=slot, timeout_ms=20000)
        link.arrive(slot)
        assert bytes_at(fd) == DATA and tier_of(shared, "w") == "device"
        assert row_of(shared, "w")["leases"][0]["locked"]
        link.unlock(slot)
        ctl_done(shared, "offload", "w", "--to", "disk", "--async")
        link.let_go_when_asked(slot)  # it counts as mapped, as after any lock
    sweep(shared)


def test_what_is_resident_is_given_as_by_any_lock(shared):
    with away(shared) as (link, slot):
        ctl_done(shared, "restore", "w")
        packet = link.call("lock_early", slot=slot, timeout_ms=0)
        assert packet.fields["coming"] == 0 and len(packet.fds) == 1
        packet.close()
        link.call("arrived", slot=slot, timeout_ms=0)
    sweep(shared)


def test_slots_that_map_nothing_are_refused(client):
    with refused("INVALID", "slot 7"):
        client.call("lock_early", slot=7, timeout_ms=1000)
    with refused("INVALID", "slot 8192"):
        client.call("arrived", slot=8192, timeout_ms=1000)


@host_only
@pytest.mark.parametrize("action, error", [("kill", "WORKER_DIED"), ("checksum", "CHECKSUM"), ("io", "IO")])
def test_a_copy_that_fails_is_said_and_what_was_given_is_nobodys(make_daemon, action, error):
    """FAULTS 21, 24: the arena is where it was, and comes with the next lock."""
    faulty = Faulty(f"copy:{action}:2", make_daemon)
    daemon = faulty.daemon
    with away(daemon) as (link, slot):
        os.close(lock_early(link, slot))
        with refused(error):
            link.call("arrived", slot=slot, timeout_ms=20000)
        assert tier_of(daemon, "w") == "host" and used(daemon)  # counted for as long as it may be mapped
        link.send("released", serial=0, slot=slot)
        daemon.wait_for(lambda: not used(daemon))
        daemon.wait_for(faulty.ready)
        assert bytes_at(lock(link, slot)) == DATA
    sweep(daemon)


@host_only
def test_an_operation_that_is_cancelled_ends_the_wait_for_it(make_daemon):
    """FAULTS 14: and so does the client's own patience."""
    faulty = Faulty("copy:hold:2", make_daemon)
    daemon = faulty.daemon
    with away(daemon) as (link, slot):
        fd = lock_early(link, slot)
        with refused("TIMEOUT"):
            link.call("arrived", slot=slot, timeout_ms=1)
        waits = link.send("arrived", slot=slot, timeout_ms=20000)
        assert link.call("device", index=0).fields["ready"]  # and keeps nothing else waiting
        [op] = [row["op"] for row in daemon.rpc("hbm.ops") if row["state"] == "running"]
        ctl_done(daemon, "cancel", op)
        with refused("CANCELLED"):
            link.reply(waits)
        assert bytes_at(fd) != DATA and tier_of(daemon, "w") == "host"
        assert bytes_at(lock(link, slot)) == DATA  # says as well that the first is let go of
    sweep(daemon)


@host_only
def test_a_client_that_goes_meanwhile_leaves_the_move_to_end(make_daemon):
    """FAULTS 1."""
    faulty = Faulty("copy:hold:2", make_daemon)
    daemon = faulty.daemon
    with away(daemon) as (link, slot):
        os.close(lock_early(link, slot))
        link.send("arrived", slot=slot, timeout_ms=20000)
    [op] = [row["op"] for row in daemon.rpc("hbm.ops") if row["state"] == "running"]
    ctl_done(daemon, "cancel", op)
    daemon.wait_for(lambda: not used(daemon))
    ctl_done(daemon, "restore", "w")
    assert tier_of(daemon, "w") == "device"
    sweep(daemon)


@host_only
def test_an_owner_that_dies_meanwhile_finds_everything_where_it_was(make_daemon):
    """FAULTS 26: nobody but the client ever knew of that memory."""
    faulty = Faulty("copy:hold:2", lambda: make_daemon(supervise=True))
    daemon = faulty.daemon
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    ctl_done(daemon, "offload", "w", "--to", "host")
    link = Client(daemon.socket)
    link.hello()
    grant, _ = link.attach("w", flags=UNLOCKED)
    link.set_word(grant["slot"], LOCK_AWAY)
    fd = lock_early(link, grant["slot"])
    daemon.kill9()
    link.gone()
    os.close(fd)
    daemon.wait_ready()
    assert tier_of(daemon, "w") == "host" and used(daemon) == 0 and hash_of(daemon, "w") == before
    ctl_done(daemon, "restore", "w")
    assert hash_of(daemon, "w") == before
