"""Models: one builds, the others wait; what becomes of half a model (FAULTS 1; CASES 1, 11)."""
import os

import pytest

from conftest import RpcError
from helpers import (MIB, Client, child, client, client_program, ctl_done, ctl_refused, fds_of, hash_of, host_only, load_layers,
                     module_daemon, program, refused, shared, used)
from tables import publish
from wire import REPLACE, RO, WAIT

def models(daemon):
    return {row["name"]: row for row in daemon.rpc("hbm.models")}


def build(link, name, size=2 * MIB, **more):
    packet = publish(link, name, {"a": size, "b": size}, **more)
    assert packet.fields["must_build"] == 1
    return packet


def build_and_stay(daemon, say):
    link = Client(daemon.socket)
    link.hello()
    packet = build(link, "m")
    say()
    return link, packet


def test_the_first_asker_builds_and_the_others_wait_for_it(shared, client):
    packet = build(client, "m")
    with Client(shared.socket) as second, Client(shared.socket) as third:
        second.hello(), third.hello()
        waiting = publish(second, "m", {"a": MIB, "b": MIB}, flags=WAIT, wait=False)
        attaching = third.send("attach_model", name="m", access=RO, flags=WAIT, timeout_ms=5000)
        row = models(shared)["m"]
        assert (row["state"], row["builder_pid"], row["buffers"], row["groups"]) == ("building", os.getpid(), 2, 2)
        client.call("commit", lease=packet.fields["lease"], commit=1)
        for link, serial in ((second, waiting), (third, attaching)):
            got = link.reply(serial)
            assert got.fields["must_build"] == 0 and got.fields["model"] == packet.fields["model"]
            assert len(got.fds) == got.fields["n_fds_total"] == 3
            got.close()
    assert models(shared)["m"]["state"] == "sealed"


def test_a_model_that_is_being_built_is_not_ready_for_who_does_not_wait(shared, client):
    packet = build(client, "m")
    with refused("NOT_READY", "m"):
        publish(client, "m", {"a": MIB})
    with refused("NOT_READY", "m"):
        client.call("attach_model", name="m", access=RO, timeout_ms=1000)
    with refused("NOT_READY"):
        client.attach("m/a")
    with refused("TIMEOUT"):
        client.call("attach_model", name="m", access=RO, flags=WAIT, timeout_ms=30)
    with refused("TIMEOUT"):
        publish(client, "m", {"a": MIB}, flags=WAIT, timeout_ms=30)
    client.call("commit", lease=packet.fields["lease"], commit=0)


def test_a_builders_death_makes_a_waiter_the_builder(shared, child, client):
    kept = []
    builder = child(lambda say: kept.append(build_and_stay(shared, say)))
    builder.heard()
    serial = publish(client, "m", {"a": 2 * MIB, "b": 2 * MIB}, flags=WAIT, wait=False)
    with Client(shared.socket) as reader:
        reader.hello()
        attaching = reader.send("attach_model", name="m", access=RO, flags=WAIT, timeout_ms=10000)
        builder.kill()
        packet = client.reply(serial)
        assert packet.fields["must_build"] == 1
        client.call("commit", lease=packet.fields["lease"], commit=1)
        assert reader.reply(attaching).fields["model"] == packet.fields["model"]
    assert models(shared)["m"]["bytes"] == 4 * MIB


def test_a_builders_death_is_told_to_who_waits_only_to_read(shared, child, client):
    kept = []
    builder = child(lambda say: kept.append(build_and_stay(shared, say)))
    builder.heard()
    attaching = client.send("attach_model", name="m", access=RO, flags=WAIT, timeout_ms=10000)
    builder.kill()
    with refused("BUILDER_DIED"):
        client.reply(attaching)


def test_half_a_model_goes_with_its_builder(shared, child):
    kept = []
    builder = child(lambda say: kept.append(build_and_stay(shared, say)))
    builder.heard()
    assert used(shared) == 4 * MIB
    builder.kill()
    shared.wait_for(lambda: used(shared) == 0 and not models(shared) and not shared.rpc("hbm.ls"))


def test_a_builder_that_hung_up_builds_no_more_while_its_process_lives(shared, child, client):
    """FAULTS 1: its memory waits for its end, the others do not."""
    def build_and_hang_up(say):
        link, packet = build_and_stay(shared, lambda: None)
        link.socket.close()
        say()
        return packet

    builder = child(build_and_hang_up)
    builder.heard()
    shared.wait_for(lambda: shared.rpc("hbm.status")["quarantined"] == 1)
    packet = build(client, "m")
    assert used(shared) == 8 * MIB, "half of the first is still there"
    client.call("commit", lease=packet.fields["lease"], commit=1)
    builder.kill()
    shared.wait_for(lambda: used(shared) == 4 * MIB)
    assert models(shared)["m"]["state"] == "sealed"


def test_an_aborted_model_is_gone_and_its_name_is_free(shared, client):
    packet = build(client, "m")
    client.call("commit", lease=packet.fields["lease"], commit=0)
    assert used(shared) == 0 and not models(shared)
    with refused("NOT_FOUND"):
        client.call("commit", lease=packet.fields["lease"], commit=1)
    packet = build(client, "m")
    client.call("commit", lease=packet.fields["lease"], commit=1)
    with refused("NOT_FOUND"):
        client.call("commit", lease=packet.fields["lease"], commit=1)


def test_a_sealed_model_is_replaced_only_on_request_and_readers_keep_the_old(shared, client):
    packet = build(client, "m")
    client.call("commit", lease=packet.fields["lease"], commit=1)
    with refused("EXISTS", "m"):
        publish(client, "m", {"a": MIB})
    with Client(shared.socket) as reader:
        reader.hello()
        old = reader.call("attach_model", name="m", access=RO, timeout_ms=1000)
        fresh = publish(client, "m", {"a": 4 * MIB}, flags=REPLACE)
        assert fresh.fields["must_build"] == 1
        assert sorted(row["state"] for row in shared.rpc("hbm.models")) == ["building", "sealed"]
        again = reader.call("attach_model", name="m", access=RO, timeout_ms=1000)
        assert again.fields["model"] == packet.fields["model"]
        client.call("commit", lease=fresh.fields["lease"], commit=1)
        states = sorted((row["state"], row["bytes"]) for row in shared.rpc("hbm.models"))
        assert states == [("replaced", 4 * MIB), ("sealed", 4 * MIB)]
        for lease in (old, again):
            reader.call("detach", lease=lease.fields["lease"])
    assert [row["state"] for row in shared.rpc("hbm.models")] == ["sealed"]
    assert used(shared) == 4 * MIB


def test_a_hundred_replacements_leave_the_memory_flat(shared, client):
    """CASES 11."""
    for _ in range(100):
        packet = publish(client, "m", {"a": 64 * 1024, "b": 5000}, flags=REPLACE)
        packet.close()
        client.call("commit", lease=packet.fields["lease"], commit=1)
    shared.wait_for(lambda: len(models(shared)) == 1)
    assert used(shared) < MIB * 4 * 2 and len(shared.rpc("hbm.ls")) == 2
    fds = fds_of(shared.process.pid)
    for _ in range(20):
        packet = publish(client, "m", {"a": 64 * 1024, "b": 5000}, flags=REPLACE)
        packet.close()
        client.call("commit", lease=packet.fields["lease"], commit=1)
    shared.wait_for(lambda: fds_of(shared.process.pid) <= fds)


@pytest.mark.parametrize("name", ["a/b", "a:b", "~a", "a@b", "", "..", "a*"], ids=repr)
def test_a_model_name_that_is_none_is_refused(client, name):
    with refused("INVALID"):
        publish(client, name, {"t": 64})


def test_a_model_larger_than_the_device_is_refused_whole(shared, client):
    with refused("TOO_LARGE"):
        publish(client, "m", {"a": MIB, "b": 2**45})
    assert used(shared) == 0 and not models(shared)


def test_an_empty_model_and_one_of_empty_tensors_are_models(shared, client):
    packet = publish(client, "empty", {})
    client.call("commit", lease=packet.fields["lease"], commit=1)
    packet = publish(client, "zero", {"z": 0, "a": 64})
    client.call("commit", lease=packet.fields["lease"], commit=1)
    client.call("attach_model", name="empty", access=RO, timeout_ms=1000).close()
    client.call("attach_model", name="zero", access=RO, timeout_ms=1000).close()
    assert {row["name"] for row in shared.rpc("hbm.ls", {"glob": "zero/*"})} == {"zero/a", "zero/z"}


@host_only
def test_what_the_builder_wrote_is_what_the_waiters_read(shared, program):
    """CASES 1: through libhbm; when all have detached and it is removed, the bytes in use are 0 at once."""
    builder, reader, other = program(shared), program(shared), program(shared)
    assert builder.ask("publish", "m", 0, 1000, 3, 1000) == ["0", "1"]
    reader.say("publish", "m", WAIT, 10000, 3, 1000)
    other.say("model", "m", "ro", WAIT, 10000)
    builder.ask("mfill", 0, 65)
    wrote = [entry.split(":")[1] for entry in builder.ask("msum", 0)]
    builder.ask("commit", 0)
    assert reader.hear() == ["0", "0"] and other.hear() == ["0", "3"]
    for each in (reader, other):
        assert [entry.split(":")[1] for entry in each.ask("msum", 0)] == wrote
    assert len(set(wrote)) == 3
    with pytest.raises(RpcError, match="held"):
        shared.rpc("hbm.rm", {"model": "m"})
    reader.ask("mdetach", 0), other.ask("mdetach", 0)
    shared.rpc("hbm.rm", {"model": "m"})
    assert used(shared) == 0


def test_rm_names_who_holds_the_model(shared, program):
    load_layers(shared)
    reader = program(shared)
    reader.ask("model", "m", "ro", 0, 1000)
    ctl_refused(shared.ctl("rm", "m"), 1, "m", reader.process.pid)
    ctl_refused(shared.ctl("free", "m/layers.0.weight"), 1, "rm")
    reader.ask("mdetach", 0)
    ctl_done(shared, "rm", "m")
    ctl_refused(shared.ctl("rm", "m"), 1, "m")


def test_a_renamed_model_and_its_buffers_have_their_new_names_alone(shared):
    load_layers(shared, "old", 2)
    hashes = {name.split("/")[1]: value for name, value in hash_of(shared, "model:old").items()}
    ctl_done(shared, "rename", "old", "new")
    assert {name: value for name, value in hash_of(shared, "model:new").items()} == {f"new/{k}": v for k, v in hashes.items()}
    ctl_refused(shared.ctl("show", "model:old"), 1)
    load_layers(shared, "old", 1)
    ctl_refused(shared.ctl("rename", "old", "new"), 1, "new")
    ctl_refused(shared.ctl("rename", "old", "a/b"), 1)
    assert {row["name"] for row in shared.rpc("hbm.models")} == {"old", "new"}
