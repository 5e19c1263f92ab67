"""A client of the packet protocol that says whatever it is told to, sound or not.

Layouts come from tests/golden/protocol.txt, which tests/golden/dump.c prints from the compiled structs.

    with Client(daemon.socket) as client:
        client.hello()
        grant = client.call("alloc", spec={"size": 4096, "device": DEVICE_ANY, "name": "w"}).fields["grant"]
        client.send("detach", lease=1, unused_bytes=b"...")     # raw pieces: see send()
"""
import array
import mmap
import os
import pathlib
import re
import socket
import struct

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "protocol.txt"
CODES = {"uint64_t": "Q", "uint32_t": "I", "uint16_t": "H", "uint8_t": "B", "int32_t": "i", "float": "f", "double": "d"}
DEVICE_ANY = 0xFFFFFFFF
WAIT, UNLOCKED, KEEP, SHARED, REPLACE, FORCE, LIVE, IN_PLACE = 1, 2, 4, 8, 16, 32, 64, 128
RO, RW = 0, 1
ONE_WAY = ("released", "ahead", "behind", "order")
FDS_MAX = 253

LOCK_COUNT = 0x7FFFFFFF
LOCK_RECLAIM = 1 << 31
LOCK_AWAY = 1 << 32
LOCK_EPOCH = 48


class Layout:
    """One struct: (name, type, count, offset, size) a field."""

    def __init__(self, size):
        self.size = size
        self.fields = []

    def pack(self, values):
        unknown = set(values) - {field[0] for field in self.fields}
        if unknown:
            raise KeyError(f"no such field: {', '.join(sorted(unknown))}")
        body = bytearray(self.size)
        for name, kind, count, offset, size in self.fields:
            if name in values:
                body[offset:offset + size] = pack_value(kind, count, size, values[name])
        return bytes(body)

    def unpack(self, body):
        if len(body) != self.size:
            raise ValueError(f"{len(body)} bytes for a struct of {self.size}")
        return {name: unpack_value(kind, count, body[offset:offset + size])
                for name, kind, count, offset, size in self.fields}


STRUCTS, MESSAGES, JOBS, LIMITS = {}, {}, {}, {}


def pack_value(kind, count, size, value):
    if kind == "char" or isinstance(value, (bytes, bytearray)):
        raw = value.encode() if isinstance(value, str) else bytes(value)
        if len(raw) > size:
            raise ValueError(f"{len(raw)} bytes for a field of {size}")
        return raw.ljust(size, b"\0")
    if kind.startswith("struct "):
        return STRUCTS[kind[7:]].pack(value)
    if count == 1:
        return struct.pack("=" + CODES[kind], value)
    items = list(value) + [0] * (count - len(value))
    return struct.pack(f"={count}{CODES[kind]}", *items)


def unpack_value(kind, count, raw):
    if kind == "char":
        return raw.split(b"\0", 1)[0].decode(errors="surrogateescape")
    if kind.startswith("struct "):
        return STRUCTS[kind[7:]].unpack(raw)
    if kind == "uint8_t" and count > 1:
        return raw
    items = struct.unpack(f"={count}{CODES[kind]}", raw)
    return items[0] if count == 1 else list(items)


def read_golden():
    field = re.compile(r"    (\w+) (struct \w+|\w+) count (\d+) offset (\d+) size (\d+)$")
    row, layout = None, None
    for line in GOLDEN.read_text().splitlines():
        words = line.split()
        if found := field.match(line):
            layout.fields.append((found[1], found[2], int(found[3]), int(found[4]), int(found[5])))
        elif line.startswith("  "):
            layout = Layout(int(words[2]))
            row[words[0]] = layout
            if words[0] == "fields":
                STRUCTS[row["name"]] = layout
        elif words[0] == "version":
            LIMITS.update(zip(words[0::2], map(int, words[1::2])))
        else:
            row = {"name": words[1], **dict(zip(words[2::2], words[3::2]))}
            if words[0] == "struct":
                continue
            row["opcode"] = int(row["opcode"])
            (MESSAGES if words[0] == "message" else JOBS)[words[1]] = row


read_golden()
NAMES = {row["opcode"]: name for name, row in MESSAGES.items()}
HEADER = STRUCTS["packet_header"]


class Refused(Exception):
    """The daemon answered with a negative status."""

    def __init__(self, name, status, detail):
        super().__init__(f"{name}: {status} {detail}")
        self.status, self.detail = status, detail


class Packet:
    def __init__(self, header, body, fds):
        self.opcode, self.serial, self.status, self.more = (header[k] for k in ("opcode", "serial", "status", "more"))
        self.name = NAMES.get(self.opcode, f"opcode {self.opcode}")
        self.body, self.fds = body, fds
        self.detail, self.fields = "", {}
        if self.status < 0:
            self.detail = STRUCTS["packet_refusal"].unpack(body)["detail"]
        elif self.name in MESSAGES:
            self.fields = MESSAGES[self.name]["request" if self.serial == 0 else "reply"].unpack(body)

    def close(self):
        while self.fds:
            os.close(self.fds.pop())


class Client:
    def __init__(self, path, timeout=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.serial = 0
        self.events = []
        self.page = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.page:
            self.page.close()
            self.page = None
        self.socket.close()

    def send_raw(self, packet, fds=()):
        """These bytes and fds, whatever they are."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([packet], control)

    def send(self, name, fds=(), /, *, serial=None, opcode=None, status=0, n_fds=None, more=0, body=None, **fields):
        """A message of the table; any part of it may be overridden. Returns its serial."""
        if serial is None:
            self.serial += 1
            serial = self.serial
        row = MESSAGES[name]
        header = HEADER.pack({"opcode": row["opcode"] if opcode is None else opcode, "serial": serial, "status": status,
                              "n_fds": len(fds) if n_fds is None else n_fds, "more": more})
        self.send_raw(header + (row["request"].pack(fields) if body is None else body), fds)
        return serial

    def receive(self):
        """The next packet of any kind; None at the end."""
        try:
            data, control, _, _ = self.socket.recvmsg(LIMITS["packet_bytes"], socket.CMSG_SPACE(4 * FDS_MAX))
        except ConnectionResetError:
            return None
        if not data:
            return None
        fds = array.array("i")
        for level, kind, raw in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
        return Packet(HEADER.unpack(data[:HEADER.size]), data[HEADER.size:], list(fds))

    def reply(self, serial):
        """The answer to this serial; events that come before it are kept in self.events."""
        while True:
            packet = self.receive()
            if packet is None:
                raise ConnectionError("the daemon ended the link" + self.parting_words())
            if packet.serial == serial:
                break
            self.events.append(packet)
        if packet.status < 0:
            raise Refused(packet.name, packet.status, packet.detail)
        while packet.more:
            further = self.receive()
            packet.fds += further.fds
            packet.more = further.more
        return packet

    def parting_words(self):
        return "".join(f": {event.fields['detail']}" for event in self.events if event.name == "goodbye")

    def call(self, name, fds=(), /, **fields):
        return self.reply(self.send(name, fds, **fields))

    def hello(self, client="wire.py"):
        packet = self.call("hello", version=LIMITS["version"], client=client)
        fd = packet.fds.pop()
        self.page = mmap.mmap(fd, LIMITS["lock_slots"] * 8)
        os.close(fd)
        self.session = packet.fields["session"]
        return packet.fields

    def gone(self):
        """Reads until the daemon ends the link; the reason it gave, "" if none."""
        while (packet := self.receive()) is not None:
            self.events.append(packet)
            packet.close()
        return self.parting_words()[2:]

    # Residency words. Plain loads and stores: good enough for one test against one daemon.

    def word(self, slot):
        return struct.unpack_from("=Q", self.page, slot * 8)[0]

    def set_word(self, slot, value):
        struct.pack_into("=Q", self.page, slot * 8, value)

    def arrive(self, slot, locks=1):
        """The slot's arena is mapped, with so many locks: what libhbm does after a grant or a LOCK."""
        self.set_word(slot, ((self.word(slot) >> LOCK_EPOCH) + 1 & 0xFFFF) << LOCK_EPOCH | locks)

    def unlock(self, slot):
        """One lock less; lets go if the daemon wants the arena."""
        self.set_word(slot, self.word(slot) - 1)
        self.let_go(slot)

    def let_go(self, slot):
        word = self.word(slot)
        if word & LOCK_RECLAIM and not word & (LOCK_COUNT | LOCK_AWAY):
            self.set_word(slot, word & ~LOCK_RECLAIM | LOCK_AWAY)
            self.send("released", serial=0, slot=slot)

    def alloc(self, size, name="", **spec):
        """A buffer with an rw lease: (grant, fd of its arena or None). The fd is the caller's."""
        spec = {"size": size, "device": DEVICE_ANY, "name": name, "mode": 0o600, **spec}
        packet = self.call("alloc", spec=spec)
        grant = packet.fields["grant"]
        self.arrive(grant["slot"])
        return grant, packet.fds.pop() if packet.fds else None

    def grant(self, size, name="", **spec):
        """The same, for who does not look at the memory."""
        grant, fd = self.alloc(size, name, **spec)
        if fd is not None:
            os.close(fd)
        return grant

    def attach(self, name="", access=RO, flags=0, timeout_ms=2000, id=0):
        packet = self.call("attach", name=name, id=id, access=access, flags=flags, timeout_ms=timeout_ms)
        grant = packet.fields["grant"]
        if grant["present"]:
            self.arrive(grant["slot"])
        return grant, packet.fds.pop() if packet.fds else None
