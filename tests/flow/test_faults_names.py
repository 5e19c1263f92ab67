"""Ids, names and sizes that name nothing, or nothing of yours (FAULTS 11, 12, 17; CASES 4, 14)."""
import os
import random

import pytest

from helpers import MIB, Client, child, client, module_daemon, refused, shared, used, violation
from wire import KEEP


def test_a_lease_ends_once_and_only_by_its_session(shared, client):
    """FAULTS 11."""
    mine, _ = client.alloc(4096, "mine", flags=KEEP)
    with Client(shared.socket) as other:
        other.hello()
        with refused("NOT_FOUND"):
            other.call("detach", lease=mine["lease"])
    with refused("BUSY", os.getpid()):
        client.call("free", id=mine["buffer"])
    client.call("detach", lease=mine["lease"])
    with refused("NOT_FOUND"):
        client.call("detach", lease=mine["lease"])
    client.call("free", id=mine["buffer"])
    with refused("STALE"):
        client.call("free", id=mine["buffer"])


def test_an_id_in_a_slot_that_is_used_again_is_stale(shared, client):
    """FAULTS 11, CASES 4: never the other buffer's bytes."""
    a, _ = client.alloc(4096, "a", flags=KEEP)
    client.call("detach", lease=a["lease"])
    client.call("free", id=a["buffer"])
    fresh = [client.grant(4096) for _ in range(64)]
    assert a["buffer"] not in {grant["buffer"] for grant in fresh}
    with refused("STALE"):
        client.attach(id=a["buffer"])
    with Client(shared.socket) as other:
        other.hello()
        with refused("NOT_FOUND"):
            other.attach(id=a["buffer"])


def test_an_unlock_of_an_unlocked_slot_and_a_made_up_slot_do_nothing(client):
    """FAULTS 11."""
    grant, _ = client.alloc(4096)
    client.set_word(grant["slot"], 0)
    for slot in (grant["slot"], grant["slot"], 77, 8191, 8192, 2**32 - 1):
        client.send("released", serial=0, slot=slot)
    with refused("INVALID", "slot"):
        client.call("lock", n=1, slots=[8192])
    with refused("INVALID", "slots"):
        client.call("lock", n=0)
    with refused("INVALID", "slots"):
        client.call("lock", n=129)
    client.call("lock", n=1, slots=[grant["slot"]], timeout_ms=1000)


FORGED = [1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]


@pytest.mark.parametrize("id", FORGED, ids=hex)
def test_a_guessed_id_is_an_id_that_never_was(client, id):
    """FAULTS 12, CASES 14."""
    for call in (lambda: client.attach(id=id), lambda: client.call("free", id=id), lambda: client.call("detach", lease=id),
                 lambda: client.call("commit", lease=id, commit=1), lambda: client.call("op_wait", op=id),
                 lambda: client.call("op_cancel", op=id), lambda: client.call("offload", sel=f"id:0x{id:x}", tier=1)):
        with refused("NOT_FOUND"):
            call()


def test_ids_near_a_real_one_are_nobodys(client):
    """FAULTS 12."""
    grant, _ = client.alloc(4096)
    for bit in range(64):
        with refused("NOT_FOUND"):
            client.attach(id=grant["buffer"] ^ 1 << bit)
    for other in ("lease", "arena"):
        with refused("NOT_FOUND"):
            client.attach(id=grant[other])


BAD_NAMES = ["/", "/a", "a/", "a//b", ".", "..", "a/../b", "../etc/passwd", "a\x01b", "a\nb", "a\x7f", "a\x9b1m", "~0/a", "a*", "a?", "[a]", "x:y"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_that_is_no_name_is_refused(client, name):
    """FAULTS 12."""
    with refused("INVALID", "name"):
        client.alloc(4096, name)
    with refused("INVALID", "group"):
        client.alloc(4096, "ok", group=name)


@pytest.mark.parametrize("name", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"a\xe2\x82"], ids=repr)
def test_a_name_that_is_not_utf8_is_refused(client, name):
    """FAULTS 12."""
    with refused("INVALID", "UTF-8"):
        client.alloc(4096, name)


def test_a_name_without_an_end_ends_the_link(shared, child):
    """FAULTS 12: over-long."""
    violation(shared, child, lambda link: link.send("attach", name=b"x" * 256), words=["does not end"])


def test_a_name_of_255_bytes_and_any_script_is_a_name(client):
    for name in ("x" * 255, "模型/層.0/вес", "é" * 127):
        grant, _ = client.alloc(4096, name)
        assert client.attach(name)[0]["buffer"] == grant["buffer"]


@pytest.mark.parametrize("size", [0, 3, 63, 65])
def test_a_handle_of_the_wrong_length_is_a_typed_error(shared, child, size):
    """CASES 14: a body of that many bytes is no request, whatever the opcode."""
    for name in ("attach", "free"):
        violation(shared, child, lambda link, name=name: link.send(name, body=b"h" * size))


def test_64_random_bytes_name_nothing(client):
    """CASES 14."""
    source = random.Random(14)
    for _ in range(20):
        name = bytes(source.randint(1, 255) for _ in range(64))
        with refused("NOT_FOUND"):
            client.attach(name)


# ---- Sizes ----

@pytest.mark.parametrize("size", [1, 4, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1])
def test_a_size_makes_no_difference(client, size):
    """FAULTS 17."""
    grant, fd = client.alloc(size)
    assert grant["size"] == size and grant["arena_size"] >= size
    if fd is not None:
        os.close(fd)


@pytest.mark.parametrize("size, error", [(2**50, "TOO_LARGE"), (2**63 + 1, "TOO_LARGE"), (2**64 - 1, "TOO_LARGE")])
def test_a_size_that_cannot_be_is_refused_at_once(shared, client, size, error):
    """FAULTS 17."""
    with refused(error):
        client.alloc(size)
    assert used(shared) == 0


@pytest.mark.parametrize("spec", [
    {"size": 0, "dtype": 11, "rank": 2, "dims": [2**32, 2**32]}, {"size": 0, "dtype": 11, "rank": 8, "dims": [2**63] * 8},
    {"size": 8, "dtype": 11, "rank": 1, "dims": [1]}, {"size": 4, "dtype": 11, "rank": 2, "dims": [2**63, 2]},
    {"size": 0, "dtype": 0, "rank": 1, "dims": [0]}, {"size": 4096, "dtype": 11}], ids=str)
def test_a_shape_that_overflows_or_does_not_fit_its_size_is_refused(shared, client, spec):
    """FAULTS 17."""
    with refused("INVALID"):
        client.alloc(**spec)
    assert used(shared) == 0


@pytest.mark.parametrize("fields", [{"device": 99}, {"dtype": 200}, {"rank": 9}, {"handle": 2}, {"mode": 0o777}, {"flags": 2}, {"flags": 2**31}],
                         ids=str)
def test_a_field_outside_its_range_is_refused_and_the_link_lives(client, fields):
    with refused("NO_DEVICE" if "device" in fields else "INVALID"):
        client.alloc(4096, **fields)
    client.call("device")
