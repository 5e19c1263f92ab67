"""Attaching, moving, and how much of a model may move (CASES 1-3, 15, 16, 30)."""
import os

import pytest

from helpers import (MIB, Client, client, client_program, ctl_done, ctl_json, ctl_refused, empty, fails, fds_of, floats, get, hash_of,
                     host_only, load_layers, module_daemon, program, put, row_of, safetensors, shared, tier_of, used)
from wire import RO, UNLOCKED


# ---- Attaching ----

@host_only
def test_the_same_buffer_attached_twice_has_one_pointer_and_is_unmapped_once(shared, program):
    """CASES 2, 3: three times here, three releases; the memory stays until the last."""
    put(shared, "w", b"w" * 10000)
    reader = program(shared)
    leases = [reader.attach("w") for _ in range(3)]
    assert len({address for _, _, address in leases}) == 1
    wrote = reader.ask("sum", leases[0][0])
    for index, _, _ in leases[:2]:
        reader.ask("detach", index)
    assert reader.ask("sum", leases[2][0]) == wrote
    assert len(row_of(shared, "w")["leases"]) == 1
    reader.ask("detach", leases[2][0])
    assert row_of(shared, "w")["leases"] == []


@host_only
def test_one_of_two_readers_that_lets_go_leaves_the_others_mapping(shared, program):
    """CASES 30."""
    put(shared, "w", b"w" * 10000)
    one, two = program(shared), program(shared)
    (first, _, _), (second, _, _) = one.attach("w"), two.attach("w")
    wrote = two.ask("sum", second)
    one.ask("detach", first)
    one.end()
    assert two.ask("sum", second) == wrote


def test_a_granted_buffer_that_is_released_gives_its_bytes_back_at_once(shared, program):
    """CASES 1."""
    owner, reader = program(shared), program(shared)
    lease, id, _ = owner.alloc("w", 5 * MIB)
    index, _, _ = reader.attach("w", "rw")
    owner.ask("detach", lease)
    assert used(shared) >= 5 * MIB
    reader.ask("detach", index)
    assert used(shared) == 0
    with fails("STALE"):
        reader.ask("attach_id", id, "ro", 0, 1000)


def test_a_thousand_ids_used_once_each_leave_the_client_and_the_daemon_flat(shared, program):
    """CASES 2. Ten thousand cycles of one id are in test_leaks.py."""
    with Client(shared.socket) as link:
        link.hello()
        fds = fds_of(shared.process.pid)
        for _ in range(1000):
            grant, fd = link.alloc(4096)
            if fd is not None:
                os.close(fd)
            link.call("detach", lease=grant["lease"])
        shared.wait_for(lambda: fds_of(shared.process.pid) <= fds)  # sockets of ended links stay for a moment
        assert len(link.page) // 8 == 8192 and grant["slot"] < 8192


# ---- Moving ----

@pytest.mark.parametrize("tier", ["host", "disk"])
def test_offload_and_restore_keep_every_byte_and_book_each_tier(shared, tier):
    data = os.urandom(3 * MIB + 17)
    put(shared, "w", data)
    before, device = hash_of(shared, "w"), used(shared)
    ctl_done(shared, "offload", "w", "--to", tier)
    assert (tier_of(shared, "w"), used(shared)) == (tier, 0) and used(shared, tier) >= len(data)
    assert hash_of(shared, "w") == before
    assert tier_of(shared, "w") == tier, "a hash moves nothing"
    assert get(shared, "w") == data
    ctl_done(shared, "restore", "w")
    assert (tier_of(shared, "w"), used(shared)) == ("device", device) and empty(shared, tier)
    assert hash_of(shared, "w") == before and get(shared, "w") == data


def test_offload_from_host_to_disk_and_back_to_host(shared):
    data = os.urandom(MIB)
    put(shared, "w", data)
    for tier in ("host", "disk", "host", "disk"):
        ctl_done(shared, "offload", "w", "--to", tier)
        assert tier_of(shared, "w") == tier and get(shared, "w") == data
    assert empty(shared, "host")


@pytest.mark.parametrize("verb", ["offload", "restore"])
def test_an_offload_or_restore_asked_twice_is_done_once(shared, verb):
    """CASES 15, 16."""
    data = os.urandom(100000)
    put(shared, "w", data)
    for _ in range(2):
        ctl_done(shared, "offload", "w", "--to", "host")
    if verb == "restore":
        for _ in range(2):
            ctl_done(shared, "restore", "w")
    assert used(shared, "host") if verb == "offload" else empty(shared, "host")
    assert get(shared, "w") == data


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_buffer_freed_while_offloaded_leaves_nothing(shared, tier):
    """CASES 15."""
    put(shared, "w", b"w" * MIB)
    ctl_done(shared, "offload", "w", "--to", tier)
    ctl_done(shared, "free", "w")
    assert empty(shared, tier)
    ctl_refused(shared.ctl("restore", "w"), 1, "w")


def test_an_attach_brings_the_buffer_back(shared, client):
    put(shared, "w", b"w" * MIB)
    before = hash_of(shared, "w")
    ctl_done(shared, "offload", "w", "--to", "disk")
    grant, _ = client.attach("w", timeout_ms=10000)
    assert grant["present"] == 1 and tier_of(shared, "w") == "device" and hash_of(shared, "w") == before


def test_a_part_of_a_model_restored_and_then_the_whole_model_used_is_whole(shared, client):
    """CASES 16."""
    load_layers(shared)
    before = hash_of(shared, "model:m")
    ctl_done(shared, "sleep", "m")
    ctl_done(shared, "restore", "m/layers.1.weight")
    client.call("attach_model", name="m", access=RO, timeout_ms=10000).close()
    assert hash_of(shared, "model:m") == before
    assert {row["tier"] for row in shared.rpc("hbm.ls")} == {"device"}


def test_what_shares_an_arena_goes_along_and_is_named(shared):
    path = shared.home / "two.safetensors"
    safetensors(path, {"layers.0.a": ("F32", (4,), floats([1, 2, 3, 4])), "layers.0.b": ("F32", (2,), floats([5, 6])),
                       "layers.1.a": ("F32", (64,), floats([1] * 64))})
    ctl_done(shared, "load", path, "--as", "m")
    rows = ctl_json(shared, "offload", "m/layers.0.a", "--to", "host", "--force")
    assert {row["name"] for row in rows} == {"m/layers.0.a", "m/layers.0.b"}
    assert tier_of(shared, "m/layers.1.a") == "device"


# ---- Limits ----

def test_more_than_the_offload_limit_is_refused_with_the_figures_unless_forced(shared):
    load_layers(shared, "m", 4)
    ctl_done(shared, "offload", "m/layers.0.weight", "--to", "host")
    ctl_refused(shared.ctl("offload", "m/layers.1.weight", "--to", "host"), 1, "30", "--force")
    assert tier_of(shared, "m/layers.1.weight") == "device"
    ctl_done(shared, "offload", "m/layers.1.weight", "--to", "disk", "--force")
    ctl_done(shared, "restore", "model:m")
    ctl_refused(shared.ctl("offload", "model:m", "--to", "host"), 1, "30")
    assert shared.rpc("hbm.models")[0]["bytes_by_tier"]["host"] == 0
    ctl_done(shared, "offload", "m/layers.3.weight", "--to", "host")


def test_sleep_takes_a_whole_model_and_wake_brings_it_back(shared):
    load_layers(shared, "m", 4)
    before = hash_of(shared, "model:m")
    for tier in ("host", "disk"):
        ctl_done(shared, "sleep", "m", "--to", tier)
        assert {row["tier"] for row in shared.rpc("hbm.ls")} == {tier} and used(shared) == 0
        assert hash_of(shared, "model:m") == before
        ctl_done(shared, "wake", "m")
        assert {row["tier"] for row in shared.rpc("hbm.ls")} == {"device"}
        assert hash_of(shared, "model:m") == before


@host_only
def test_a_model_sleeps_and_wakes_under_an_attached_client_that_has_unlocked_it(shared, program):
    """Same pointers, same bytes."""
    load_layers(shared, "m", 3)
    reader = program(shared)
    reader.ask("model", "m", "ro", 0, 5000)
    before = reader.ask("msum", 0)
    reader.ask("munlock", 0)
    ctl_done(shared, "sleep", "m")
    assert used(shared) == 0
    assert all(entry.endswith("0" * 16) for entry in reader.ask("msum", 0)), "nothing is mapped while it sleeps"
    reader.ask("mlock", 0, 10000)
    assert reader.ask("msum", 0) == before
    assert {row["tier"] for row in shared.rpc("hbm.ls")} == {"device"}


@host_only
def test_a_model_attached_unlocked_maps_nothing_before_its_first_lock(shared, program):
    load_layers(shared, "m", 3)
    ctl_done(shared, "sleep", "m")
    reader = program(shared)
    reader.ask("model", "m", "ro", UNLOCKED, 5000)
    assert used(shared) == 0
    reader.ask("mlock", 0, 10000, "layers.1")
    assert used(shared) == used(shared, "host") // 2
    reader.ask("mlock", 0, 10000)
    assert len(set(reader.ask("msum", 0))) == 3
