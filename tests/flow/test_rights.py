"""Who may see, read, write and free what (FAULTS 12, 15)."""
import mmap
import os

import pytest

from conftest import RpcError
from helpers import (MIB, OTHER, Client, as_user, client, client_program, fails, host_only, let_others_in, module_daemon, program, put,
                     refused, root_only, row_of, shared)
from wire import KEEP, RO, RW, SHARED

pytestmark = root_only
STRANGER = OTHER - 1


def client_of(daemon, uid):
    with as_user(uid):
        link = Client(daemon.socket)
    link.hello(f"user {uid}")
    return link


def rpc_of(daemon, uid, method, params=None):
    with as_user(uid), daemon.operator() as operator:
        return operator.rpc(method, params)


@pytest.fixture
def two(shared):
    """Two users, neither an administrator."""
    let_others_in(shared)
    with client_of(shared, OTHER) as one, client_of(shared, STRANGER) as other:
        yield one, other


def test_a_name_belongs_to_its_owner(shared, two):
    one, other = two
    a, _ = one.alloc(4096, "w")
    b, _ = other.alloc(4096, "w")
    assert a["buffer"] != b["buffer"]
    assert one.attach("w")[0]["buffer"] == a["buffer"]
    assert other.attach("w")[0]["buffer"] == b["buffer"]
    assert {row["name"] for row in shared.rpc("hbm.ls")} == {f"~{OTHER}/w", f"~{STRANGER}/w"}
    assert {row["id"] for row in rpc_of(shared, OTHER, "hbm.ls")} == {f"0x{a['buffer']:016x}"}
    with refused("EXISTS"):
        one.alloc(4096, "w")


def test_what_is_anothers_is_not_there_in_the_same_words_as_what_never_was(two):
    """FAULTS 12."""
    one, other = two
    secret, _ = one.alloc(4096, "secret")
    for sel in ("secret", f"~{OTHER}/secret", "never"):
        with refused("NOT_FOUND", sel):
            other.attach(sel)
    sentences = []
    for id in (secret["buffer"], secret["buffer"] ^ 1 << 40):
        for call in (lambda: other.attach(id=id), lambda: other.call("free", id=id)):
            with pytest.raises(Exception) as caught:
                call()
            sentences.append(caught.value.detail.replace(f"{id:016x}", "ID"))
    assert len(set(sentences)) == 1, sentences


@host_only
def test_a_readable_buffer_is_given_to_another_user_as_a_private_copy(shared, two):
    """FAULTS 15: an untrusted reader gets no fd of the memory itself."""
    one, other = two
    wrote = os.urandom(40961)
    grant, fd = one.alloc(len(wrote), "open", mode=0o644)
    memory = mmap.mmap(fd, len(wrote))
    memory[:] = wrote
    copy, copied_fd = other.attach(f"~{OTHER}/open")
    copied = mmap.mmap(copied_fd, len(wrote), prot=mmap.PROT_READ)
    memory[:5] = b"later"
    assert copied[:] == wrote
    assert copy["buffer"] != grant["buffer"] and copy["arena"] != grant["arena"]
    assert os.fstat(fd).st_ino != os.fstat(copied_fd).st_ino
    with refused("DENIED"):
        other.attach(f"~{OTHER}/open", access=RW)
    with refused("DENIED"):
        other.call("free", id=grant["buffer"])
    other.call("detach", lease=copy["lease"])
    assert len(shared.rpc("hbm.ls")) == 1


@host_only
def test_memory_whose_fd_was_kept_never_goes_to_another_user(two):
    """FAULTS 15: the extent goes back to the driver, whoever still maps it writes into nobody's memory."""
    one, other = two
    grant, fd = one.alloc(MIB, "a", flags=KEEP)
    memory = mmap.mmap(fd, MIB)
    memory[:4] = b"mine"
    one.call("detach", lease=grant["lease"])
    one.call("free", id=grant["buffer"])
    for _ in range(8):
        _, theirs = other.alloc(MIB)
        memory[:4] = b"evil"
        assert mmap.mmap(theirs, MIB)[:4] == b"\0\0\0\0"


@host_only
def test_a_read_only_lease_cannot_be_mapped_writable(shared, client):
    """FAULTS 15."""
    grant, fd = client.alloc(4096, "w")
    mmap.mmap(fd, 4096)[:4] = b"data"
    _, read_fd = client.attach("w", access=RO)
    with pytest.raises(PermissionError):
        mmap.mmap(read_fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.pwrite(read_fd, b"x", 0)
    assert mmap.mmap(read_fd, 4096, prot=mmap.PROT_READ)[:4] == b"data"


@host_only
@pytest.mark.parametrize("access", [RO, RW])
@pytest.mark.parametrize("size", [0, 1, 2**40])
def test_a_shared_memfd_cannot_be_cut_or_grown(client, access, size):
    """FAULTS 15: sealed."""
    client.alloc(4096, "w")
    _, fd = client.attach("w", access=access)
    with pytest.raises(OSError):
        os.ftruncate(fd, size)


@host_only
def test_a_stray_write_through_a_read_only_lease_fails_in_the_writer_alone(shared, program):
    """FAULTS 15."""
    owner, reader = program(shared), program(shared)
    lease, _, _ = owner.alloc("w", MIB)
    owner.ask("fill", lease, 7)
    wrote = owner.ask("sum", lease)
    index, _, _ = reader.attach("w", "ro")
    with fails("ENDED"):
        reader.ask("poke", index, 100, 9)
    assert reader.process.returncode != 0
    assert owner.ask("sum", lease) == wrote
    shared.wait_for(lambda: len(shared.rpc("hbm.sessions")) == 1)


def test_the_group_and_other_bits_of_a_mode_are_as_of_a_file(two):
    one, other = two
    for mode, reads in ((0o600, False), (0o640, False), (0o604, True), (0o644, True)):
        grant, _ = one.alloc(4096, f"m{mode:o}", mode=mode)
        if reads:
            other.attach(f"~{OTHER}/m{mode:o}")
        else:
            with refused("NOT_FOUND"):
                other.attach(f"~{OTHER}/m{mode:o}")


def test_a_shared_name_is_made_by_administrators_and_seen_by_all(shared, two):
    one, other = two
    with refused("DENIED", "administrators"):
        one.alloc(4096, "global", flags=SHARED)
    put(shared, "global", b"g" * 4096, "--shared")
    original = row_of(shared, "global")["id"]
    for link in two:
        link.attach("global")
        with refused("DENIED"):
            link.attach("global", access=RW)
    assert len(row_of(shared, "global")["leases"]) == 2
    assert row_of(shared, "global")["id"] == original
    mine, _ = one.alloc(4096, "global")
    assert one.attach("global")[0]["buffer"] == mine["buffer"]


def test_an_administrator_reaches_every_owner_by_name(shared, two):
    one, _ = two
    one.alloc(4096, "w", flags=KEEP)
    with Client(shared.socket) as admin:
        admin.hello()
        admin.attach(f"~{OTHER}/w", access=RW)
        with refused("NOT_FOUND"):
            admin.attach("w")


def test_the_operators_socket_shows_and_moves_only_ones_own(shared, two):
    one, other = two
    grant, _ = one.alloc(4096, "w", flags=KEEP)
    session = [row["session"] for row in shared.rpc("hbm.sessions") if row["uid"] == OTHER][0]
    assert rpc_of(shared, STRANGER, "hbm.ls") == []
    assert {row["uid"] for row in rpc_of(shared, STRANGER, "hbm.sessions")} == {STRANGER}
    for method, params in (("hbm.kick", {"session": session}), ("hbm.drain", {})):
        with pytest.raises(RpcError) as caught:
            rpc_of(shared, OTHER, method, params)
        assert caught.value.name == "DENIED"
    for method, params in (("hbm.free", {"sel": f"id:0x{grant['buffer']:x}"}), ("hbm.hash", {"sel": f"~{OTHER}/w"}),
                           ("hbm.offload", {"sel": f"~{OTHER}/w", "to": "host"}), ("hbm.rename", {"name": f"~{OTHER}/w", "to": "x"})):
        with pytest.raises(RpcError) as caught:
            rpc_of(shared, STRANGER, method, params)
        assert caught.value.name == "NOT_FOUND", method
    assert rpc_of(shared, OTHER, "hbm.hash", {"sel": "w"})[0]["name"] == "w"


@pytest.mark.parametrize("verb", ["offload", "compress", "decompress"])
def test_a_reader_may_not_change_what_it_may_read(shared, two, verb):
    one, other = two
    grant, _ = one.alloc(4096, "w", mode=0o644, flags=KEEP, dtype=11, rank=1, dims=[1024])
    one.call("detach", lease=grant["lease"])
    if verb == "decompress":
        shared.rpc("hbm.compress", {"sel": f"~{OTHER}/w", "codec": "bf16"})
    more = {"offload": {"tier": 1}, "compress": {"encoding": {"codec": 1}}}.get(verb, {})
    with refused("DENIED"):
        other.call(verb, sel=f"~{OTHER}/w", **more)
