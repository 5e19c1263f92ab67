"""The owner killed and back: what it re-adopts, and what its clients notice (FAULTS 26, 28)."""
import contextlib
import os
import re
import signal
import time

import pytest

from helpers import (MIB, Client, child, client_program, ctl_done, ctl_refused, empty, fails, get, hash_of, host_only, load_layers,
                     program, put, refused, row_of, settled, sweep, used)
from conftest import DEVICE
from tables import publish
from wire import KEEP

DATA = bytes(range(256)) * 4000


def everything(daemon):
    """A model, kept buffers, offloaded and compressed ones."""
    load_layers(daemon, "m", 4)
    put(daemon, "plain", DATA)
    for tier in ("host", "disk"):
        put(daemon, tier, DATA + tier.encode())
        ctl_done(daemon, "offload", tier, "--to", tier)
    load_layers(daemon, "small", 1)
    ctl_done(daemon, "compress", "model:small", "--codec", "int8")
    ctl_done(daemon, "compress", "m/layers.0.weight", "--codec", "bf16", "--mode", "copy", "--as", "copy")
    ctl_done(daemon, "offload", "m/layers.2.weight", "--to", "disk")


def picture(daemon):
    """All that a restart must not change."""
    rows = daemon.rpc("hbm.ls")
    for row in rows:
        row.pop("leases")
    models = daemon.rpc("hbm.models")
    for model in models:
        model.pop("leases")
    tiers = {tier: used(daemon, tier) for tier in ("device", "host", "disk") if not empty(daemon, tier)}
    return sorted(rows, key=lambda row: row["id"]), sorted(models, key=lambda row: row["id"]), tiers


def kill_and_wait(daemon):
    old = daemon.kill9()

    def back():
        try:
            return daemon.rpc("hbm.status")["pid"] != old
        except (OSError, ConnectionError):
            return False

    daemon.wait_for(back, 20)
    daemon.wait_ready()
    return old


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(supervise=True).start()


def test_everything_kept_is_still_there_after_a_kill_and_after_another(daemon):
    """FAULTS 26: models, kept buffers, offloaded and compressed ones: equal hashes, equal ids, twice in a row."""
    everything(daemon)
    before, hashes = picture(daemon), hash_of(daemon, "*")
    contents = {name: get(daemon, name) for name in ("plain", "host", "disk")}
    pids = {daemon.process.pid}
    for _ in range(2):
        pids.add(kill_and_wait(daemon))
        assert picture(daemon) == before
        assert hash_of(daemon, "*") == hashes
        assert {name: get(daemon, name) for name in contents} == contents
        assert daemon.rpc("hbm.status")["lost"] == 0
    assert len(pids) == 3, "the supervisor itself stayed"
    ctl_done(daemon, "restore", "host"), ctl_done(daemon, "restore", "model:m"), ctl_done(daemon, "decompress", "model:small")
    assert get(daemon, "host") == DATA + b"host"
    sweep(daemon)


def test_ids_given_after_a_restart_are_none_that_were_given_before(daemon):
    put(daemon, "plain", DATA)
    with Client(daemon.socket) as link:
        link.hello()
        given = {link.grant(4096)["buffer"] for _ in range(20)}
    kill_and_wait(daemon)
    with Client(daemon.socket) as link:
        link.hello()
        assert not given & {link.grant(4096)["buffer"] for _ in range(60)}
        for id in given:
            with refused("NOT_FOUND"):
                link.attach(id=id)


NO_RECONNECT, CUDA_IPC = 2, 1


@host_only
def test_a_live_clients_lease_counts_until_it_exits_and_its_mapping_stays(daemon, program):
    """FAULTS 26: of one that does not come back, calls fail with a clear error, its memory is as it was."""
    holder = program(daemon, open_flags=NO_RECONNECT)
    lease, id, address = holder.alloc("mine", MIB)
    holder.ask("fill", lease, 9)
    reader_of_model = program(daemon, open_flags=NO_RECONNECT)
    load_layers(daemon, "m", 2)
    reader_of_model.ask("model", "m", "ro", 0, 5000)
    sums = reader_of_model.ask("msum", 0)
    before = hash_of(daemon, "*")
    kill_and_wait(daemon)
    assert hash_of(daemon, "*") == before
    row = row_of(daemon, "mine")
    assert int(row["id"], 16) == int(id, 16)
    assert [(lease["pid"], lease["access"], lease["locked"]) for lease in row["leases"]] == [(holder.process.pid, "rw", True)]
    sessions = {row["pid"]: row["state"] for row in daemon.rpc("hbm.sessions")}
    assert sessions == {holder.process.pid: "detached", reader_of_model.process.pid: "detached"}
    ctl_refused(daemon.ctl("rm", "m"), 1, reader_of_model.process.pid)
    with fails("DISCONNECTED", "mapped"):
        holder.ask("attach", "m/layers.0.weight", "ro", 0, 1000)
    with fails("DISCONNECTED"):
        holder.ask("op", "offload", "mine", 1, 0)
    assert holder.ask("pointer", lease) == [address] and holder.ask("peek", lease, 5) == ["9"]
    assert reader_of_model.ask("msum", 0) == sums
    holder.kill()
    daemon.wait_for(lambda: not [row for row in daemon.rpc("hbm.ls") if row["name"] == "mine"])
    reader_of_model.kill()
    daemon.wait_for(lambda: settled(daemon))
    ctl_done(daemon, "rm", "m")
    sweep(daemon)


def test_a_client_that_dies_while_nobody_watches_is_reclaimed_by_the_next_owner(daemon, child):
    """FAULTS 26."""
    kept = []

    def hold(say):
        link = Client(daemon.socket)
        link.hello()
        link.alloc(MIB, "mine")
        say()
        return link

    victim = child(lambda say: kept.append(hold(say)))
    victim.heard()
    old = daemon.pid
    os.kill(daemon.process.pid, signal.SIGSTOP)
    os.kill(old, signal.SIGKILL)
    victim.kill()
    os.kill(daemon.process.pid, signal.SIGCONT)
    daemon.wait_ready()
    daemon.wait_for(lambda: settled(daemon) and not daemon.rpc("hbm.ls"))
    assert used(daemon) == 0


def test_half_a_model_does_not_come_back(daemon, child):
    """FAULTS 26: BUILDING is no state that outlives its owner's memory of who builds."""
    kept = []

    def build(say):
        link = Client(daemon.socket)
        link.hello()
        packet = publish(link, "half", {"a": MIB})
        say()
        return link, packet

    builder = child(lambda say: kept.append(build(say)))
    builder.heard()
    kill_and_wait(daemon)
    builder.kill()
    daemon.wait_for(lambda: settled(daemon))
    assert daemon.rpc("hbm.models") == [] and daemon.rpc("hbm.ls") == []
    sweep(daemon)


@pytest.mark.parametrize("verb", ["offload --to disk", "offload --to host", "compress --codec int8", "restore"])
def test_a_kill_in_the_middle_of_an_operation_leaves_the_buffer_as_before_or_after(daemon, verb):
    """FAULTS 26."""
    load_layers(daemon, "m", 1, 1 << 20)
    name = "m/layers.0.weight"
    before = hash_of(daemon, name)
    words = verb.split()
    if words[0] == "restore":
        ctl_done(daemon, "offload", name, "--to", "disk", "--force")
    more = ["--force"] if words[0] == "offload" else []
    ctl_done(daemon, words[0], name, *words[1:], *more, "--async")
    kill_and_wait(daemon)
    row = row_of(daemon, name)
    if row["encoding"] == "raw":
        assert hash_of(daemon, name) == before
    else:
        ctl_done(daemon, "decompress", name)
    assert daemon.rpc("hbm.status")["lost"] == 0
    sweep(daemon)


def test_what_a_live_client_has_locked_or_let_go_of_is_read_from_its_page(make_daemon):
    """FAULTS 26: a lock still holds an arena; one that was let go of moves without asking."""
    daemon = make_daemon(supervise=True, config="reclaim_seconds = 0.3\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        link.alloc(MIB, "locked")
        away, _ = link.alloc(MIB, "away")
        link.unlock(away["slot"])
        op = link.call("offload", sel="away", tier=1).fields["op"]
        link.let_go_when_asked(away["slot"])
        link.call("op_wait", op=op, timeout_ms=5000)
        kill_and_wait(daemon)
        ctl_done(daemon, "restore", "away"), ctl_done(daemon, "offload", "away", "--to", "disk")
        ctl_refused(daemon.ctl("offload", "locked", "--to", "host"), 1, os.getpid())
        ctl_refused(daemon.ctl("free", "locked"), 1, os.getpid())
        session = daemon.rpc("hbm.sessions")[0]["session"]
        daemon.rpc("hbm.kick", {"session": session})
        assert daemon.rpc("hbm.sessions")[0]["state"] == "quarantined"


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_full_stop_ends_the_supervisor_and_drops_the_memory(daemon):
    """FAULTS 28: SIGTERM to the parent is passed on; what that costs is said, and nothing is left behind."""
    put(daemon, "plain", DATA)
    child_pid = daemon.pid
    worker = daemon.rpc("hbm.devices")[0]["worker_pid"]
    assert daemon.stop() == 0
    assert "1 buffer ends with this stop" in daemon.log
    daemon.wait_for(lambda: not any(runs(pid) for pid in (child_pid, worker)))
    ctl_refused(daemon.ctl("status"), 3)
    assert list(daemon.state_dir.iterdir()) == []
    assert {path.name for path in daemon.runtime_dir.iterdir()} <= {"hbmd.sock", "control.sock", "ledger", "lock"}
    daemon.start()
    assert {row["state"] for row in daemon.rpc("hbm.ls")} <= {"lost"} and used(daemon) == 0


def cuda_only(test):
    return test if DEVICE == "cuda" else None


@cuda_only
def test_a_stop_names_the_cuda_ipc_buffers_that_not_even_a_restart_keeps(make_daemon):
    daemon = make_daemon().start()
    with Client(daemon.socket) as link:
        link.hello()
        grant, _ = link.alloc(MIB, "ipc", handle=CUDA_IPC, flags=KEEP)
        link.call("detach", lease=grant["lease"])
        link.call("bye")
    assert daemon.stop() == 0
    assert "1 cuda-ipc buffer is lost to new attaches, by a restart too" in daemon.log


@pytest.mark.parametrize("supervise", [False, True])
def test_sigterm_drains_what_is_under_way(make_daemon, supervise):
    """FAULTS 28: within a bound; the client hears why its link ends."""
    daemon = make_daemon(supervise=supervise).start()
    put(daemon, "plain", DATA * 32)
    with Client(daemon.socket) as link:
        link.hello()
        op = link.call("offload", sel="plain", tier=2).fields["op"]
        assert daemon.stop() == 0
        assert "stopping" in link.gone()
        assert [(event.fields["op"], event.fields["error"]) for event in link.events if event.name == "op_ended"] == [(op, 0)]
    assert not re.search(r"Sanitizer|runtime error", daemon.log)


@pytest.mark.parametrize("supervise", [False, True])
def test_sigterm_again_and_again_changes_nothing_about_the_end(make_daemon, supervise):
    """FAULTS 28: a terminal or a service manager may signal the owner and its parent, which passes it on."""
    daemon = make_daemon(supervise=supervise).start()
    put(daemon, "plain", DATA)
    owner = daemon.pid
    while daemon.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, signal.SIGTERM)
        daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.returncode == 0
    assert daemon.log.count("stopping: no new connections") == 1
    assert not (daemon.runtime_dir / "ledger").exists()


def test_a_kill_without_a_supervisor_loses_the_memory_and_a_new_owner_says_so(make_daemon):
    daemon = make_daemon().start()
    put(daemon, "plain", DATA)
    put(daemon, "away", DATA)
    ctl_done(daemon, "offload", "away", "--to", "disk")
    daemon.kill9()
    daemon.start()
    rows = {row["name"]: row["state"] for row in daemon.rpc("hbm.ls")}
    assert all(state == "lost" for state in rows.values()) and used(daemon) == 0
    if rows:
        assert daemon.rpc("hbm.status")["lost"] == len(rows)
        ctl_refused(daemon.ctl("hash", "plain"), 1, "gone")
        ctl_refused(daemon.ctl("get", "plain", daemon.home / "out"), 1, "gone")
        ctl_done(daemon, "free", "plain")
    put(daemon, "fresh", DATA)
    assert get(daemon, "fresh") == DATA


def test_a_full_store_refuses_what_a_restart_would_lose_and_all_that_was_granted_is_kept(make_daemon):
    """FAULTS 19: sessions and moves go on by what is kept back for them."""
    daemon = make_daemon(supervise=True, config="store_max = 40\n").start()
    names = []
    with Client(daemon.socket) as link:
        link.hello()
        with refused("LIMIT", "store", "FileDescriptorStoreMax"):
            for i in range(40):
                link.grant(4096, f"b{i}", flags=KEEP)
                names.append(f"b{i}")
        with Client(daemon.socket) as other:
            other.hello()
    ctl_done(daemon, "offload", "b0", "--to", "disk")
    assert len(names) > 20
    daemon.kill9()
    daemon.wait_ready()
    assert {row["name"]: row["state"] for row in daemon.rpc("hbm.ls")} == {name: "ready" for name in names}
    ctl_done(daemon, "free", "b1")
    with Client(daemon.socket) as link:
        link.hello()
        link.grant(4096)
    sweep(daemon)


def test_moves_that_wait_in_a_full_store_leave_room_for_sessions(make_daemon):
    """FAULTS 19: what they move is there twice meanwhile, for as long as a client of theirs does not let go."""
    daemon = make_daemon(supervise=True, config="store_max = 64\nreclaim_seconds = 60\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        with refused("LIMIT", "store"):
            for i in range(64):
                link.grant(4096, f"b{i}")
        moves = [daemon.rpc("hbm.offload", {"sel": sel, "to": "host", "async": True})["op"] for sel in ("b[0-3]", "b[4-7]")]

        granule = 4096 if DEVICE == "host" else 2 * MIB

        def stands():
            running = [op for op in daemon.rpc("hbm.ops") if op["op"] in moves and op["state"] == "running"]
            return used(daemon, "host") == 4 * granule * len(running)

        daemon.wait_for(stands)
        with Client(daemon.socket) as other:
            other.hello()
        for move in moves:
            daemon.rpc("hbm.cancel", {"op": move})


def test_a_session_that_a_full_store_does_not_take_is_refused_and_leaves_nothing(make_daemon):
    daemon = make_daemon(supervise=True, config="store_max = 8\n").start()
    links = [Client(daemon.socket) for _ in range(10)]
    with refused("LIMIT", "store_max"):
        for link in links:
            link.hello()
    assert sum(link.page is not None for link in links) > 1
    daemon.wait_for(lambda: len(daemon.rpc("hbm.sessions")) == sum(link.page is not None for link in links))
    for link in links:
        link.close()
    with Client(daemon.socket) as link:
        link.hello()
    sweep(daemon)


def test_a_user_has_no_more_than_his_share_of_the_store_and_moves_what_he_has(make_daemon):
    daemon = make_daemon(supervise=True, config="account_objects = 3\nmemory_wait_seconds = 0\n").start()
    with Client(daemon.socket) as link:
        link.hello()
        for i in range(3):
            link.grant(4096, f"b{i}", flags=KEEP)
        with refused("LIMIT", "account_objects is 3"):
            link.grant(4096)
    ctl_done(daemon, "offload", "b?", "--to", "disk")
    daemon.kill9()
    daemon.wait_ready()
    with Client(daemon.socket) as link:
        link.hello()
        with refused("LIMIT", "account_objects is 3"):
            link.grant(4096)
        ctl_done(daemon, "free", "b1")
        link.grant(4096)
    sweep(daemon)


def test_an_owner_that_is_killed_again_and_again_comes_back_each_time(daemon):
    put(daemon, "plain", DATA)
    for _ in range(5):
        old = daemon.kill9()

        def back():
            try:
                return daemon.rpc("hbm.status")["pid"] != old
            except (OSError, ConnectionError):
                return False

        daemon.wait_for(back, 20)
    daemon.wait_ready()
    assert get(daemon, "plain") == DATA
    sweep(daemon)


@pytest.mark.parametrize("how", ["--ignore-signal=CHLD", "--block-signal"])
def test_signals_that_were_ignored_or_blocked_at_its_start_are_its_own_again(make_daemon, how):
    """FAULTS 26: exec hands both on. It sees its child and its worker die, and ends when it is told to."""
    daemon = make_daemon(supervise=True)
    plain = daemon.command()
    daemon.command = lambda: ["env", how, *plain]
    daemon.start()
    put(daemon, "w", DATA)
    before = hash_of(daemon, "w")
    kill_and_wait(daemon)
    os.kill(daemon.rpc("hbm.devices")[0]["worker_pid"], signal.SIGKILL)
    daemon.wait_for(lambda: daemon.rpc("hbm.devices")[0]["worker_restarts"])
    assert hash_of(daemon, "w") == before
    assert daemon.stop() == 0, daemon.log


def test_a_supervisor_that_is_stopped_at_once_has_not_failed(make_daemon):
    daemon = make_daemon(supervise=True)
    daemon.expect_death = True
    for ms in range(0, 30, 2):
        daemon.process = daemon.launch()
        time.sleep(ms / 1000)
        assert daemon.stop() in (0, -signal.SIGTERM), daemon.log
