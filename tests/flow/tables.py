"""The table that PUBLISH takes (proto/table.h), sound or not."""
import fcntl
import os

from vocab import DTYPES
from wire import STRUCTS

MAGIC, VERSION = 0x54424D48, 1
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed(data, seals=SEALS):
    fd = os.memfd_create("table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def table(tensors, metadata=b"", header=(), arena=(), buffer=()):
    """Bytes of a table of {name: bytes of U8}; each tensor is its own group. The last three override fields."""
    strings, arenas, buffers = b"", b"", b""
    for number, (name, size) in enumerate(tensors.items()):
        at = len(strings)
        strings += name.encode() + b"\0" + f"g{number}".encode() + b"\0"
        arenas += STRUCTS["table_arena"].pack({"group": at + len(name.encode()) + 1, **dict(arena)})
        row = {"size": size, "dims": [size], "rank": 1, "dtype": DTYPES["U8"], "arena": number, "name": at, **dict(buffer)}
        buffers += STRUCTS["table_buffer"].pack(row)
    head = {"magic": MAGIC, "version": VERSION, "n_arenas": len(tensors), "n_buffers": len(tensors),
            "strings_bytes": len(strings), "metadata_bytes": len(metadata), **dict(header)}
    return STRUCTS["table_header"].pack(head) + arenas + buffers + strings + metadata


def publish(client, name, tensors, flags=0, timeout_ms=5000, wait=True, **more):
    """Asks to build; the packet, whose fds are the table and the arenas. wait=False: the serial."""
    fd = sealed(table(tensors))
    try:
        serial = client.send("publish", [fd], name=name, device=0, mode=0o600, flags=flags, timeout_ms=timeout_ms, **more)
    finally:
        os.close(fd)
    return client.reply(serial) if wait else serial


def publish_crowd(client, name, count):
    """A sealed model of so many one-byte buffers in one arena."""
    names = [f"t{number}".encode() + b"\0" for number in range(count)]
    at, buffers = 2, []
    for one in names:
        buffers.append(STRUCTS["table_buffer"].pack({"size": 1, "dims": [1], "rank": 1, "dtype": DTYPES["U8"], "name": at}))
        at += len(one)
    head = STRUCTS["table_header"].pack({"magic": MAGIC, "version": VERSION, "n_arenas": 1, "n_buffers": count,
                                         "strings_bytes": at})
    fd = sealed(head + STRUCTS["table_arena"].pack({"group": 0}) + b"".join(buffers) + b"g\0" + b"".join(names))
    packet = client.call("publish", [fd], name=name, device=0, mode=0o600, flags=0, timeout_ms=5000)
    os.close(fd)
    packet.close()
    client.call("commit", lease=packet.fields["lease"], commit=1)


def slots(packet):
    """Slots of the arenas of a model's reply."""
    head = STRUCTS["table_header"]
    data = os.pread(packet.fds[0], 1 << 24, 0)
    fields, size = head.unpack(data[:head.size]), STRUCTS["table_arena"].size
    return [STRUCTS["table_arena"].unpack(data[head.size + i * size:head.size + (i + 1) * size])["slot"]
            for i in range(fields["n_arenas"])]
