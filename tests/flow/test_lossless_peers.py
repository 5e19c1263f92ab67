"""bf16-lossless beside zipnn and the entropy of what it codes, on the demo's model: with HBM_PEERS=1 (downloads of 84 MB, once)."""
import json
import os
import struct
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT
from helpers import ctl_done, hash_of, module_daemon, safetensors, shared
from packages import PIP, fetch, with_peers

numpy = pytest.importorskip("numpy")

ZIPNN = """
import sys
from unittest import mock
for name in ("torch", "safetensors", "safetensors.torch"):
    sys.modules[name] = mock.MagicMock()  # which it imports, and needs for tensors alone
import zipnn
raw = open(sys.argv[1], "rb").read()
codec = zipnn.ZipNN(bytearray_dtype="bfloat16", input_format="byte")
coded = codec.compress(bytearray(raw))
assert codec.decompress(coded) == raw
print(len(coded))
"""


def bf16_tensors(path):
    """Of a safetensors file of F32, rounded to the nearest even."""
    with open(path, "rb") as file:
        rows = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        for name, row in rows.items():
            if name == "__metadata__" or row["dtype"] != "F32":
                continue
            first, end = row["data_offsets"]
            file.seek(start + first)
            bits = numpy.frombuffer(file.read(end - first), numpy.uint32)
            yield name, row["shape"], ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def exponents_floor(words):
    """Bytes: those of signs and mantissas, and the entropy of the exponents."""
    shares = numpy.bincount(words >> 7 & 255) / len(words)
    shares = shares[shares > 0]
    return len(words) * (8 - (shares * numpy.log2(shares)).sum()) / 8


@with_peers
def test_a_real_model_takes_within_two_percent_of_the_entropy_of_its_exponents_and_of_zipnn(shared):
    fetch("zipnn", "==0.5.4", "--no-deps", "--no-binary=zipnn")
    model = subprocess.run([ROOT / "tests/demo/fetch-model.sh", BUILD / "model"], text=True, capture_output=True, timeout=600, check=True)
    tensors = list(bf16_tensors(model.stdout.strip()))
    ctl_done(shared, "load", safetensors(shared.home / "x.safetensors", {name: ("BF16", shape, words.tobytes()) for name, shape, words in tensors}),
             "--as", "m")
    before = hash_of(shared, "model:m")
    ctl_done(shared, "sleep", "m", "--to", "host", "--codec", "bf16-lossless")
    ours = sum(row["stored_size"] for row in shared.rpc("hbm.ls", {"glob": "m/*"}))
    ctl_done(shared, "wake", "m")
    assert hash_of(shared, "model:m") == before
    raw = shared.home / "raw"
    raw.write_bytes(b"".join(words.tobytes() for _, _, words in tensors))
    ended = subprocess.run([sys.executable, "-c", ZIPNN, raw], env=os.environ | {"PYTHONPATH": str(PIP)}, text=True, capture_output=True,
                           timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    theirs, floor, size = int(ended.stdout), sum(exponents_floor(words) for _, _, words in tensors), raw.stat().st_size
    print(f"{size} bytes: ours {ours / size:.4f}, zipnn {theirs / size:.4f}, the entropy of the exponents {floor / size:.4f}")
    assert floor < ours <= floor * 1.02 and floor < theirs and ours <= theirs * 1.02
