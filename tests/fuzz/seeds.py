#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus that are made by hand: what libFuzzer starts from. The crash-* and real-* files
beside them were found, or taken from a running daemon; the reached-* ones are the fewest of an hour's fuzzing (libFuzzer's
-set_cover_merge=1 -use_counters=0) that reach what the others do not.
usage: seeds.py [DIR]"""
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "corpus")


def seed(harness, name, data):
    if harness == "wire" and len(data) % 16 == 0:
        data += DONE  # else its clients would not have said HELLO
    os.makedirs(os.path.join(ROOT, harness), exist_ok=True)
    with open(os.path.join(ROOT, harness, name), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


# ---- wire: see act() in fuzz_wire.c and the takes in fill.h ----------------------------------------------------------
# Opcodes of messages.def.
DEVICE, ALLOC, ATTACH, ATTACH_MODEL, PUBLISH, COMMIT, LOCK, RELEASED, DETACH, FREE, BYE = range(2, 13)
COMPRESS, DECOMPRESS, OFFLOAD, RESTORE, TRANSFER, OP_WAIT, OP_CANCEL = range(13, 20)
RESUME, OPERATE, EVENT, OWNER_DIES = range(20, 24)
TIME, STEP, FAIL, WORD, READS, HANG_UP, DIE, LISTED = range(24, 32)
F32, F16, BF16, I8, INT8_CODEC = 11, 9, 10, 1, 3


def by(client, what):
    return bytes([client << 5 | what])


def name(text):
    return bytes([0x80 | len(text)]) + text.encode()


NO_FDS = b"\x00"
DONE = by(0, STEP) + b"\x20"  # all that it takes


def alloc(client, dims, text, keep=4, device=0, handle=0, mode=0o66):
    """dtype handle flags mode device rank dims size(0: of the shape) name group, fds"""
    return (by(client, ALLOC) + bytes([F32, handle, keep, mode, device, len(dims), *dims, 0]) + name(text) + b"\x00"
            + NO_FDS + DONE)


def attach(client, text, access=0, flags=0):
    """id (0xe0..: not a known one, but the number behind it) name access flags timeout"""
    return by(client, ATTACH) + b"\xe0\x00" + name(text) + bytes([access, flags, 100]) + NO_FDS + DONE


def publish(client, text, flags=0):
    """name key device mode flags timeout, fds: a table of two groups and two buffers"""
    rows = b"".join(bytes([arena, F32, 2, 8, 32, 0]) + name(tensor) for arena, tensor in ((0, "x"), (1, "y")))
    return (by(client, PUBLISH) + name(text) + name("key") + b"\x00\xf0\x80\x01" + bytes([flags, 100]) + NO_FDS
            + bytes([2 | 2 << 2]) + name("g") + name("h") + rows + DONE)


def commit(client, newest=0, yes=1):
    return by(client, COMMIT) + bytes([newest, yes]) + NO_FDS + DONE


def offload(client, sel, tier=1, force=1):
    return by(client, OFFLOAD) + name(sel) + bytes([tier, 32 * force]) + NO_FDS


def restore(client, sel):
    return by(client, RESTORE) + name(sel) + NO_FDS


def compress(client, sel, mode=0, codec=INT8_CODEC, text=""):
    return (by(client, COMPRESS) + name(sel) + name(text) + bytes([codec, 0xFF, 0, 0, 0, mode, 0, 0, 0]) + NO_FDS
            + DONE)


def by_id(client, what, newest=0):
    return by(client, what) + bytes([newest]) + NO_FDS


def transfer(client, buffer, write, bytes_of_it=64):
    """the newest but `buffer` of the ids that it knows"""
    return by(client, TRANSFER) + bytes([1, write, buffer, bytes_of_it, 0]) + DONE


def owner_dies(*has):
    """which of the newest ids each client says that it leases (bits), and the slots that it uses; None: it stays away"""
    absent = sum(1 << i for i, each in enumerate(has) if each is None)
    return by(0, OWNER_DIES) + bytes([absent]) + b"".join(bytes([each[0], 0, each[1]]) for each in has if each)


def come_back(client, leases, slots):
    return by(client, RESUME) + bytes([1, leases, 0, slots])


def operate(what, *names):
    """0 kick, 1 rename, 2 rm, 3 free, 4 sleep, 5 wake, 6 drain, 7 hash; + 0x10: as alice"""
    return by(0, OPERATE) + bytes([what]) + b"".join(map(name, names)) + DONE


MODEL = publish(0, "m") + commit(0, 0)
LET_GO = by(0, WORD) + b"\xa0\x00" + by(0, WORD) + b"\xa0\x01"
seed("wire", "alloc-attach-detach", alloc(0, [8, 32], "w") + attach(1, "w") + by_id(1, DETACH) + attach(2, "~1000/w"))
seed("wire", "private-copy", alloc(0, [8, 32], "w", mode=0o44) + attach(2, "~1000/w") + by_id(2, DETACH) + by_id(0, BYE))
seed("wire", "publish-attach", MODEL + by(1, ATTACH_MODEL) + name("m") + bytes([0, 0, 50]) + NO_FDS + by(0, BYE) + b"\x00")
seed("wire", "away-and-back", alloc(0, [8, 32], "w") + offload(1, "w") + LET_GO + restore(0, "w") + by_id(0, OP_WAIT))
seed("wire", "compress", alloc(0, [8, 32], "w") + by_id(0, DETACH) + compress(0, "w") + attach(0, "w")
     + by(0, DECOMPRESS) + name("w") + NO_FDS)
seed("wire", "copy", alloc(0, [8, 32], "w") + compress(0, "w", 1, 1, "v") + offload(0, "*", 2) + restore(0, "*"))
seed("wire", "death", alloc(0, [8, 32], "w", device=1) + by(0, LISTED) + by(0, DIE) + by(1, TIME) + b"\x80" + by(1, LISTED)
     + by(1, TIME) + b"\x80")
seed("wire", "cuda-ipc", alloc(0, [8, 32], "w", device=1, handle=1) + offload(0, "w") + attach(1, "w"))
seed("wire", "replace", MODEL + publish(1, "m", 16) + commit(1, 0) + by(0, ATTACH_MODEL) + name("m") + bytes([0, 1, 50]) + NO_FDS)
seed("wire", "fault", alloc(0, [8, 32], "w") + by(0, FAIL) + b"\x00\x05" + offload(0, "w") + LET_GO + restore(0, "w"))
seed("wire", "transfer", alloc(0, [8, 32], "w") + transfer(0, 1, 0) + transfer(0, 2, 1))
seed("wire", "transfer-encoded", alloc(0, [8, 32], "w") + by_id(0, DETACH) + compress(0, "w") + attach(0, "w")
     + transfer(0, 1, 1) + transfer(0, 2, 0) + by_id(0, OP_CANCEL))
seed("wire", "publish-twice", publish(0, "m") + publish(1, "m", 1) + commit(0, 0) + publish(1, "m"))
seed("wire", "come-back", alloc(0, [8, 32], "w") + attach(1, "w") + owner_dies((1, 1), (3, 3), (0, 0)) + by_id(0, DETACH)
     + owner_dies((0, 0), (1, 1), (0, 0)) + offload(0, "w"))
seed("wire", "come-back-to-reclaim", alloc(0, [8, 32], "w") + attach(1, "w") + offload(1, "w")
     + owner_dies((1, 1), (3, 3), (0, 0)) + LET_GO + restore(0, "w"))
seed("wire", "come-back-late", alloc(0, [8, 32], "w") + attach(1, "w") + owner_dies(None, (3, 3), None) + offload(1, "w", 1)
     + come_back(0, 1, 1) + LET_GO + by(0, TIME) + b"\x80")
seed("wire", "prefetch", MODEL + by_id(0, BYE) + offload(1, "m/x", 1) + DONE + by(1, OPERATE) + b"\x80" + name("m/*") + NO_FDS)
seed("wire", "ahead", alloc(0, [8, 32], "w") + offload(1, "w") + LET_GO + DONE
     + (by(0, EVENT) + b"\x80\x03\x01\x00\x01\x07" + NO_FDS) * 2 + by(0, STEP) + b"\x01" + by(0, HANG_UP))
seed("wire", "operators", alloc(0, [8, 32], "w") + by_id(0, DETACH) + operate(0x11, "w", "v") + operate(7, "*") + operate(6, "0")
     + operate(0x13, "v") + operate(0, "*"))
seed("wire", "operators-of-a-model", MODEL + operate(0x14, "m") + operate(0x15, "m") + operate(0x11, "m", "n")
     + offload(0, "n/x", 1, 0) + operate(0x12, "n"))
seed("wire", "overdue", alloc(0, [8, 32], "w") + offload(0, "w") + by(0, OP_WAIT) + bytes([0, 50]) + NO_FDS
     + by(0, TIME) + b"\x80")
seed("wire", "does-not-read", by(0, READS) + (by(0, DEVICE) + bytes([0]) + NO_FDS) * 40)
seed("wire", "events", b"".join(by(0, EVENT) + bytes([event, 0, 0]) + bytes(40) for event in range(3)))
seed("wire", "noise", by(0, 0) + b"\x14" + struct.pack("<IIiHH", DEVICE, 1, 0, 0, 0) + bytes(4))

# ---- worker: opcode, fields, extents, oddity -------------------------------------------------------------------------
CREATE, DESTROY, COPY, ENCODE, DECODE, HASH, FILE, QUERY, CLIENTS, CANCEL = range(2, 12)
BLANK = bytes([0xF8]) + bytes(8)  # a number of zero
EXTENT = bytes(24)                # in the fields; the piece is chosen after them
DIMS = bytes([2, 8, 32])
for kind in (0, 2, 3):
    seed("worker", f"create-{kind}", bytes([CREATE, 0xE2, kind, 0, 0, HASH]) + EXTENT + bytes([0, 200, 0, 0]))


def copy(source, target):
    return bytes([COPY]) + EXTENT * 2 + bytes([0, 0, 0xE2, 0, 1, source, target, 0])


def code(codec, stored, granularity, dtype=F32, bounds=(0, 0)):
    """there and back, between a host and a device extent"""
    how = bytes([0, 0, 0xE1]) + DIMS + bytes([dtype, codec, granularity, 0, stored, 16])
    return (bytes([ENCODE]) + EXTENT * 2 + how + bytes([*bounds, 1, 2, 0])
            + bytes([DECODE]) + EXTENT * 2 + how + bytes([2, 1, 0]))


CREATED = 2  # where the harness keeps what the first job made
DISK = bytes([CREATE, 0xE3, 3, 0, 0])
seed("worker", "copy", copy(0, 1) + copy(1, 2))
seed("worker", "disk", DISK + copy(1, CREATED) + copy(CREATED, 1) + copy(0, CREATED) + copy(CREATED, 0))
seed("worker", "disk-encrypted", DISK + copy(1, CREATED | 0xC0) + copy(CREATED | 0xC0, 0))
for i, how in enumerate([(INT8_CODEC, I8, 0), (INT8_CODEC, I8, 1), (INT8_CODEC, I8, 2), (1, F16, 0), (2, BF16, 0),
                         (1, F16, 0, BF16), (INT8_CODEC, I8, 0, F16), (INT8_CODEC, I8, 0, F32, (200, 1))]):
    seed("worker", f"encode-{i}", code(*how))
for write in (0, 1):
    seed("worker", f"file-{write}", bytes([FILE]) + EXTENT + bytes([2, write, 1, 0, 0, 64, 128, 64, 200, 0]))
seed("worker", "ask", bytes([QUERY, 0, CLIENTS, 2, 1, 2, 3, 4, 0, CANCEL, 5, 0, DESTROY, 1, 2, 0]))

# ---- rpc: who asks (bits; 16: a client is there), then lines ---------------------------------------------------------


def ask(method, params="{}", id=1):
    return '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\n' % (id, method, params)


def lines(who, *text):
    return bytes([who]) + "".join(text).encode()


seed("rpc", "look", lines(0, ask("hbm.ls"), ask("hbm.models"), ask("hbm.devices"), ask("hbm.status"), ask("hbm.ops"),
                          ask("hbm.sessions"), ask("hbm.config"), ask("hbm.events", '{"limit":5}')))
seed("rpc", "show", lines(1, ask("hbm.show", '["*"]'), ask("hbm.show", '["model:m"]'), ask("hbm.show", '["group:m/g"]')))
seed("rpc", "move", lines(0, ask("hbm.offload", '{"sel":"w","to":"host","force":true,"async":true}'), ask("hbm.ops"),
                          ask("hbm.restore", '{"sel":"w"}'), ask("hbm.sleep", '["m"]'), ask("hbm.wake", '["m"]')))
seed("rpc", "code", lines(0, ask("hbm.compress", '{"sel":"*","codec":"int8","granularity":"channel:0","min_sqnr":20}'),
                          ask("hbm.hash", '["*"]'), ask("hbm.decompress", '["*"]'), ask("hbm.show", '["w"]')))
seed("rpc", "end", lines(0, ask("hbm.rename", '["w","v"]'), ask("hbm.free", '["v"]'), ask("hbm.rename", '["m","n"]'),
                         ask("hbm.rm", '["n"]')))
seed("rpc", "drain", lines(1, ask("hbm.drain", '["0"]')))
OPERATION, SESSION = "0x000170000200000c", "0x000160000200000c"  # the first one of a furnished world
OFFLOAD = ask("hbm.offload", '{"sel":"w","to":"host","async":true}')
seed("rpc", "wait", lines(4, OFFLOAD, ask("hbm.wait", '{"op":"%s","timeout_seconds":0.1}' % OPERATION), ask("hbm.ops"),
                          ask("hbm.cancel", '["%s"]' % OPERATION)))
seed("rpc", "wait-to-its-end", lines(0, OFFLOAD, ask("hbm.wait", '["%s"]' % OPERATION)))
seed("rpc", "owner-goes", lines(12, ask("hbm.hash", '["*"]'), ask("hbm.offload", '["w","host"]')))
for who in (16, 17, 18):
    seed("rpc", f"client-{who}", lines(who, ask("hbm.who"), ask("hbm.who", '["0"]'), ask("hbm.accounts"), ask("hbm.sessions"),
                                       ask("hbm.models"), ask("hbm.show", '["*"]'), ask("hbm.why_not_free", '["*"]'),
                                       ask("hbm.offload", '["~1000/w","host"]'), ask("hbm.why_not_free", '["~1000/w"]'),
                                       ask("hbm.kick", '["%s"]' % SESSION), ask("hbm.sessions")))
seed("rpc", "batch", lines(0, '[{"jsonrpc":"2.0","id":1,"method":"hbm.ls"},{"jsonrpc":"2.0","method":"hbm.ls"},1]\n', "[]\n"))
seed("rpc", "subscribe", lines(1, ask("hbm.subscribe"), ask("hbm.rename", '["~1000/w","v"]'), ask("rpc.discover")))
seed("rpc", "wrong", lines(0, '{"jsonrpc":"1.0"}\n', "{\n", "\x00\n", '{"a":1,"a":2}\n', "[" * 70 + "\n", '"\\ud800"\n'))

# ---- names, configuration, checkpoints, tables -----------------------------------------------------------------------
for i, text in enumerate(["w\nv", "m\nn", "m/?", "model:m", "group:m/g", "id:1003000001000005", "~1000/w", "int8\nchannel:0",
                          "fp16\ngroup:32", "[a-z]*", "0x12ab", "a/../b", "\u00e9\U0001f600"]):
    seed("names", f"{i:02}", text)
config = open(os.path.join(HERE, "../../config/hbmd.conf"), encoding="utf-8").read()
seed("config", "all", config)
seed("config", "in-effect", re.sub(r"^# *(?=[a-z_]+ =|\[)", "", config, flags=re.MULTILINE))
seed("config", "listeners", "[listener a]\ndirectory = /run/a\n[listener a]\ndirectory = /run/a\n[listener]\n[listener main]\n")
seed("config", "set", "log_level = debug\ndevice=host\n# remark\n; other\nreclaim_seconds = 2.5\nhost_bytes = 50%\n")
seed("config", "wrong", "log_level = loud\nnothing = 1\n[section]\n=\nmax_sessions = -1\nspill_bytes = 99999999999T\n")
seed("safetensors", "two", b"\x18" + b'{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
     b'"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}')
seed("safetensors", "metadata", b"\x00" + b'{"__metadata__":{"format":"pt"},"e":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}  ')
header = b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}'
seed("safetensors", "whole", b"\x00" + struct.pack("<Q", len(header)) + header + b"\x2a")
gguf_pair = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 32)
gguf_list = struct.pack("<Q", 1) + b"l" + struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 2) + b"hi"
gguf_rows = (struct.pack("<Q", 1) + b"a" + struct.pack("<IQQIQ", 2, 4, 2, 0, 0) +
             struct.pack("<Q", 1) + b"q" + struct.pack("<IQIQ", 1, 64, 8, 32))
gguf = b"GGUF" + struct.pack("<IQQ", 3, 2, 2) + gguf_pair + gguf_list + gguf_rows
seed("gguf", "two", b"\x64" + gguf + bytes(-len(gguf) % 32))
seed("ranges", "tensorrt", b"\x00TRT-8601-EntropyCalibration2\ninput: 3c010a14\nonnx::Conv_1: 0: 40172e5d\n")
seed("ranges", "onnxruntime", b'\x01{"CLS": "TensorsData", "data": {"x": {"lowest": -1.5, "highest": {"data": [2.5], "dtype": "float32", "CLS": "numpy.array"}}}}')
seed("ranges", "pairs", b'\x01{"x": [-1, 1], "y": [0, 2.5]}')
seed("gguf", "empty", b"\x00" + b"GGUF" + struct.pack("<IQQ", 2, 0, 0) + bytes(8))
rows = b"".join(bytes([arena, F32, 2, 8, 32, 0]) + name(tensor) for arena, tensor in ((0, "x"), (1, "y")))
seed("table", "built", bytes([2 | 2 << 2]) + name("g") + name("h") + rows)
strings = b"g\x00x\x00"
arena = struct.pack("<QQIIIIII64x", 0, 0, 0, 0, 0, 0, 0, 0)
buffer = struct.pack("<QQQ8Q8xIIIIII", 0, 0, 32, 8, *[0] * 7, 0, 2, F32, 1, 0, 0)
seed("table", "bytes", struct.pack("<IIIIQQ", 0x54424D48, 1, 1, 1, len(strings), 8) + arena + buffer + strings + b"metadata")
