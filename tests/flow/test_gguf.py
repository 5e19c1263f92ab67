"""GGUF files through load, attach and save; and files that lie, of which nothing stays."""
import os
import re
import struct
import sys

import pytest

from conftest import BUILD, ROOT
from helpers import ctl_done, ctl_refused, get, module_daemon, row_of, shared

F32, F16, Q4_0, Q8_0, Q4_K, BF16 = 0, 1, 2, 8, 12, 30
METADATA = {"general.architecture": "llama", "llama.block_count": 2, "tokenizer.tokens": ["<s>", "", "\u00e9"], "scores": [0.5, -1.0]}
TENSORS = {"token_embd.weight": (F16, (3, 4), bytes(range(24))), "blk.0.attn_q.weight": (Q8_0, (2, 64), bytes(range(136))),
           "blk.0.norm": (F32, (5,), bytes(20)), "blk.1.ffn.weight": (Q4_K, (3, 256), bytes(432)), "blk.1.norm": (BF16, (1,), b"ab")}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(what):
    """With its type before it."""
    if isinstance(what, str):
        return struct.pack("<I", 8) + text(what)
    if isinstance(what, int):
        return struct.pack("<II", 4, what)
    if isinstance(what, float):
        return struct.pack("<If", 6, what)
    each = [value(one) for one in what]
    return struct.pack("<I", 9) + each[0][:4] + struct.pack("<Q", len(each)) + b"".join(one[4:] for one in each)


def gguf(path, tensors=TENSORS, metadata=METADATA, alignment=32, version=3):
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(what) for key, what in metadata.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
        data += content + bytes(-len(content) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


@pytest.mark.parametrize("how", [{}, {"version": 2}, {"alignment": 256}], ids=["version 3", "version 2", "aligned"])
def test_a_file_comes_back_byte_for_byte_and_its_tensors_are_buffers(shared, how):
    path = gguf(shared.home / "in.gguf", **how)
    assert "5 tensors in 3 groups" in ctl_done(shared, "load", path, "--as", "m")
    shapes = {name: ([*shape[:-1], len(content) // (shape[0] if len(shape) > 1 else 1)] if kind in (Q8_0, Q4_K) else list(shape))
              for name, (kind, shape, content) in TENSORS.items()}
    dtypes = {F32: "F32", F16: "F16", BF16: "BF16", Q8_0: "U8", Q4_K: "U8"}
    for name, (kind, _, content) in TENSORS.items():
        row = row_of(shared, f"m/{name}")
        assert (row["dtype"], row["shape"], row["size"]) == (dtypes[kind], shapes[name], len(content)), name
        assert get(shared, f"m/{name}") == content
    assert row_of(shared, "m/blk.1.norm")["group"] == "blk.1"
    assert shared.rpc("hbm.models")[0]["key"].startswith("GGUF headers ")
    ctl_done(shared, "save", "m", shared.home / "out.gguf")
    assert (shared.home / "out.gguf").read_bytes() == path.read_bytes()


def test_a_head_of_megabytes_is_read_whole(shared):
    tokens = {**METADATA, "tokenizer.tokens": [f"token number {i}" for i in range(100000)]}
    path = gguf(shared.home / "in.gguf", metadata=tokens)
    ctl_done(shared, "load", path, "--as", "m")
    assert get(shared, "m/blk.0.attn_q.weight") == TENSORS["blk.0.attn_q.weight"][2]
    ctl_done(shared, "save", "m", shared.home / "out.gguf")
    assert (shared.home / "out.gguf").read_bytes() == path.read_bytes()


def cut(path, n):
    path.write_bytes(path.read_bytes()[:n])


@pytest.mark.parametrize("lie, reason", [
    (lambda path: gguf(path, version=1), "version 1"),
    (lambda path: cut(gguf(path), 100), "within its metadata"),
    (lambda path: cut(gguf(path), -64), "ends at"),
    (lambda path: gguf(path, {"w": (4, (32,), bytes(20))}), "does not know"),
    (lambda path: gguf(path, {"w": (Q4_0, (33,), bytes(36))}), "blocks of 32"),
    (lambda path: gguf(path, alignment=24), "no power of two"),
    (lambda path: gguf(path, {"w": (F32, (1 << 40, 1 << 40), b"")}), "overflows"),
    (lambda path: path.write_bytes(gguf(path).read_bytes() + bytes(100)), "belong to no tensor"),
    (lambda path: gguf(path, {}), "no tensor"),
    (lambda path: path.write_bytes(b"GGUF"), "within its start"),
], ids=["version", "cut in its head", "cut in its data", "an unknown type", "a row cut", "alignment", "a huge shape", "data of nobody", "empty", "short"])
def test_a_file_that_lies_is_refused_with_the_reason_and_nothing_is_loaded(shared, lie, reason):
    path = shared.home / "lie.gguf"
    lie(path)
    ctl_refused(shared.ctl("load", path, "--as", "m"), 1, "lie.gguf", reason, "nothing was loaded")
    assert shared.rpc("hbm.models") == [] and shared.rpc("hbm.ls") == []


def test_python_reads_what_the_file_says(shared):
    sys.path.insert(0, str(ROOT / "client" / "python"))
    os.environ.setdefault("HBM_LIBRARY", str(BUILD / "libhbm.so"))
    from hbm import connect, gguf as reader

    ctl_done(shared, "load", gguf(shared.home / "in.gguf"), "--as", "m")
    with connect(shared.runtime_dir) as session:
        model = session.model("m", unlocked=True)
        file = reader.read(model.metadata)
        assert file.metadata == METADATA
        assert file.tensors["blk.0.attn_q.weight"] == ("Q8_0", (2, 64)) and file.tensors["token_embd.weight"] == ("F16", (3, 4))
        assert file.tensors.keys() == model.keys()
        with pytest.raises(ValueError, match="damaged"):
            reader.read(model.metadata[:60])
    with pytest.raises(ValueError, match="was not published"):
        reader.read(b"something else")
    rows = re.findall(r"GGML_TYPE\((\w+), (\d+),", (ROOT / "client" / "ctl" / "gguf_types.def").read_text())
    assert reader.TYPES == {int(number): name for name, number in rows if name != "name"}
