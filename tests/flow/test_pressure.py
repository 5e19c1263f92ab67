"""Want of room: what is idle goes to the next tier by itself, what is locked stays, and who waits in vain is told why."""
import contextlib
import os
import signal
import re
import subprocess

import pytest

from conftest import BUILD, Daemon
from helpers import (MIB, Program, ProgramError, child, client_program, ctl_done, ctl_json, ctl_refused, events, fails, get,
                     host_only, load_layers, program, put, root_only, settled, shared, module_daemon, spill_fds, sweep, tier_of, used)
from test_faults_worker import Faulty
from test_prefetch import stopped_worker
from resuming import back
from wire import KEEP, UNLOCKED

SMALL = ("device_bytes = 8MiB\nhost_bytes = 16MiB\ndisk_bytes = 64MiB\nmemory_wait_seconds = 30\n")
LAYER = MIB // 4  # elements of 1 MiB


def never(priority=10):
    """The flag of an allocation."""
    return KEEP | (priority + 1) << 16


@pytest.fixture(scope="module")
def small_daemon():
    daemon = Daemon(config=SMALL).start()
    yield daemon
    daemon.close()


@pytest.fixture
def small(small_daemon):
    yield small_daemon
    small_daemon.check()
    sweep(small_daemon)


@contextlib.contextmanager
def impatient(daemon, more="memory_wait_seconds = 0.3\n"):
    """Whoever waits in vain is told soon; whoever does not would have a long time."""
    path = daemon.home / "hbmd.conf"
    before = path.read_text()
    path.write_text(before.replace("memory_wait_seconds = 30\n", more))
    reload(daemon)
    try:
        yield
    finally:
        path.write_text(before)
        reload(daemon)


def reload(daemon):
    """What is in effect is what the file says."""
    text = (daemon.home / "hbmd.conf").read_text()
    wanted = dict(line.split(" = ") for line in text.splitlines())
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_for(lambda: wanted.items() <= {row["key"]: row["value"] for row in daemon.rpc("hbm.config")}.items())


def bytes_of(name):
    return bytes([ord(name[0])]) * (2 * MIB)


def put_all(daemon, names):
    for name in names:
        put(daemon, name, bytes_of(name))


def tiers(daemon, names):
    return "".join({"device": "d", "host": "h", "disk": "k"}[tier_of(daemon, name)] for name in names)


def whole(daemon, names):
    return all(get(daemon, name) == bytes_of(name) for name in names)


def tier_row(daemon, tier="device"):
    return next(row for row in daemon.rpc("hbm.devices")[0]["tiers"] if row["tier"] == tier)


# ---- Who waits for room ----

def test_an_allocation_gets_the_room_of_what_was_used_longest_ago(small):
    """FAULTS 18: idle memory is no reason to refuse."""
    put_all(small, "abcd")
    ctl_done(small, "attach", "a")
    put_all(small, "ef")
    assert tiers(small, "abcdef") == "dhhddd"
    assert whole(small, "abcdef")
    row = small.rpc("hbm.show", {"sel": "b"})[0]
    assert (row["evictions"], row["priority"]) == (1, "5") and "for want of room" in row["pressure"]
    moved = events(small, "arena.evicted")[-2:]
    assert [event["name"] for event in moved] == ["b", "c"] and "from device to host" in moved[0]["detail"]
    assert small.rpc("hbm.status")["evictions"] >= 2
    assert "moved away for want of room" in ctl_done(small, "status")


def test_nothing_moves_for_want_of_room_where_that_is_switched_off(make_daemon):
    daemon = make_daemon(config=SMALL + "device_high = 0\n").start()
    put_all(daemon, "abcd")
    path = daemon.home / "more"
    path.write_bytes(bytes_of("e"))
    with impatient(daemon):
        ctl_refused(daemon.ctl("put", "e", path), 1, "not enough memory")
    assert tiers(daemon, "abcd") == "dddd" and daemon.rpc("hbm.status")["evictions"] == 0
    assert tier_row(daemon)["high"] is None and tier_row(daemon)["low"] is None


@host_only
def test_what_is_locked_stays_and_who_waits_is_told_what_the_tier_is_full_of(small, program):
    """FAULTS 18: a bounded wait, then a typed error with cause and remedy; nothing half-moved."""
    put_all(small, "abcd")
    holder = program(small)
    leases = [holder.attach(name)[0] for name in "abc"]
    sums = [holder.ask("sum", lease) for lease in leases]
    other = program(small)
    with impatient(small), fails("NO_MEMORY", "6.0 MiB locked", "2.0 MiB idle"):
        other.alloc("large", 4 * MIB)
    assert tiers(small, "abcd") == "dddd"
    other.alloc("e", 2 * MIB)
    assert tiers(small, "abcd") == "dddh"
    assert [holder.ask("sum", lease) for lease in leases] == sums
    holder.ask("unlock", leases[1])
    lease, _, _ = other.alloc("f", 2 * MIB)
    assert tiers(small, "abcd") == "dhdh"
    with impatient(small), fails("NO_MEMORY", "locked"):
        holder.ask("lock", leases[1], 20000)
    other.ask("detach", lease)
    holder.ask("lock", leases[1], 20000)
    assert [holder.ask("sum", lease) for lease in leases] == sums


@host_only
def test_what_is_locked_and_unlocked_without_the_daemon_is_not_taken_for_idle(small, program):
    """Locks of resident memory are no messages: they are seen in the session's page."""
    put_all(small, "abcd")
    holder = program(small)
    leases = {name: holder.attach(name)[0] for name in "abcd"}
    for name in "abcd":
        holder.ask("unlock", leases[name])
    other = program(small)
    other.ask("detach", other.alloc("first", 2 * MIB)[0])
    assert tiers(small, "abcd") == "hddd"
    holder.ask("lock", leases["b"], 0)
    holder.ask("unlock", leases["b"])
    other.alloc("one", 2 * MIB)  # there is room
    other.alloc("two", 2 * MIB)
    assert tiers(small, "abcd") == "hdhd"


@host_only
def test_the_lowest_priority_goes_first_and_never_stays(small, program):
    user = program(small)
    for name, priority in zip("abcd", (9, 10, 0, 4)):
        user.ask("detach", user.alloc(name, 2 * MIB, never(priority))[0])
    assert [row["priority"] for row in small.rpc("hbm.show", {"sel": "?"})] == ["9", "never", "0", "4"]
    other = program(small)
    for then in ("ddhd", "ddhh", "hdhh"):
        other.alloc("-", 2 * MIB)
        assert tiers(small, "abcd") == then
    with impatient(small), fails("NO_MEMORY", "2.0 MiB never to be moved"):
        other.alloc("-", 2 * MIB)
    assert tiers(small, "abcd") == "hdhh"
    with fails("INVALID", "priority"):
        other.alloc("-", 4096, 12 << 16)


def test_a_priority_is_set_by_who_may_write_and_outlives_the_daemon(make_daemon):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True, config=SMALL).start()
    put_all(daemon, "ab")
    load_layers(daemon, "m", 2)
    assert "never" in ctl_done(daemon, "priority", "a", "never")
    assert [row["priority"] for row in ctl_json(daemon, "priority", "model:m", "7")] == ["7", "7"]
    for wrong in ("10", "05", "always", ""):
        ctl_refused(daemon.ctl("priority", "a", wrong), 1, "0 to 9")
    ctl_refused(daemon.ctl("priority", "nothing", "1"), 1, "nothing")
    back(daemon, daemon.kill9())
    shown = {row["name"]: row["priority"] for row in daemon.rpc("hbm.ls")}
    assert shown == {"a": "never", "b": "5", "m/layers.0.weight": "7", "m/layers.1.weight": "7"}


def test_put_and_load_give_a_priority_from_the_start(shared):
    put(shared, "a", bytes(4096), "--priority", "0")
    put(shared, "b", bytes(4096), "--priority=never")
    put(shared, "c", bytes(4096))
    load_layers(shared, "m", 2, 4096, "--priority", "9")
    shown = {row["name"]: row["priority"] for row in shared.rpc("hbm.ls")}
    assert shown == {"a": "0", "b": "never", "c": "5", "m/layers.0.weight": "9", "m/layers.1.weight": "9"}
    for wrong in ("10", "05", "always", ""):
        ctl_refused(shared.ctl("put", "d", shared.home / "put.bytes", "--priority", wrong), 2, "--priority wants", "never")


# ---- Tiers ----

def test_what_finds_host_memory_at_its_mark_goes_to_disk_and_back_whole(make_daemon):
    daemon = make_daemon(config=SMALL + "host_high = 25\nhost_low = 25\n").start()
    put_all(daemon, "abcdefgh")
    assert tiers(daemon, "abcdefgh") == "hhkkdddd"
    assert whole(daemon, "abcdefgh")
    assert tier_row(daemon, "host")["high"] == 4 * MIB
    assert "leaves the host tier over 4.0 MiB" in ctl_done(daemon, "devices")


def test_who_waits_for_host_memory_gets_that_of_what_lies_there(make_daemon):
    daemon = make_daemon(config=SMALL.replace("host_bytes = 16MiB", "host_bytes = 4MiB")).start()
    put_all(daemon, "abcd")
    for name in "abcd":
        ctl_done(daemon, "offload", name, "--to", "host")
    assert tiers(daemon, "abcd") == "kkhh" and whole(daemon, "abcd")


def test_over_the_high_mark_what_is_idle_goes_by_itself_until_the_low_one(make_daemon):
    daemon = make_daemon(config=SMALL + "device_high = 75\ndevice_low = 50\n").start()
    put_all(daemon, "abc")
    assert tiers(daemon, "abc") == "ddd"
    put_all(daemon, "d")
    daemon.wait_for(lambda: tiers(daemon, "abcd").count("d") == 2)
    daemon.wait_for(lambda: events(daemon, "tier.eased"))
    assert "its marks are 6291456 and 4194304" in events(daemon, "tier.over")[0]["detail"]
    assert tiers(daemon, "abcd").count("d") == 2 and whole(daemon, "abcd")
    assert (tier_row(daemon)["high"], tier_row(daemon)["low"]) == (6 * MIB, 4 * MIB)
    shown = ctl_done(daemon, "devices").splitlines()
    assert "device 0: what is idle leaves the device tier over 6.0 MiB, until it has 4.0 MiB" in shown
    assert max(len(line) for line in shown if line.startswith("device 0:")) <= 80


def test_a_prefetch_stays_below_the_high_mark(make_daemon):
    daemon = make_daemon(config=SMALL + "device_high = 75\ndevice_low = 50\n").start()
    load_layers(daemon, "m", 4, 2 * LAYER)
    ctl_done(daemon, "sleep", "m")
    last = daemon.rpc("hbm.events")[-1]["seq"]
    lines = ctl_done(daemon, "prefetch", "model:m").splitlines()
    assert "m/layers.3.weight: left as it is: its device is at its high mark" in lines
    assert not [event for event in daemon.rpc("hbm.events", {"since": last}) if event["event"] in ("tier.over", "arena.evicted")]


@root_only
def test_a_full_disk_leaves_it_where_it_was_and_who_waits_is_told(make_daemon):
    """FAULTS 18 and 20, CASES 19: a file system with less room than disk_bytes says."""
    daemon = make_daemon(config=SMALL.replace("host_bytes = 16MiB", "host_bytes = 0"))
    daemon.state_dir.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "none", str(daemon.state_dir)], check=True)
    try:
        (daemon.home / "hbmd.conf").write_text(SMALL.replace("host_bytes = 16MiB", "host_bytes = 0"))
        daemon.start()
        put_all(daemon, "abcde")
        assert tiers(daemon, "abcde").count("k") == 1
        path = daemon.home / "more"
        path.write_bytes(bytes_of("f"))
        with impatient(daemon):
            ctl_refused(daemon.ctl("put", "f", path), 1, "not enough memory", "no room elsewhere")
        assert tiers(daemon, "abcde").count("d") == 4
        assert used(daemon, "disk") == 2 * MIB and len(spill_fds(daemon)) == 1
        here = [name for name in "abcde" if tier_of(daemon, name) == "device"]
        assert whole(daemon, here)
        ctl_done(daemon, "free", here[0])
        ctl_done(daemon, "restore", "?")
        assert whole(daemon, set("abcde") - {here[0]})
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", str(daemon.state_dir)], check=True)


# ---- Clients that behave badly ----

@host_only
def test_a_client_that_locks_and_unlocks_in_a_loop_keeps_what_it_uses_and_stops_nobody(small, program, child):
    """FAULTS 16, hostile: what it has is always about to be used."""
    put_all(small, "abcd")
    holder = program(small)
    lease = holder.attach("a")[0]
    before = holder.ask("sum", lease)
    holder.ask("unlock", lease)
    other = program(small)
    holder.say("lockloop", lease, 3000)
    for _ in range(3):
        other.ask("detach", other.alloc("-", 2 * MIB)[0])
    holder.hear()
    assert tiers(small, "bcd").count("d") >= 2
    holder.ask("lock", lease, 20000)
    assert holder.ask("sum", lease) == before


@host_only
def test_a_stopped_client_keeps_what_it_has_and_others_are_told(small, client_program, program):
    """FAULTS 16: it holds nothing locked and hears nothing."""
    put_all(small, "abcd")
    stopped = Program(client_program, small)
    stopped.ask("open", 0)
    for name in "abcd":
        stopped.ask("unlock", stopped.attach(name)[0])
    os.kill(stopped.process.pid, signal.SIGSTOP)
    other = program(small)
    try:
        with impatient(small, "memory_wait_seconds = 0.3\nreclaim_seconds = 0.3\n"), fails("NO_MEMORY"):
            other.alloc("-", 2 * MIB)
        assert tiers(small, "abcd") == "dddd" and small.rpc("hbm.status")["sessions"] == 2
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.end()
    small.wait_for(lambda: small.rpc("hbm.status")["sessions"] == 1)
    other.alloc("-", 2 * MIB)  # what was not let go of is asked for again after a while


@host_only
@pytest.mark.parametrize("who", ["waits", "holds"])
def test_a_client_that_dies_in_the_midst_of_such_a_move_loses_nothing_of_others(small, client_program, who):
    """FAULTS 1: killed while its allocation waits, or while what it had is being moved."""
    put_all(small, "abcd")
    holder = Program(client_program, small)
    holder.ask("open", 0)
    for name in "abcd":
        holder.ask("unlock", holder.attach(name)[0])
    user = Program(client_program, small)
    user.ask("open", 0)
    with stopped_worker(small):
        user.say("alloc", "new", 2 * MIB, 0, 0, "")
        small.wait_for(lambda: [op for op in small.rpc("hbm.ops") if op["verb"] == "pressure"])
        (user if who == "waits" else holder).kill()
    if who == "holds":
        user.hear()
    (holder if who == "waits" else user).end()
    small.wait_for(lambda: settled(small))
    assert whole(small, "abcd")


@host_only
def test_a_restart_in_the_midst_of_such_a_move_finds_every_byte(make_daemon, program):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True, config=SMALL).start()
    put_all(daemon, "abcd")
    user = program(daemon)
    with stopped_worker(daemon):
        user.say("alloc", "new", 2 * MIB, 0, 0, "")
        daemon.wait_for(lambda: [op for op in daemon.rpc("hbm.ops") if op["verb"] == "pressure"])
        old = daemon.kill9()
    back(daemon, old)
    with fails("RETRY"):
        user.hear()
    assert whole(daemon, "abcd")
    user.alloc("new", 2 * MIB)
    assert whole(daemon, "abcd")


def test_a_worker_that_dies_in_such_a_move_takes_no_byte_with_it(make_daemon):
    """FAULTS 24: another one goes in its place, or who waits is told."""
    faulty = Faulty("copy:kill:5", lambda: make_daemon(config=SMALL))
    put_all(faulty.daemon, "abcd")
    got_it = faulty.daemon.ctl("put", "e", file_of(faulty.daemon, "e")).returncode == 0
    faulty.daemon.wait_for(faulty.ready)
    assert whole(faulty.daemon, "abcd" + "e" * got_it)


def file_of(daemon, name):
    path = daemon.home / f"{name}.bytes"
    path.write_bytes(bytes_of(name))
    return path


# ---- What is asked for meanwhile ----

@host_only
@pytest.mark.parametrize("words", [("offload", "a", "--to", "disk"), ("restore", "a"), ("free", "a")], ids=lambda words: words[0])
def test_nobody_is_refused_for_a_move_of_the_daemons_own(small, program, words):
    """FAULTS 14 and 23: in the same instant."""
    put_all(small, "abcd")
    user = program(small)
    with stopped_worker(small):
        user.say("alloc", "new", 2 * MIB, 0, 0, "")
        small.wait_for(lambda: [op for op in small.rpc("hbm.ops") if op["verb"] == "pressure"])
        asked = subprocess.Popen([str(BUILD / "hbmctl"), "--runtime-dir", str(small.runtime_dir), *words],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if words[0] == "offload":
            small.wait_for(lambda: [op for op in small.rpc("hbm.ops") if op["verb"] == "offload" and op["state"] == "running"])
        else:
            asked.wait(20)
    output, errors = asked.communicate(timeout=30)
    assert asked.returncode == 0, (output, errors)
    user.hear()
    assert whole(small, "bcd" if words[0] == "free" else "abcd")


# ---- What does not fit ----

def unlocked(user, names):
    """Attached, and locked by nobody."""
    return {name: user.attach(name, "ro", UNLOCKED)[0] for name in names}


@host_only
def test_more_than_the_device_has_is_used_in_turn(small, program):
    """Nobody says what is to go: each lock takes the room of what was used longest ago."""
    put_all(small, "abcdef")
    user = program(small)
    leases = unlocked(user, "abcdef")
    for name in "abcdef":
        user.ask("lock", leases[name], 20000)
        assert tier_of(small, name) == "device"
        user.ask("unlock", leases[name])
    assert tiers(small, "abcdef") == "hhdddd" and whole(small, "abcdef")


@host_only
def test_a_working_set_that_does_not_fit_is_said_with_its_figures(make_daemon, program):
    """Five in turn where four fit, the worst there is: each would come back as the next goes, for ever."""
    daemon = make_daemon(config=SMALL.replace("= 30", "= 5")).start()
    put_all(daemon, "abcde")
    user = program(daemon)
    leases = unlocked(user, "abcde")
    refused = None
    for turn in range(200):
        lease = leases["abcde"[turn % 5]]
        try:
            user.ask("lock", lease, 60000)
        except ProgramError as error:
            refused = error
            break
        user.ask("unlock", lease)
    assert refused and refused.name == "NO_MEMORY", refused
    assert "8.0 MiB left alone since they bounced" in refused.detail
    figures = re.search("([0-9.]+) MiB of 8.0 were used within 10 s", refused.detail)
    assert figures and float(figures[1]) > 8
    assert events(daemon, "arena.bounces") and events(daemon, "device.thrashes")
    status = daemon.rpc("hbm.status")
    assert status["spared"] == 4 and status["bounces"] >= 12
    told = [row["pressure"] for row in daemon.rpc("hbm.show", {"sel": "?"})]
    assert len([text for text in told if "it came back soon 3 times" in text]) == 4
    assert "its device tier has 8388608" in events(daemon, "device.thrashes")[0]["detail"]
    user.end()


@host_only
def test_a_batch_lock_of_more_than_fits_is_all_or_nothing(small, program):
    """FAULTS 22, CASES 20."""
    put_all(small, "abcde")
    for name in "bcde":
        ctl_done(small, "offload", name, "--to", "host")
    user = program(small)
    leases = unlocked(user, "abcde")
    with impatient(small, "memory_wait_seconds = 2\n"), fails("NO_MEMORY"):
        user.ask("lockall", 20000)
    small.wait_for(lambda: not [op for op in small.rpc("hbm.ops") if op["state"] == "running"])
    assert tiers(small, "abcde") == "hhhhh" and whole(small, "abcde")
    user.ask("lock", leases["a"], 20000)
    assert tiers(small, "abcde") == "dhhhh"
