"""Another device's memory as a tier: there, back, and all that can go wrong on the way (FAULTS 18, 21, 22, 24, 26)."""
import os

import pytest

from conftest import BUILD
from helpers import (MIB, Client, client_program, ctl_done, ctl_json, ctl_refused, events, fails, get, hash_of, host_only, load_layers,
                     program, put, refused, row_of, serves, sweep, tier_of)
from peers import AWAY, HOME, THREE, TWO, devices, lies, ready, used_on
from test_faults_worker import Faulty
from test_restart import kill_and_wait, picture
from test_restart_ops import DATA as HELD, Held, binary  # noqa: F401 (a fixture)
from wire import KEEP

DATA = os.urandom(3 * MIB + 5)


@pytest.fixture
def two(make_daemon):
    daemon = make_daemon(config=TWO).start()
    ready(daemon)
    return daemon


@host_only
def test_a_buffer_lies_with_a_peer_and_comes_back_the_same(two):
    put(two, "w", DATA)
    before, size = hash_of(two, "w"), used_on(two, "host")
    [row] = ctl_json(two, "offload", "w", "--to", "peer")
    assert (row["tier"], row["peer"]) == ("peer", "host-1") and lies(two, "w") == AWAY
    assert used_on(two, "host") == 0 and used_on(two, "host-1") == size == devices(two)["host-1"]["peer_bytes"]
    assert hash_of(two, "w") == before and get(two, "w") == DATA and lies(two, "w") == AWAY
    ctl_done(two, "restore", "w")
    assert lies(two, "w") == HOME and used_on(two, "host-1") == 0 and used_on(two, "host") == size
    assert hash_of(two, "w") == before and get(two, "w") == DATA


@host_only
def test_from_a_peer_to_every_tier_and_from_every_tier_to_a_peer(two):
    put(two, "w", DATA)
    before, size = hash_of(two, "w"), used_on(two, "host")
    for tier in ("peer", "host", "peer", "disk", "peer", "peer"):
        ctl_done(two, "offload", "w", "--to", tier)
        assert tier_of(two, "w") == tier and hash_of(two, "w") == before and row_of(two, "w")["device"] == "host"
        assert used_on(two, "host-1") == (size if tier == "peer" else 0)
    ctl_done(two, "restore", "w")
    assert get(two, "w") == DATA
    assert used_on(two, "host-1") == used_on(two, "host", "host") == used_on(two, "host", "disk") == 0
    assert used_on(two, "host-1", "host") == used_on(two, "host-1", "disk") == 0


@host_only
def test_every_screen_says_what_lies_with_a_peer(two):
    load_layers(two, "m", 2)
    ctl_done(two, "offload", "m/layers.0.weight", "--to", "peer")
    assert "peer" in ctl_done(two, "ls", "m/layers.0.weight")
    assert "host-1" in ctl_done(two, "show", "m/layers.0.weight")
    [model] = two.rpc("hbm.models")
    assert model["bytes_by_tier"]["peer"] == model["bytes_by_tier"]["device"] == model["bytes"] // 2 and model["device"] == "host"
    assert "PEER" in ctl_done(two, "models") and "other devices' buffers" in ctl_done(two, "devices")
    assert devices(two)["host"]["peers"] == ["host-1"] and "other devices' buffers" in ctl_done(two, "status")
    there = two.rpc("hbm.who")[1]
    assert there["peer_bytes"] == there["ledger"] == there["accounts"][0]["device"]
    assert "peer" in ctl_done(two, "why-not-free", "m/layers.0.weight")


@host_only
def test_a_peer_counts_for_no_offload_limit(two):
    load_layers(two, "m", 4)
    ctl_done(two, "offload", "model:m", "--to", "peer")
    assert two.rpc("hbm.models")[0]["bytes_by_tier"]["device"] == 0
    ctl_refused(two.ctl("offload", "model:m", "--to", "host"), 1, "offload_limit")
    ctl_done(two, "wake", "m")
    assert two.rpc("hbm.models")[0]["bytes_by_tier"]["peer"] == 0


@host_only
def test_without_a_peer_the_reason_is_named(make_daemon):
    alone = make_daemon().start()
    put(alone, "w", DATA)
    ctl_refused(alone.ctl("offload", "w", "--to", "peer"), 1, "only one")
    assert tier_of(alone, "w") == "device"
    two = make_daemon(config=TWO).start()
    ready(two)
    put(two, "w", DATA)
    ctl_done(two, "drain", "--device", "host-1")
    with fails("UNSUPPORTED", "host-1: drained"):
        two.rpc("hbm.offload", {"sel": "w", "to": "peer"})
    assert get(two, "w") == DATA


@host_only
def test_a_listener_has_no_peer_among_devices_that_are_not_its_own(make_daemon):
    daemon = make_daemon()
    (daemon.home / "hbmd.conf").write_text(f"{TWO}[listener pods]\ndirectory = {daemon.home}/pods\ndevices = host\n")
    daemon.options += ["--config", str(daemon.home / "hbmd.conf")]
    daemon.start()
    ready(daemon)
    with Client(daemon.home / "pods" / "hbmd.sock") as pod:
        pod.hello()
        grant, fd = pod.alloc(MIB, "w", flags=KEEP)
        os.close(fd)
        pod.call("detach", lease=grant["lease"])
        with refused("UNSUPPORTED", "its listener does not have it"):
            pod.call("offload", sel="w", tier=3)
    assert used_on(daemon, "host-1") == 0


@host_only
def test_the_peer_with_the_most_room_is_chosen_for_each(make_daemon):
    daemon = make_daemon(config=THREE + "device_bytes = 96MiB\n").start()
    ready(daemon)
    with Client(daemon.socket) as client:
        client.hello()
        client.grant(8 * MIB, "there", device=1)
        for i in range(3):
            put(daemon, f"w{i}", os.urandom(6 * MIB))
        before = hash_of(daemon, "w*")
        ctl_done(daemon, "offload", "w*", "--to", "peer")
        # host-2 is the emptier one until it has 12 MiB of them.
        assert [row["peer"] for row in daemon.rpc("hbm.ls", {"glob": "w*"})] == ["host-2", "host-2", "host-1"]
        assert hash_of(daemon, "w*") == before


@host_only
def test_a_full_peer_leaves_everything_where_it_was(make_daemon):
    """FAULTS 18, 22: all of them or none."""
    daemon = make_daemon(config=TWO + "device_bytes = 32MiB\nmemory_wait_seconds = 0\n").start()
    ready(daemon)
    with Client(daemon.socket) as client:
        client.hello()
        client.grant(10 * MIB, "there", device=1)
        for i in range(3):
            put(daemon, f"w{i}", os.urandom(4 * MIB))
        before, held = hash_of(daemon, "w*"), used_on(daemon, "host-1")
        with fails("NO_MEMORY", "host-1"):
            daemon.rpc("hbm.offload", {"sel": "w*", "to": "peer"})
        assert {row["tier"] for row in daemon.rpc("hbm.ls", {"glob": "w*"})} == {"device"}
        assert used_on(daemon, "host-1") == held and hash_of(daemon, "w*") == before and serves(daemon)


@host_only
def test_home_without_room_leaves_what_lies_with_a_peer_there(make_daemon):
    """FAULTS 22: a restore that runs out of room in the middle."""
    daemon = make_daemon(config=TWO + "device_bytes = 32MiB\nmemory_wait_seconds = 0\n").start()
    ready(daemon)
    load_layers(daemon, "m", 3, MIB)
    before = hash_of(daemon, "m/*")
    ctl_done(daemon, "offload", "model:m", "--to", "peer")
    with Client(daemon.socket) as client:
        client.hello()
        client.grant(10 * MIB, "here", device=0)
        with fails("NO_MEMORY"):
            daemon.rpc("hbm.wake", {"model": "m"})
        assert {row["tier"] for row in daemon.rpc("hbm.ls", {"glob": "m/*"})} == {"peer"} and hash_of(daemon, "m/*") == before
    daemon.wait_for(lambda: used_on(daemon, "host") == 0)
    ctl_done(daemon, "wake", "m")
    assert hash_of(daemon, "m/*") == before


@host_only
def test_who_locks_what_lies_with_a_peer_has_it_back_at_its_address(two, program):
    holder = program(two)
    lease, _, _ = holder.alloc("w", MIB)
    holder.ask("fill", lease, 7)
    sum_before = holder.ask("sum", lease)
    holder.ask("unlock", lease)
    ctl_done(two, "offload", "w", "--to", "peer")
    assert lies(two, "w") == AWAY
    holder.ask("lock", lease, 5000)
    assert lies(two, "w") == HOME and holder.ask("sum", lease) == sum_before
    holder.ask("unlock", lease)
    ctl_done(two, "offload", "w", "--to", "peer")
    ctl_done(two, "prefetch", "w")
    assert lies(two, "w") == HOME


@host_only
def test_attaching_what_lies_with_a_peer_gives_memory_of_its_own_device(two):
    put(two, "w", DATA)
    ctl_done(two, "offload", "w", "--to", "peer")
    with Client(two.socket) as client:
        client.hello()
        grant, fd = client.attach("w", timeout_ms=10000)
        assert grant["device"] == 0 and os.pread(fd, len(DATA), grant["offset"]) == DATA and lies(two, "w") == HOME
        os.close(fd)


@host_only
def test_the_owners_charge_follows_the_bytes(two):
    def charged():
        return [next(row["used"] for row in two.rpc("hbm.accounts")[0]["things"] if row["thing"] == thing)
                for thing in ("device_bytes", "host_bytes", "disk_bytes")]

    put(two, "w", DATA)
    size = used_on(two, "host")
    two.wait_for(lambda: charged() == [size, 0, 0])
    ctl_done(two, "offload", "w", "--to", "peer")
    two.wait_for(lambda: charged() == [size, 0, 0] and used_on(two, "host-1") == size)
    ctl_done(two, "offload", "w", "--to", "host")
    two.wait_for(lambda: charged() == [0, size, 0])
    ctl_done(two, "restore", "w")
    two.wait_for(lambda: charged() == [size, 0, 0])


@host_only
def test_a_drain_of_the_peer_sends_what_lies_there_to_its_own_host_tier(two):
    put(two, "w", DATA)
    ctl_done(two, "offload", "w", "--to", "peer")
    ctl_done(two, "drain", "--device", "host-1")
    assert lies(two, "w") == ("host", "host", None) and used_on(two, "host-1") == 0 and used_on(two, "host", "host")
    assert get(two, "w") == DATA
    ctl_done(two, "restore", "w")
    assert lies(two, "w") == HOME


@host_only
def test_a_drained_home_takes_nothing_back_from_its_peer(two):
    put(two, "w", DATA)
    before = hash_of(two, "w")
    ctl_done(two, "offload", "w", "--to", "peer")
    ctl_done(two, "drain", "--device", "host")
    with fails("DRAINED", "host"):
        two.rpc("hbm.restore", {"sel": "w"})
    assert lies(two, "w") == AWAY and hash_of(two, "w") == before


@host_only
def test_what_lies_with_a_peer_survives_the_owner(make_daemon):
    """FAULTS 26."""
    daemon = make_daemon(supervise=True, config=TWO).start()
    ready(daemon)
    load_layers(daemon, "m", 3)
    put(daemon, "w", DATA)
    ctl_done(daemon, "offload", "w", "--to", "peer")
    ctl_done(daemon, "offload", "m/layers.1.weight", "--to", "peer")
    before, hashes = picture(daemon), hash_of(daemon, "*")
    for _ in range(2):
        kill_and_wait(daemon)
        assert picture(daemon) == before and lies(daemon, "w") == AWAY
        assert hash_of(daemon, "*") == hashes
    assert daemon.rpc("hbm.status")["lost"] == 0
    ctl_done(daemon, "restore", "*")
    assert lies(daemon, "w") == HOME and used_on(daemon, "host-1") == 0 and get(daemon, "w") == DATA


STRIKES = [(("offload", "w", "--to", "peer"), "device", "copy"), (("offload", "w", "--to", "peer"), "device", "create"),
           (("restore", "w"), "peer", "copy"), (("offload", "w", "--to", "host"), "peer", "copy"),
           (("offload", "w", "--to", "disk"), "peer", "create")]


def fresh_workers(daemon):
    """They count their jobs from one."""
    for uuid, row in devices(daemon).items():
        os.kill(row["worker_pid"], 9)
        daemon.wait_for(lambda u=uuid, n=row["worker_restarts"]: devices(daemon)[u]["worker_restarts"] == n + 1, 20)
    ready(daemon)


@host_only
@pytest.mark.parametrize("action", ["kill", "io", "nomem", "sticky"])
@pytest.mark.parametrize("words, tier, job", STRIKES, ids=[f"{'-'.join(words)}-{job}" for words, _, job in STRIKES])
def test_a_worker_that_fails_on_the_way_leaves_it_where_it_was(make_daemon, words, tier, job, action):
    """FAULTS 24: whichever of the two workers it is."""
    struck = Faulty(f"{job}:{action}:1", lambda: make_daemon(config=TWO + "memory_wait_seconds = 0\n"))
    daemon = struck.daemon
    struck.flag.touch()  # nobody is struck yet
    put(daemon, "w", DATA)
    if tier == "peer":
        ctl_done(daemon, "offload", "w", "--to", "peer")
    before, where, held = hash_of(daemon, "w"), lies(daemon, "w"), [used_on(daemon, uuid) for uuid in ("host", "host-1")]
    fresh_workers(daemon)
    struck.flag.unlink()
    restarts = sum(row["worker_restarts"] for row in devices(daemon).values())
    assert daemon.ctl(*words).returncode == 1 and struck.flag.exists()
    ends = action in ("kill", "sticky")
    daemon.wait_for(lambda: sum(row["worker_restarts"] for row in devices(daemon).values()) == restarts + ends, 20)
    ready(daemon)
    assert lies(daemon, "w") == where and hash_of(daemon, "w") == before
    assert [used_on(daemon, uuid) for uuid in ("host", "host-1")] == held
    ctl_done(daemon, *words)
    assert get(daemon, "w") == DATA and serves(daemon)


class HeldTwo(Held):
    def arm(self):
        fresh_workers(self.daemon)
        self.flag.unlink()


@host_only
@pytest.mark.parametrize("words, tier, job", STRIKES, ids=[f"{'-'.join(words)}-{job}" for words, _, job in STRIKES])
def test_an_owner_killed_on_the_way_finds_it_where_it_was(make_daemon, binary, words, tier, job):  # noqa: F811
    """FAULTS 26: and the same, asked again, is done."""
    held = HeldTwo(lambda **how: make_daemon(config=TWO, **how), binary, job, 1)
    try:
        if tier == "peer":
            ctl_done(held.daemon, "offload", "w", "--to", "peer")
        held.kill_while(list(words))
        ctl_done(held.daemon, *words)
        assert get(held.daemon, "w") == HELD
        assert held.holder.end() == 0
    finally:
        held.holder.process.kill()
        held.holder.process.wait()


@host_only
def test_a_peer_that_is_lost_is_named_and_the_others_serve(make_daemon):
    """FAULTS 24: a device lost. What lay there comes back with it."""
    daemon = make_daemon(config=TWO + "worker_patience_seconds = 1\n")
    mood = daemon.home / "mood"
    mood.write_text("")
    wrapper = daemon.home / "hbm-worker"
    wrapper.write_text(f'#!/bin/sh\nHBM_WORKER_FAULT=$(cat {mood}) exec {BUILD / "hbm-worker"} "$@"\n')
    wrapper.chmod(0o755)
    with open(daemon.home / "hbmd.conf", "a") as conf:
        conf.write(f"worker_dir = {daemon.home}\n")
    daemon.start()
    ready(daemon)
    put(daemon, "w", DATA), put(daemon, "other", DATA)
    ctl_done(daemon, "offload", "w", "--to", "peer")
    mood.write_text("start:kill")
    os.kill(devices(daemon)["host-1"]["worker_pid"], 9)
    daemon.wait_for(lambda: devices(daemon)["host-1"]["state"] == "failed", 30)
    for words in (["restore", "w"], ["offload", "w", "--to", "host"]):
        ctl_refused(daemon.ctl(*words), 1, "w", "host-1")
    with Client(daemon.socket) as client:
        client.hello()
        with refused("DEVICE_LOST", "w", "host-1"):
            client.attach("w", timeout_ms=10000)
    assert get(daemon, "other") == DATA and serves(daemon) and lies(daemon, "w") == AWAY
    ctl_refused(daemon.ctl("offload", "other", "--to", "peer"), 1, "host-1: failed")
    mood.write_text("")
    ready(daemon)
    ctl_done(daemon, "restore", "w")
    assert get(daemon, "w") == DATA


@host_only
def test_what_lies_with_a_peer_goes_on_to_host_memory_when_that_one_wants_the_room(make_daemon):
    """FAULTS 18: of one that is never to go, who waits is told so."""
    daemon = make_daemon(config=TWO + "device_bytes = 8MiB\nmemory_wait_seconds = 30\n").start()
    ready(daemon)
    put(daemon, "w", DATA)
    ctl_done(daemon, "offload", "w", "--to", "peer")
    before = hash_of(daemon, "w")
    with Client(daemon.socket) as client:
        client.hello()
        client.grant(4 * MIB, device=1)
        assert lies(daemon, "w") == ("host", "host", None) and hash_of(daemon, "w") == before
        assert daemon.rpc("hbm.show", {"sel": "w"})[0]["evictions"] == 1
    ctl_done(daemon, "restore", "w")
    assert get(daemon, "w") == DATA
    sweep(daemon)


def extent_of(daemon, size):
    """The daemon's only memory of that size."""
    found, folder = [], f"/proc/{daemon.pid}/fd"
    for fd in os.listdir(folder):
        try:
            if "hbm-extent" in os.readlink(f"{folder}/{fd}") and os.stat(f"{folder}/{fd}").st_size == size:
                found.append(f"{folder}/{fd}")
        except FileNotFoundError:  # closed meanwhile
            continue
    [path] = found
    return path


@host_only
def test_a_damaged_copy_on_a_peer_is_a_checksum_error_by_name(two):
    """FAULTS 21: as in any other tier; no wrong byte is seen."""
    put(two, "w", DATA)
    ctl_done(two, "offload", "w", "--to", "peer")
    size = used_on(two, "host-1")
    with open(extent_of(two, size), "r+b", buffering=0) as memory:
        memory.seek(12345)
        byte = memory.read(1)
        memory.seek(12345)
        memory.write(bytes([byte[0] ^ 1]))
        with fails("CHECKSUM"):
            two.rpc("hbm.restore", {"sel": "w"})
        assert lies(two, "w") == AWAY and events(two, "arena.damaged")
        memory.seek(12345)
        memory.write(byte)
    ctl_done(two, "restore", "w")
    assert get(two, "w") == DATA
