"""Real files through load, attach, get and save; and files that lie."""
import json
import os
import struct

import pytest

from helpers import (DTYPE_BYTES, ctl_done, ctl_json, ctl_refused, get, hash_of, layers, module_daemon, row_of, safetensors, shards,
                     shared, used)


def raw(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def ragged(n, seed=3):
    return bytes((seed * i * i + i) % 251 for i in range(n))


ALL = {dtype: (dtype, (3, 5), ragged(15 * size)) for dtype, size in DTYPE_BYTES.items()}
SHAPES = {"zero": ("F32", (0,), b""), "zero in the middle": ("F32", (4, 0, 2), b""), "scalar": ("F64", (), ragged(8)),
          "one": ("U8", (1,), b"x"), "eight dims": ("U8", (1, 2, 1, 2, 1, 2, 1, 2), ragged(16)), "odd": ("U8", (1000003,), ragged(1000003))}
NAMES = {"模型.слой.0.вес": ("U8", (2,), b"ab"), "a b\"c\\d": ("U8", (1,), b"q"), "é" * 60: ("U8", (1,), b"e")}
METADATA = {"format": "pt", "описание": "ключ 🙂 \"quoted\" \\ \n tab\t", "empty": ""}


@pytest.mark.parametrize("tensors", [ALL, SHAPES, NAMES, layers(3)], ids=["every dtype", "odd shapes", "unicode names", "layers"])
@pytest.mark.parametrize("pad", [0, 64])
def test_a_file_comes_back_byte_for_byte(shared, tensors, pad):
    path = safetensors(shared.home / "in.safetensors", tensors, METADATA, pad)
    ctl_done(shared, "load", path, "--as", "m")
    for name, (dtype, shape, data) in tensors.items():
        row = row_of(shared, f"m/{name}")
        assert (row["dtype"], row["shape"], row["size"]) == (dtype, list(shape), len(data))
        assert get(shared, f"m/{name}") == data
    ctl_done(shared, "save", "m", shared.home / "out.safetensors")
    assert (shared.home / "out.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_sleeping_model_is_saved_byte_for_byte(shared, tier):
    path = safetensors(shared.home / "in.safetensors", layers(3), METADATA)
    ctl_done(shared, "load", path, "--as", "m")
    ctl_done(shared, "sleep", "m", "--to", tier)
    ctl_done(shared, "save", "m", shared.home / "out.safetensors")
    assert (shared.home / "out.safetensors").read_bytes() == path.read_bytes()
    assert {row["tier"] for row in shared.rpc("hbm.ls")} == {tier}


def test_a_file_without_metadata_and_one_with_holes_in_the_order_come_back(shared):
    data = ragged(96)
    header = {"b": {"dtype": "U8", "shape": [64], "data_offsets": [32, 96]}, "a": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}}
    path = raw(shared.home / "in.safetensors", header, data)
    ctl_done(shared, "load", path, "--as", "m")
    assert get(shared, "m/a") == data[:32] and get(shared, "m/b") == data[32:]
    ctl_done(shared, "save", "m", shared.home / "out.safetensors")
    assert (shared.home / "out.safetensors").read_bytes() == path.read_bytes()


@pytest.fixture
def sharded(shared):
    folder = shared.home / "sharded"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    shards(folder, layers(3), METADATA)
    return folder


def test_a_sharded_model_is_loaded_by_its_index_and_saved_byte_for_byte(shared, sharded):
    ctl_done(shared, "load", sharded, "--as", "m")
    model = shared.rpc("hbm.models")[0]
    assert (model["buffers"], model["groups"], model["bytes"]) == (3, 3, 3 * 4096 * 4)
    out = shared.home / "out"
    out.mkdir(exist_ok=True)
    ctl_done(shared, "save", "m", out)
    for path in sharded.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_shard_that_is_missing_or_lies_keeps_the_whole_model_out(shared, sharded):
    (sharded / "model-00002-of-00003.safetensors").rename(sharded / "away")
    refused_whole(shared, sharded, "model-00002-of-00003")
    (sharded / "away").rename(sharded / "model-00002-of-00003.safetensors")
    path = sharded / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused_whole(shared, sharded, "model-00003-of-00003")


@pytest.mark.parametrize("change, words", [
    (lambda index: index["weight_map"].update(ghost="model-00001-of-00003.safetensors"), "ghost"),
    (lambda index: index["weight_map"].update({"layers.1.weight": "../evil.safetensors"}), "layers.1.weight"),
    (lambda index: index["weight_map"].update({"layers.1.weight": 5}), "layers.1.weight"),
    (lambda index: index.pop("weight_map"), "weight_map")], ids=["a ghost", "a path", "a number", "no map"])
def test_an_index_that_lies_is_refused(shared, sharded, change, words):
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    refused_whole(shared, sharded, words)


def refused_whole(shared, path, *words):
    """The reason is told, and nothing of the model is there."""
    ctl_refused(shared.ctl("load", path, "--as", "m"), 1, *words)
    assert shared.rpc("hbm.models") == [] and shared.rpc("hbm.ls") == [] and used(shared) == 0


def tensor(begin=0, end=16, dtype="F32", shape=(4,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


D = bytes(64)
LIES = {
    "an empty file": lambda p: p.write_bytes(b""),
    "seven bytes": lambda p: p.write_bytes(b"1234567"),
    "a header longer than the file": lambda p: raw(p, {"t": tensor()}, D, length=10**6),
    "a header of 2^63": lambda p: raw(p, {"t": tensor()}, D, length=2**63),
    "a header of 2^64 - 1": lambda p: raw(p, {"t": tensor()}, D, length=2**64 - 1),
    "a header of 0": lambda p: raw(p, b"", D),
    "a header that is no JSON": lambda p: raw(p, b"{'t': 1}", D),
    "a header cut short": lambda p: raw(p, json.dumps({"t": tensor()}).encode()[:-3], D),
    "a header that is a list": lambda p: raw(p, [], D),
    "text after the header's JSON": lambda p: raw(p, json.dumps({"t": tensor()}).encode() + b"x", D),
    "truncated data": lambda p: raw(p, {"t": tensor(0, 64, shape=(16,))}, D[:63]),
    "bytes nobody owns": lambda p: raw(p, {"t": tensor()}, D),
    "overlapping tensors": lambda p: raw(p, {"a": tensor(0, 16), "b": tensor(8, 24)}, D[:24]),
    "the same bytes twice": lambda p: raw(p, {"a": tensor(), "b": tensor()}, D[:16]),
    "an offset past the end": lambda p: raw(p, {"t": tensor(64, 80)}, D),
    "an offset past 2^63": lambda p: raw(p, {"t": tensor(2**63, 2**63 + 16)}, D),
    "an end before its begin": lambda p: raw(p, {"t": tensor(16, 0)}, D[:16]),
    "a negative offset": lambda p: raw(p, {"t": tensor(-16, 0)}, D[:16]),
    "a fraction as an offset": lambda p: raw(p, {"t": tensor(0, 16.5)}, D[:16]),
    "a shape that needs more": lambda p: raw(p, {"t": tensor(shape=(5,))}, D[:16]),
    "a shape that needs less": lambda p: raw(p, {"t": tensor(shape=(3,))}, D[:16]),
    "a shape that overflows": lambda p: raw(p, {"t": tensor(shape=(2**32, 2**32))}, D[:16]),
    "a negative dimension": lambda p: raw(p, {"t": tensor(shape=(-4,))}, D[:16]),
    "nine dimensions": lambda p: raw(p, {"t": tensor(shape=(1,) * 8 + (4,))}, D[:16]),
    "an unknown dtype": lambda p: raw(p, {"t": tensor(dtype="F128")}, D[:16]),
    "a dtype in small letters": lambda p: raw(p, {"t": tensor(dtype="f32")}, D[:16]),
    "a dtype that is a number": lambda p: raw(p, {"t": {"dtype": 5, "shape": [4], "data_offsets": [0, 16]}}, D[:16]),
    "duplicate names": lambda p: raw(p, b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"t":{"dtype":"F32","shape":[2],'
                                        b'"data_offsets":[8,16]}}', D[:16]),
    "a tensor that is a number": lambda p: raw(p, {"t": 4}, D),
    "a missing field": lambda p: raw(p, {"t": {"dtype": "F32", "shape": [4]}}, D[:16]),
    "three offsets": lambda p: raw(p, {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}}, D[:16]),
    "bad UTF-8 in a name": lambda p: raw(p, b'{"\xff":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D[:16]),
    "a NUL in a name": lambda p: raw(p, b'{"a\\u0000b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D[:16]),
    "metadata that is no text": lambda p: raw(p, {"__metadata__": {"a": 1}, "t": tensor()}, D[:16]),
    "nesting of 100 000": lambda p: raw(p, b'{"t":' + b"[" * 100000 + b"]" * 100000 + b"}", D),
    "no tensors": lambda p: raw(p, {"__metadata__": {"format": "pt"}}),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_file_that_lies_is_refused_with_the_reason_and_nothing_is_half_loaded(shared, lie):
    path = shared.home / "lie.safetensors"
    lie(path)
    refused_whole(shared, path, "lie.safetensors")


@pytest.mark.parametrize("name, words", [("../../etc/passwd", "passwd"), ("a//b", "a//b"), ("a\x01b", "control"), ("x" * 300, "255")],
                         ids=["a path", "an empty part", "a control character", "over-long"])
def test_a_tensor_name_that_no_buffer_may_have_is_refused(shared, name, words):
    refused_whole(shared, raw(shared.home / "lie.safetensors", {name: tensor()}, D[:16]), words)


@pytest.mark.parametrize("what", ["missing", "a directory", "a fifo", "/dev/zero"])
def test_what_is_no_file_is_refused(shared, what):
    path = shared.home / "what.safetensors"
    if path.exists():
        path.unlink() if not path.is_dir() else path.rmdir()
    if what == "a directory":
        path.mkdir()
    elif what == "a fifo":
        os.mkfifo(path)
    refused_whole(shared, "/dev/zero" if what == "/dev/zero" else path)
    if path.is_dir():
        path.rmdir()


def test_a_file_that_shrinks_under_the_load_leaves_nothing(shared):
    """Its header was sound; its data is gone when it is read."""
    path = safetensors(shared.home / "shrinks.safetensors", {"t": ("U8", (1 << 20,), bytes(1 << 20))})
    good = path.read_bytes()
    path.write_bytes(good[:-4096])
    refused_whole(shared, path, "shrinks")


def test_an_existing_name_is_refused_without_replace(shared):
    path = safetensors(shared.home / "in.safetensors", layers(2))
    other = safetensors(shared.home / "other.safetensors", layers(3, seed=9))
    ctl_done(shared, "load", path, "--as", "m")
    before = hash_of(shared, "model:m")
    ctl_refused(shared.ctl("load", other, "--as", "m"), 1, "m", "--replace")
    assert hash_of(shared, "model:m") == before
    ctl_done(shared, "load", other, "--as", "m", "--replace")
    assert len(hash_of(shared, "model:m")) == 3 and len(shared.rpc("hbm.models")) == 1


def test_a_model_larger_than_the_device_is_refused_whole(make_daemon):
    daemon = make_daemon(config="device_bytes = 1MiB\n").start()
    path = safetensors(daemon.home / "big.safetensors", layers(5, 65536))
    ctl_refused(daemon.ctl("load", path, "--as", "m"), 1, "m")
    assert daemon.rpc("hbm.models") == [] and used(daemon) == 0


def test_groups_are_the_prefix_through_the_first_number(shared):
    rows = {"model.layers.0.attn.q": ("U8", (4,), b"abcd"), "model.layers.0.mlp": ("U8", (4,), b"efgh"),
            "model.layers.10.mlp": ("U8", (4,), b"ijkl"), "lm_head.weight": ("U8", (4,), b"mnop")}
    ctl_done(shared, "load", safetensors(shared.home / "in.safetensors", rows), "--as", "m")
    groups = {row["name"]: row["group"] for row in shared.rpc("hbm.ls")}
    assert groups["m/model.layers.0.attn.q"] == groups["m/model.layers.0.mlp"] == "model.layers.0"
    assert groups["m/model.layers.10.mlp"] == "model.layers.10" and groups["m/lm_head.weight"] not in ("model.layers.0", "model.layers.10")
    assert {row["name"] for row in ctl_json(shared, "hash", "group:model.layers.0")} == {"m/model.layers.0.attn.q", "m/model.layers.0.mlp"}
    assert {row["name"] for row in ctl_json(shared, "hash", "group:m/model.layers.10")} == {"m/model.layers.10.mlp"}


def test_a_save_replaces_its_target_only_when_it_is_whole(shared):
    path = safetensors(shared.home / "in.safetensors", layers(2))
    ctl_done(shared, "load", path, "--as", "m")
    out = shared.home / "kept.safetensors"
    out.write_text("precious")
    ctl_refused(shared.ctl("save", "nothing", out), 1, "nothing")
    assert out.read_text() == "precious"
    ctl_done(shared, "save", "m", out)
    assert out.read_bytes() == path.read_bytes()
    ctl_refused(shared.ctl("save", "m", shared.home / "no" / "where"), 1)
