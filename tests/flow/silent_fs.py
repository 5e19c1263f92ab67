"""A FUSE file system with one file, `file`, whose reads are never answered, nor who makes another: what a server that went
away looks like.
usage: silent_fs.py MOUNTPOINT SIZE; says "mounted", and ends when it is killed or unmounted."""
import ctypes
import os
import struct
import sys
import time

FORGET, GETATTR, OPEN, READ, STATFS, INIT, OPENDIR, INTERRUPT, BATCH_FORGET = 2, 3, 14, 15, 17, 26, 27, 36, 42
LOOKUP, RELEASE, FLUSH, TMPFILE = 1, 18, 25, 51
ENOSYS = 38


def attributes(node, size):
    mode = 0o40755 if node == 1 else 0o100644
    return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node, size):
    """The body of the reply; None: there is none, for ever; a number: an error."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + attributes(2, size)
    if opcode == GETATTR:
        return struct.pack("<Q2I", 3600, 0, 0) + attributes(node, size)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 1, 0, 0)
    if opcode == STATFS:
        return struct.pack("<5Q4I6I", 1 << 20, 1 << 20, 1 << 20, 1, 1, 4096, 255, 4096, 0, *[0] * 6)
    if opcode in (RELEASE, FLUSH):
        return b""
    return None if opcode in (READ, TMPFILE, FORGET, BATCH_FORGET, INTERRUPT) else ENOSYS


def serve(device, size):
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        body = answer(opcode, node, size)
        if isinstance(body, int):
            os.write(device, struct.pack("<IiQ", 16, -body, unique))
        elif body is not None:
            os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


def main(where, size):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", where.encode(), b"fuse", 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    try:
        serve(device, size)
    except OSError:
        time.sleep(0)  # unmounted


main(sys.argv[1], int(sys.argv[2]))
