"""File descriptors and the tables that come in them (FAULTS 8)."""
import fcntl
import os
import resource
import socket

import pytest

from helpers import MIB, Client, child, client, module_daemon, refused, serves, shared, used, violation
from tables import sealed, table
from wire import FDS_MAX, STRUCTS


@pytest.mark.parametrize("name, n", [("device", 1), ("device", FDS_MAX), ("alloc", 1), ("publish", 2), ("publish", 0), ("transfer", 1),
                                     ("transfer", 3), ("released", 1), ("bye", 200)])
def test_too_many_or_too_few_fds_end_the_link_and_are_closed(shared, child, name, n):
    """FAULTS 8: 253 fds where none belong."""
    before = len(os.listdir(f"/proc/{shared.process.pid}/fd"))
    null = os.open("/dev/null", os.O_RDONLY)
    violation(shared, child, lambda link: link.send(name, [null] * n, serial=0 if name == "released" else None))
    os.close(null)
    shared.wait_for(lambda: len(os.listdir(f"/proc/{shared.process.pid}/fd")) <= before)


def wrong_kinds():
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.write(plain, table({"t": 4096}))
    half = sealed(table({"t": 4096}), fcntl.F_SEAL_SHRINK)
    return {"a memfd without seals": plain, "half sealed": half, "/dev/null": os.open("/dev/null", os.O_RDWR),
            "a directory": os.open("/", os.O_RDONLY), "a path": os.open("/", os.O_PATH), "a pipe": os.pipe()[0],
            "a socket": socket.socketpair()[0].detach(), "empty": sealed(b""), "a pidfd": os.pidfd_open(os.getpid())}


@pytest.mark.parametrize("kind", list(wrong_kinds()))
def test_the_wrong_kind_of_fd_is_refused_and_the_link_lives(client, kind):
    """FAULTS 8."""
    fd = wrong_kinds()[kind]
    with refused("INVALID", "table"):
        client.call("publish", [fd], name="m", device=0, mode=0o600)
    with refused("INVALID"):
        client.call("transfer", [fd, fd], n_ranges=1, write=0)
    os.close(fd)
    client.call("device")


BAD_TABLES = {
    "magic": {"header": {"magic": 1}}, "version": {"header": {"version": 2}}, "more arenas": {"header": {"n_arenas": 2}},
    "more buffers": {"header": {"n_buffers": 2}}, "2^32 - 1 buffers": {"header": {"n_buffers": 2**32 - 1}},
    "long strings": {"header": {"strings_bytes": 2**63}}, "metadata past the end": {"header": {"metadata_bytes": 1}},
    "metadata that overflows": {"header": {"metadata_bytes": 2**64 - 1}}, "arena out of range": {"buffer": {"arena": 1}},
    "name out of range": {"buffer": {"name": 10**6}}, "group out of range": {"arena": {"group": 2**32 - 1}},
    "dtype": {"buffer": {"dtype": 250}}, "rank": {"buffer": {"rank": 9}}, "size against shape": {"buffer": {"size": 5}},
    "a shape that overflows": {"buffer": {"rank": 3, "dims": [2**32, 2**32, 2**32], "size": 0}},
    "a codec": {"buffer": {"encoding": {"codec": 3}}},
}


@pytest.mark.parametrize("wrong", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_lies_is_refused(client, wrong):
    fd = sealed(table({"t": 4096}, **wrong))
    with refused("INVALID"):
        client.call("publish", [fd], name="m", device=0, mode=0o600)
    os.close(fd)
    client.call("device")


@pytest.mark.parametrize("names", [["a", "a"], ["../a"], ["a//b"], ["a\x01"], ["x" * 254], [""]], ids=lambda names: repr(names)[:20])
def test_tensor_names_that_no_buffer_may_have_are_refused(client, names):
    bytes_of = {f"t{i}": 64 for i in range(len(names))}
    data = table(bytes_of)
    strings = b"".join(name.encode() + b"\0g\0" for name in names)
    rows, at = [], 0
    for number, name in enumerate(names):
        rows.append((number, at))
        at += len(name.encode()) + 3
    arenas = b"".join(STRUCTS["table_arena"].pack({"group": start + len(names[n].encode()) + 1}) for n, start in rows)
    buffers = b"".join(STRUCTS["table_buffer"].pack({"size": 64, "dims": [64], "rank": 1, "arena": n, "name": start}) for n, start in rows)
    head = STRUCTS["table_header"].unpack(data[:STRUCTS["table_header"].size])
    head["strings_bytes"] = len(strings)
    fd = sealed(STRUCTS["table_header"].pack(head) + arenas + buffers + strings)
    with refused("INVALID"):
        client.call("publish", [fd], name="m", device=0, mode=0o600)
    os.close(fd)


def test_a_receiver_out_of_fds_harms_nobody_else(shared, child):
    """FAULTS 8: its packet comes without the fd (MSG_CTRUNC); the daemon counts on nothing."""
    def starve(say):
        with Client(shared.socket) as link:
            link.hello()
            serial = link.send("alloc", spec={"size": MIB, "device": 0, "mode": 0o600})
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
            packet = link.reply(serial)
            say(len(packet.fds))
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            link.call("detach", lease=packet.fields["grant"]["lease"])
            say("served on")

    culprit = child(starve)
    assert culprit.heard() == "0"
    assert culprit.heard() == "served on"
    assert used(shared) == 0 and serves(shared)
