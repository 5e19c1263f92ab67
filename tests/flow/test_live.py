"""Live demotion: a client's memory goes to the host tier and comes back under it, at its safe points, while it stays
attached; and leases on memory where it lies (FAULTS 13, 14, 16, 23, 24, 26)."""
import concurrent.futures
import contextlib
import os

import pytest

from conftest import Daemon
from helpers import (MIB, Client, Program, client, client_program, ctl_done, ctl_json, ctl_refused, empty, fails, hash_of, host_only,
                     load_layers, module_daemon, program, put, row_of, settled, shared, sweep, tier_of, used)
from test_faults_worker import Faulty
from test_prefetch import stopped_worker
from resuming import back
from wire import IN_PLACE, KEEP, LIVE, LOCK_RECLAIM, RO, UNLOCKED

HOST = 1


def state(daemon, op):
    return [row["state"] for row in daemon.rpc("hbm.ops") if row["op"] == op][0]


def begin(daemon, *words):
    return ctl_done(daemon, *words, "--async").strip()


def demote(sel="w"):
    return "offload", sel, "--to", "host", "--live", "--force"


def goes_on(daemon, op, *programs):
    """Each is at a safe point again and again, whatever the others do, until the operation has ended; how it did."""
    def works(each):
        while state(daemon, op) == "running":
            each.ask("safepoint", 30000)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(works, programs))
    daemon.ctl("wait", op)
    return state(daemon, op)


def moved(daemon, words, *programs):
    op = begin(daemon, *words)
    assert goes_on(daemon, op, *programs) == "done", daemon.ctl("wait", op).stderr


@contextlib.contextmanager
def copying(daemon, words, *programs):
    """In the block they have let go of w, which they may write, and the copy is in the worker's hands."""
    with Client(daemon.socket) as other:
        other.hello()
        grant, fd = other.attach("w")
        os.close(fd)
        op = begin(daemon, *words)
        daemon.wait_for(lambda: other.word(grant["slot"]) & LOCK_RECLAIM)
        with stopped_worker(daemon):
            for each in programs:
                each.say("safepoint", 30000)
            other.call("detach", lease=grant["lease"])
            other.close()
            daemon.wait_for(lambda: not any(lease["locked"] for lease in row_of(daemon, "w")["leases"]))
            yield op


def is_live(daemon, name="w"):
    row = row_of(daemon, name)
    return row["tier"], row["live"]


# ---- The move, under those who have it ----

@host_only
def test_a_writer_and_a_reader_go_on_in_host_memory_and_back_many_times(shared, program):
    """Same addresses, every byte, and each tier booked."""
    writer, reader = program(shared), program(shared)
    lease, _, address = writer.alloc("w", 3 * MIB, KEEP)
    index, _, seen = reader.attach("w")
    device = used(shared)
    for turn in range(10):
        for words, where in ((demote(), ("host", True)), (("restore", "w"), ("device", False))):
            writer.ask("fill", lease, 2 * turn + (where[0] == "host"))
            before, hashes = writer.ask("sum", lease), hash_of(shared, "w")
            moved(shared, words, writer, reader)
            assert is_live(shared) == where and hash_of(shared, "w") == hashes
            assert writer.ask("sum", lease) == reader.ask("sum", index) == before
            assert writer.ask("pointer", lease) == [address] and reader.ask("pointer", index) == [seen]
            assert writer.ask("tier", lease) == reader.ask("tier", index) == [where[0]]
            assert (used(shared), empty(shared, "host")) == ((0, False) if where[0] == "host" else (device, True))
    writer.ask("detach", lease)


@host_only
def test_two_engines_at_work_never_see_a_byte_that_is_not_theirs(shared, client_program):
    """Steps without end, and one move after the other under them."""
    engines = []
    for name in ("a", "b"):
        engines.append(Program(client_program, shared))
        engines[-1].ask("open", 0)
        lease, _, _ = engines[-1].alloc(f"w.{name}", MIB // 2, KEEP)
        engines[-1].say("steps", lease, 100000000, 30000)
    try:
        for _ in range(15):
            ctl_done(shared, *demote("w.*"))
            assert is_live(shared, "w.a") == is_live(shared, "w.b") == ("host", True)
            ctl_done(shared, "restore", "w.*")
            assert is_live(shared, "w.a") == is_live(shared, "w.b") == ("device", False)
        assert [engine.process.poll() for engine in engines] == [None, None], "they are at it still"
    finally:
        for engine in engines:
            engine.kill()


@host_only
def test_a_lock_of_what_was_demoted_moves_nothing(shared, program):
    """FAULTS 16: it counts as resident, for whoever has it attached; a second attach gets the same memory."""
    holder = program(shared)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 7)
    holder.ask("unlock", lease)
    ctl_done(shared, *demote())
    assert holder.ask("tier", lease) == ["away"]
    before = ctl_json(shared, "ops")
    holder.ask("lock", lease, 0)
    assert holder.ask("pointer", lease) == [address] and holder.ask("peek", lease, 5) == ["7"]
    other = program(shared)
    index, _, _ = other.attach("w")
    assert other.ask("tier", index) == ["host"]
    holder.ask("poke", lease, 5, 8)
    assert other.ask("peek", index, 5) == ["8"]
    assert ctl_json(shared, "ops") == before and is_live(shared) == ("host", True)
    assert "host, live" in ctl_done(shared, "ls", "w")
    assert waits_of(shared) == 0


def waits_of(daemon):
    return daemon.rpc("hbm.show", {"sel": "w"})[0]["lock_waits"]


@host_only
def test_what_lies_in_host_memory_already_is_used_there_from_the_next_lock_on(shared, program):
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 9)
    holder.ask("unlock", lease)
    ctl_done(shared, "offload", "w", "--to", "host")
    assert is_live(shared) == ("host", False)
    ctl_done(shared, *demote())
    holder.ask("lock", lease, 5000)
    assert holder.ask("tier", lease) == ["host"] and is_live(shared) == ("host", True)
    ctl_done(shared, "prefetch", "w")
    assert is_live(shared) == ("host", True), "a hint moves nothing that is in use"


@host_only
def test_when_nobody_has_it_any_more_it_is_like_anything_offloaded(shared, program):
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 4)
    moved(shared, demote(), holder)
    holder.ask("detach", lease)
    assert is_live(shared) == ("host", False)
    index, _, _ = holder.attach("w")
    assert holder.ask("tier", index) == ["device"] and holder.ask("peek", index, 1) == ["4"]


@host_only
def test_what_is_written_in_host_memory_comes_back_and_goes_to_disk_as_it_is(shared, program):
    """FAULTS 21: what was hashed when it came there is not what is read again, and nobody calls that damaged."""
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    moved(shared, demote(), holder)
    holder.ask("fill", lease, 1)
    moved(shared, ("restore", "w"), holder)
    assert holder.ask("peek", lease, MIB - 1) == ["1"]
    moved(shared, demote(), holder)
    holder.ask("fill", lease, 2)
    holder.ask("unlock", lease)
    ctl_done(shared, "offload", "w", "--to", "disk")
    assert is_live(shared) == ("disk", False)
    holder.ask("lock", lease, 20000)
    assert holder.ask("tier", lease) == ["device"] and holder.ask("peek", lease, 77) == ["2"]


@host_only
def test_a_model_is_demoted_layer_by_layer_under_its_reader(shared, program):
    load_layers(shared, "m", 4)
    reader = program(shared)
    reader.ask("model", "m", "ro", 0, 5000)
    before = reader.ask("msum", 0)
    for i in (1, 3, 0, 2):
        moved(shared, demote(f"m/layers.{i}.weight"), reader)
    assert reader.ask("mtier", 0) == ["host"] * 4 and reader.ask("msum", 0) == before and used(shared) == 0
    moved(shared, ("wake", "m"), reader)
    assert reader.ask("mtier", 0) == ["device"] * 4 and reader.ask("msum", 0) == before and empty(shared, "host")


def test_only_host_memory_can_be_used_where_it_lies(shared):
    put(shared, "w", b"w" * MIB)
    ctl_refused(shared.ctl("offload", "w", "--to", "disk", "--live"), 1, "host")
    assert tier_of(shared, "w") == "device"
    ctl_done(shared, *demote())
    assert is_live(shared) == ("host", False), "nobody has it attached"


@host_only
def test_a_client_moves_its_own_memory_between_its_steps(shared, program):
    """hbm_offload with HBM_LIVE, waited for by another thread of the program's: here by an operator."""
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    with fails("INVALID", "HBM_LIVE"):
        holder.ask("op", "offload", "w", 2, LIVE)
    holder.ask("unlock", lease)
    holder.ask("op", "offload", "w", HOST, LIVE)
    assert is_live(shared) == ("host", True)


# ---- Those who do not come along ----

@pytest.fixture(scope="module")
def quick_daemon():
    daemon = Daemon(config="reclaim_seconds = 0.3\n").start()
    yield daemon
    daemon.close()


@pytest.fixture
def quick(quick_daemon):
    yield quick_daemon
    quick_daemon.check()
    sweep(quick_daemon)


@host_only
@pytest.mark.parametrize("access", ["ro", "rw"])
def test_a_client_that_reaches_no_safe_point_is_named_and_nothing_moved(quick, program, access):
    """FAULTS 13, 16: all or nothing over those who have it, and over all that was asked for."""
    willing, stuck = program(quick), program(quick)
    leases = [willing.alloc(f"w{i}", MIB, KEEP)[0] for i in range(2)]
    for lease in leases:
        willing.ask("fill", lease, 5)
    stuck.attach("w1", access)
    device, before = used(quick), hash_of(quick, "w*")
    op = begin(quick, *demote("w*"))
    assert goes_on(quick, op, willing) == "failed"
    ctl_refused(quick.ctl("wait", op), 1, f"pid {stuck.process.pid}")
    for i, lease in enumerate(leases):
        assert is_live(quick, f"w{i}") == ("device", False)
        assert willing.ask("tier", lease) == ["device"] and willing.ask("peek", lease, 3) == ["5"]
    assert used(quick) == device and empty(quick, "host") and hash_of(quick, "w*") == before


@host_only
def test_a_client_in_the_middle_of_a_step_is_not_touched(shared, program):
    """FAULTS 16: what it locks and unlocks meanwhile stays, until it is between two steps."""
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 1)
    op = begin(shared, *demote())
    for value in range(2, 6):
        holder.ask("lock", lease, 0)
        holder.ask("fill", lease, value)
        holder.ask("unlock", lease)
        assert holder.ask("tier", lease) == ["device"] and is_live(shared)[0] == "device"
    assert goes_on(shared, op, holder) == "done"
    assert holder.ask("tier", lease) == ["host"] and holder.ask("peek", lease, 0) == ["5"]


@host_only
def test_a_demotion_that_is_cancelled_moves_nothing(shared, program):
    """FAULTS 14: while it waits for a safe point, and while it copies."""
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 6)
    op = begin(shared, *demote())
    ctl_done(shared, "cancel", op)
    assert state(shared, op) == "cancelled"
    with shared.operator() as operator:
        with copying(shared, demote(), holder) as op:
            operator.send({"jsonrpc": "2.0", "id": 1, "method": "hbm.cancel", "params": {"op": op}})
            assert operator.ask({"jsonrpc": "2.0", "id": 2, "method": "hbm.status"})["id"] == 2, "it has heard that"
        assert operator.receive()["result"]["state"] == "cancelled"
    holder.hear()
    assert is_live(shared) == ("device", False) and holder.ask("tier", lease) == ["device"]
    assert holder.ask("peek", lease, 1) == ["6"] and empty(shared, "host")


@host_only
def test_a_reader_reads_on_while_its_memory_is_copied(shared, program):
    """FAULTS 16: it is asked to let go when the copy is there."""
    put(shared, "w", b"w" * MIB)
    reader = program(shared)
    index, _, _ = reader.attach("w")
    with stopped_worker(shared):
        op = begin(shared, *demote())
        reader.ask("safepoint", 0)
        assert state(shared, op) == "running" and reader.ask("tier", index) == ["device"]
    assert goes_on(shared, op, reader) == "done" and reader.ask("tier", index) == ["host"]


# ---- Deaths ----

@host_only
@pytest.mark.parametrize("when", ["asked", "copied", "demoted", "asked back"])
def test_a_client_that_dies_in_a_demotion_takes_nothing_along(shared, client_program, program, when):
    """FAULTS 1, 16: the other goes on, and the books balance."""
    holder = program(shared)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 3)
    victim = Program(client_program, shared)
    victim.ask("open", 0)
    victim.attach("w", "rw")
    if when == "copied":
        with copying(shared, demote(), victim, holder) as op:
            victim.kill()
        holder.hear()
    elif when == "asked":
        op = begin(shared, *demote())
        victim.kill()
    else:
        moved(shared, demote(), victim, holder)
        op = begin(shared, "restore", "w") if when == "asked back" else None
        victim.kill()
    if op:
        assert goes_on(shared, op, holder) == "done"
    shared.wait_for(lambda: len(shared.rpc("hbm.sessions")) == 1)
    assert is_live(shared) == (("device", False) if when == "asked back" else ("host", True))
    assert holder.ask("peek", lease, 2) == ["3"]
    moved(shared, ("restore", "w"), holder)
    assert holder.ask("peek", lease, 2) == ["3"] and empty(shared, "host")


@host_only
@pytest.mark.parametrize("words", [demote(), ("restore", "w")], ids=["demotion", "promotion"])
def test_a_worker_that_dies_in_the_copy_leaves_everybody_where_he_was(make_daemon, program, words):
    """FAULTS 24."""
    faulty = Faulty(f"copy:kill:{1 if words[0] == 'offload' else 2}", make_daemon)
    holder = program(faulty.daemon)
    lease, _, _ = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 8)
    where = ("device", False)
    if words[0] == "restore":
        moved(faulty.daemon, demote(), holder)
        where = ("host", True)
    op = begin(faulty.daemon, *words)
    assert goes_on(faulty.daemon, op, holder) == "failed"
    assert is_live(faulty.daemon) == where and holder.ask("tier", lease) == [where[0]]
    assert holder.ask("peek", lease, 0) == ["8"]
    faulty.daemon.wait_for(faulty.ready)
    moved(faulty.daemon, words, holder)
    assert is_live(faulty.daemon)[0] != where[0] and holder.ask("peek", lease, 0) == ["8"]
    holder.end()


def next_owner(daemon):
    """The one that serves is killed; the next has the clients back."""
    n = len(daemon.rpc("hbm.sessions"))
    back(daemon, daemon.kill9())
    daemon.wait_for(lambda: [row["state"] for row in daemon.rpc("hbm.sessions")] == ["open"] * n)


@host_only
@pytest.mark.parametrize("when", ["asked", "copied", "demoted", "away", "asked back", "copied back"])
def test_an_owner_killed_in_a_demotion_is_followed_by_one_that_knows_where_everybody_is(make_daemon, program, when):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True).start()
    holder = program(daemon)
    lease, _, address = holder.alloc("w", MIB, KEEP)
    holder.ask("fill", lease, 1)
    words = demote()
    if when in ("demoted", "away", "asked back", "copied back"):
        moved(daemon, words, holder)
        holder.ask("fill", lease, 2)
        words = ("restore", "w")
    if when == "away":
        holder.ask("unlock", lease)
    before, value, live = hash_of(daemon, "w"), holder.ask("peek", lease, 9), is_live(daemon)
    if when in ("copied", "copied back"):
        with copying(daemon, words, holder):
            old = daemon.kill9()
        back(daemon, old)
        holder.hear()
    else:
        if when.startswith("asked"):
            begin(daemon, *words)
        next_owner(daemon)
    assert is_live(daemon) == live and hash_of(daemon, "w") == before
    if when == "away":
        holder.ask("lock", lease, 0)
    assert holder.ask("pointer", lease) == [address] and holder.ask("tier", lease) == [live[0]]
    assert holder.ask("peek", lease, 9) == value
    holder.ask("safepoint", 0)
    for words, where in ((demote(), ("host", True)), (("restore", "w"), ("device", False))):
        moved(daemon, words, holder)
        assert is_live(daemon) == where and holder.ask("peek", lease, 9) == value and hash_of(daemon, "w") == before
    holder.end()
    sweep(daemon)


@host_only
def test_what_was_demoted_is_not_live_for_an_owner_whose_clients_are_all_gone(make_daemon, client_program):
    """FAULTS 26: they die with nobody there to see it."""
    daemon = make_daemon(supervise=True).start()
    holder = Program(client_program, daemon)
    holder.ask("open", 0)
    holder.alloc("w", MIB, KEEP)
    moved(daemon, demote(), holder)
    before, old = hash_of(daemon, "w"), daemon.kill9()
    holder.kill()
    back(daemon, old)
    daemon.wait_for(lambda: settled(daemon))
    assert is_live(daemon) == ("host", False) and hash_of(daemon, "w") == before
    sweep(daemon)


# ---- In place ----

@host_only
def test_a_lease_in_place_maps_host_memory_as_it_lies(shared, program):
    data = os.urandom(MIB)
    put(shared, "w", data)
    ctl_done(shared, "offload", "w", "--to", "host")
    reader = program(shared)
    index, _, address = reader.attach("w", "ro", IN_PLACE)
    assert reader.ask("tier", index) == ["host"] and is_live(shared) == ("host", False) and used(shared) == 0
    wrote = reader.ask("sum", index)
    reader.ask("unlock", index)
    ctl_done(shared, "offload", "w", "--to", "disk")
    reader.ask("lock", index, 20000)
    assert reader.ask("tier", index) == ["host"] and reader.ask("sum", index) == wrote and used(shared) == 0
    reader.ask("unlock", index)
    ctl_done(shared, "restore", "w")
    reader.ask("lock", index, 20000)
    assert reader.ask("tier", index) == ["device"] and reader.ask("sum", index) == wrote
    assert reader.ask("pointer", index) == [address]
    moved(shared, demote(), reader)
    assert reader.ask("tier", index) == ["host"] and reader.ask("sum", index) == wrote


@host_only
def test_what_is_on_disk_comes_to_host_memory_for_a_lease_in_place(shared, program):
    load_layers(shared, "m", 3)
    before = hash_of(shared, "model:m")
    ctl_done(shared, "sleep", "m", "--to", "disk")
    ctl_done(shared, "restore", "m/layers.1.weight")
    reader = program(shared)
    reader.ask("model", "m", "ro", IN_PLACE, 20000)
    assert reader.ask("mtier", 0) == ["host", "device", "host"] and hash_of(shared, "model:m") == before
    sums = reader.ask("msum", 0)
    reader.ask("munlock", 0)
    ctl_done(shared, "sleep", "m", "--to", "disk")
    reader.ask("mlock", 0, 20000)
    assert reader.ask("mtier", 0) == ["host"] * 3 and reader.ask("msum", 0) == sums


@host_only
def test_a_lease_in_place_and_another_of_one_process_have_each_what_they_asked_for(shared, program):
    put(shared, "w", b"w" * MIB)
    ctl_done(shared, "offload", "w", "--to", "host")
    reader = program(shared)
    one, _, here = reader.attach("w", "ro", IN_PLACE)
    reader.ask("unlock", one)
    two, _, there = reader.attach("w", "ro", 0, 20000)
    assert here != there and reader.ask("tier", two) == ["device"]
    reader.ask("lockall", 20000)
    assert reader.ask("tier", one) == ["device"] and reader.ask("sum", one) == reader.ask("sum", two)


@host_only
def test_who_wants_on_the_device_what_another_uses_in_place_waits_for_its_safe_point(quick, program):
    """FAULTS 16, 23: or is refused, by pid, when none comes in time."""
    put(quick, "w", b"w" * MIB)
    ctl_done(quick, "offload", "w", "--to", "host")
    engine, other = program(quick), program(quick)
    index, _, _ = engine.attach("w", "rw", IN_PLACE)
    engine.ask("fill", index, 5)
    with fails("BUSY", f"pid {engine.process.pid}"):
        other.attach("w", "ro", 0, 60000)
    assert engine.ask("tier", index) == ["host"] and used(quick) == 0
    engine.ask("unlock", index)
    got, _, _ = other.attach("w", "ro", 0, 60000)
    assert other.ask("tier", got) == ["device"] and other.ask("peek", got, 3) == ["5"]
    engine.ask("lock", index, 5000)
    assert engine.ask("tier", index) == ["device"] and engine.ask("peek", index, 3) == ["5"]


@host_only
def test_a_lease_in_place_outlives_the_owner(make_daemon, program):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True).start()
    put(daemon, "w", b"w" * MIB)
    ctl_done(daemon, "offload", "w", "--to", "host")
    engine = program(daemon)
    index, _, _ = engine.attach("w", "rw", IN_PLACE)
    engine.ask("fill", index, 6)
    next_owner(daemon)
    engine.ask("unlock", index)
    ctl_done(daemon, "offload", "w", "--to", "disk")
    engine.ask("lock", index, 20000)
    assert engine.ask("tier", index) == ["host"] and engine.ask("peek", index, 1) == ["6"]
    engine.end()
    daemon.wait_for(lambda: settled(daemon))
    sweep(daemon)


def test_a_lease_in_place_of_what_is_on_the_device_is_a_lease_like_any(shared, client):
    put(shared, "w", b"w" * MIB)
    grant, _ = client.attach("w", flags=IN_PLACE, timeout_ms=5000)
    assert grant["present"] == 1 and tier_of(shared, "w") == "device"
    with Client(shared.socket) as other:
        other.hello()
        grant, _ = other.attach("w", flags=IN_PLACE | UNLOCKED, timeout_ms=5000)
        assert grant["present"] == 0 and grant["access"] == RO
