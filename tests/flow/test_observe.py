"""Ranges observed over many batches, and what is encoded by them (FAULTS 25)."""
import contextlib
import json
import math
import os
import struct

import pytest

from conftest import RpcError
from helpers import (client, ctl_done, ctl_json, ctl_refused, floats, module_daemon, row_of, safetensors, shared)
from tables import publish_crowd, sealed
from vocab import DTYPES

NAN, INF = math.nan, math.inf
N = 512


def halves(values):
    return struct.pack(f"<{len(values)}e", *values)


def evenly(lo, hi, n=N):
    return [lo + (hi - lo) * i / (n - 1) for i in range(n)]


@contextlib.contextmanager
def activations(client, name="acts", dtype="F32", n=N):
    """A buffer that batches are written into: write(bytes), through the daemon, so that any device has it."""
    grant = client.grant(n * {"F32": 4, "F16": 2}[dtype], name, dtype=DTYPES[dtype], rank=1, dims=[n])

    def write(data):
        file, ranges = os.memfd_create("batch"), sealed(struct.pack("<4Q", grant["buffer"], 0, 0, len(data)))
        os.write(file, data)
        op = client.call("transfer", [file, ranges], n_ranges=1, write=0).fields["op"]
        os.close(file)
        os.close(ranges)
        assert client.call("op_wait", op=op, timeout_ms=60000).fields["error"] == 0

    yield write
    client.call("detach", lease=grant["lease"])


def observe(daemon, sel, *more):
    return {row["name"]: row["observed"] for row in ctl_json(daemon, "observe", sel, *more) if "observed" in row}


def seen(daemon, name):
    (row,) = daemon.rpc("hbm.show", {"sel": name})
    return row["observed"]


@pytest.mark.parametrize("dtype, pack", [("F32", floats), ("F16", halves)])
def test_batches_that_are_written_into_a_buffer_add_up(shared, client, dtype, pack):
    with activations(client, dtype=dtype) as write:
        assert seen(shared, "acts") is None
        for lo, hi in ((-1, 4), (-3, 2), (NAN, NAN)):
            write(pack(evenly(lo, hi)))
            (now,) = observe(shared, "acts", "--momentum", "0.5").values()
        assert now == {"batches": 3, "elements": 3 * N, "nonfinite": N, "range": [-3, 4], "average": [-2, 3], "last": [-3, 2],
                       "imported": False}
        assert seen(shared, "acts") == now
        assert observe(shared, "acts", "--forget") == {"acts": None}
        assert seen(shared, "acts") is None


METHODS = {"observed": 8, "observed:minmax": 8, "observed:average": 5, "observed:percentile:100": 8, "observed:percentile:50": None,
           "observed:mse": None, "observed:entropy": None}


@pytest.mark.parametrize("method", METHODS)
def test_a_buffer_is_encoded_by_what_was_observed_of_another(shared, client, method):
    with activations(client, "acts") as write, activations(client, "next") as write_next:
        for hi in (2, 8):
            write(floats(evenly(0, hi)))
            observe(shared, "acts", "--momentum", "0.5")
        write_next(floats(evenly(-1, 1)))
        row, = ctl_json(shared, "compress", "next", "--codec", "int8", "--calibrate", method, "--observed", "acts", "--mode", "copy",
                        "--as", "coded")
        lo, hi = row["range"]
        assert lo == -hi and row["encoding"] == "int8 per tensor", row
        assert row["method"] == ("observed:minmax" if method == "observed" else method)
        if METHODS[method]:
            assert hi == METHODS[method]
        elif method == "observed:percentile:50":
            every = sorted([abs(x) for batch in (2, 8) for x in evenly(0, batch)])
            assert every[N - 1] * 0.999 <= hi <= every[N - 1] * 1.01, "the counts of F32 tell 128 steps between powers of two"
        else:
            assert 1 < hi <= 8
        ctl_done(shared, "free", "coded")


def test_an_asymmetric_code_takes_both_ends_of_what_was_observed(shared, client):
    def ranges_of(name, *methods):
        for method in methods:
            row, = ctl_json(shared, "compress", name, "--codec", "int8-asym", "--calibrate", method, "--mode", "copy", "--as", "coded")
            ctl_done(shared, "free", "coded")
            assert row["encoding"] == "int8-asym per tensor" and row["method"] == method
            yield row["range"]

    with activations(client, "both") as write, activations(client, "relu") as relu:
        write(floats(evenly(-1, 4)))
        relu(floats(evenly(0, 4)))
        observe(shared, "both")
        observe(shared, "relu")
        assert list(ranges_of("both", "observed:minmax", "observed:average", "percentile:100")) == [[-1, 4]] * 3
        for method in ("observed:percentile:99", "observed:mse"):
            ctl_refused(shared.ctl("compress", "both", "--codec", "int8-asym", "--calibrate", method), 1, "signs", "calibrate by observed")
        for (lo, hi), (_, own) in zip(ranges_of("relu", "observed:percentile:90", "observed:mse", "observed:entropy"),
                                      ranges_of("relu", "percentile:90", "mse", "entropy")):
            assert lo == 0 and own * 0.99 <= hi <= own * 1.01


def test_a_range_of_16_bit_floats_is_that_of_the_elements_themselves(shared, client):
    """One batch observed is the tensor itself: the same range, by each method."""
    values = [math.sin(i * i) * (100 if i == 77 else 1) for i in range(N)]
    with activations(client, dtype="F16") as write:
        write(halves(values))
        observe(shared, "acts")
        for method in ("percentile:99", "mse", "entropy"):
            ranges = []
            for calibrate in (method, f"observed:{method}"):
                row, = ctl_json(shared, "compress", "acts", "--codec", "int8", "--calibrate", calibrate, "--mode", "copy", "--as", "coded")
                ranges.append(row["range"])
                ctl_done(shared, "free", "coded")
            assert ranges[0] == ranges[1], method


def test_what_was_observed_outlives_the_daemon(make_daemon):
    daemon = make_daemon(supervise=True).start()
    path = safetensors(daemon.home / "x.safetensors", {"w": ("F32", (N,), floats(evenly(-2, 9)))})
    ctl_done(daemon, "load", path, "--as", "m")
    observe(daemon, "m/w")
    before = observe(daemon, "m/w")["m/w"]
    old = daemon.kill9()
    daemon.wait_for(lambda: daemon.ctl("status").returncode == 0 and daemon.rpc("hbm.status")["pid"] != old)
    assert seen(daemon, "m/w") == before and before["batches"] == 2
    row, = ctl_json(daemon, "compress", "m/w", "--codec", "int8", "--calibrate", "observed:percentile:100")
    assert row["range"] == [-9, 9]


def test_what_can_not_be_observed_is_refused_or_skipped_with_the_reason(shared):
    path = safetensors(shared.home / "x.safetensors", {"w": ("F32", (N,), floats(evenly(0, 1))), "ids": ("I64", (2,), bytes(16)),
                                                       "none": ("F32", (0,), b"")})
    ctl_done(shared, "load", path, "--as", "m")
    ctl_refused(shared.ctl("observe", "m/ids"), 1, "m/ids", "F32")
    ctl_refused(shared.ctl("observe", "m/w", "--momentum", "1"), 1, "momentum")
    ctl_refused(shared.ctl("observe", "m/w", "--forget", "--momentum", "0.5"), 1, "momentum")
    ctl_refused(shared.ctl("observe", "nothing"), 1, "nothing")
    ctl_refused(shared.ctl("compress", "m/w", "--codec", "int8", "--calibrate", "observed"), 1, "nothing was observed")
    ctl_refused(shared.ctl("compress", "m/w", "--codec", "int8", "--observed", "m/w"), 1, "observed")
    ctl_refused(shared.ctl("compress", "m/w", "--codec", "int8", "--calibrate", "observed", "--mode", "park"), 1, "park")
    ctl_refused(shared.ctl("compress", "m/w", "--codec", "int8", "--calibrate", "observed:range:1"), 2, "--calibrate")
    assert observe(shared, "model:m").keys() == {"m/w", "m/none"}
    assert seen(shared, "m/none")["batches"] == 1 and seen(shared, "m/none")["elements"] == 0
    ctl_refused(shared.ctl("compress", "m/w", "--codec", "int8", "--calibrate", "observed", "--observed", "m/nobody"), 1, "name")
    ctl_done(shared, "offload", "model:m", "--to", "disk", "--force")
    ctl_refused(shared.ctl("observe", "m/w"), 1, "restore")
    ctl_done(shared, "restore", "model:m")
    ctl_done(shared, "compress", "m/w", "--codec", "fp16")
    ctl_refused(shared.ctl("observe", "m/w"), 1, "decompress")


def two_tensors(daemon):
    rows = {"a": ("F32", (N,), floats(evenly(-2, 9))), "b": ("F16", (N,), halves(evenly(0, 0.5))), "ids": ("I64", (2,), bytes(16))}
    ctl_done(daemon, "load", safetensors(daemon.home / "x.safetensors", rows), "--as", "m")


@pytest.mark.parametrize("kind", ["tensorrt", "onnxruntime"])
def test_ranges_leave_as_a_calibration_file_and_come_back(shared, kind):
    two_tensors(shared)
    observe(shared, "model:m")
    path = shared.home / "calibration"
    assert ctl_done(shared, "observe", "model:m", "--export", path, "--format", kind).startswith("2 ranges in ")
    text = path.read_text()
    assert "m/" not in text, "tensors are called as in their model"
    if kind == "tensorrt":
        assert text.splitlines() == ["TRT-8601-MinMaxCalibration", f"a: {struct.pack('>f', 9 / 127).hex()}", f"b: {struct.pack('>f', 0.5 / 127).hex()}"]
    else:
        tensors = json.loads(text)["data"]
        assert {name: [tensors[name][end]["data"] for end in ("lowest", "highest")] for name in tensors} == {"a": [-2, 9], "b": [0, 0.5]}
    observe(shared, "model:m", "--forget")
    rows = ctl_json(shared, "observe", "model:m", "--import", path, "--format", kind)
    lo = -9 if kind == "tensorrt" else -2
    assert {row["name"] for row in rows} == {"m/a", "m/b"}
    now = seen(shared, "m/a")
    assert now["imported"] and now["batches"] == 0 and now["average"] is None
    assert [round(x, 5) for x in now["range"]] == [lo, 9], "TensorRT's are symmetric"
    row, = ctl_json(shared, "compress", "m/a", "--codec", "int8-asym", "--calibrate", "observed", "--mode", "copy", "--as", "copy")
    assert [round(x, 5) for x in row["range"]] == [lo, 9], "an asymmetric code has both ends"
    row, = ctl_json(shared, "compress", "m/a", "--codec", "int8", "--calibrate", "observed")
    assert round(row["range"][1], 5) == 9 and row["method"] == "observed:minmax"
    ctl_refused(shared.ctl("compress", "m/b", "--codec", "int8", "--calibrate", "observed:mse"), 1, "imported")


def test_what_a_file_cannot_say_is_left_out_of_it_so_that_it_comes_back(shared):
    """Of a tensor that was always 0 there is no range; and a mask's is as wide as there is."""
    least = -3.4028234663852886e38
    rows = {"a": ("F32", (N,), floats([least] + [0.0] * (N - 1))), "zeros": ("F32", (N,), bytes(4 * N))}
    ctl_done(shared, "load", safetensors(shared.home / "x.safetensors", rows), "--as", "m")
    observe(shared, "model:m")
    for kind in ("onnxruntime", "tensorrt"):
        path = shared.home / "calibration"
        assert ctl_done(shared, "observe", "model:m", "--export", path, "--format", kind).startswith("1 range in ")
        row, = ctl_json(shared, "observe", "model:m", "--import", path, "--format", kind)
        assert row["name"] == "m/a" and seen(shared, "m/a")["range"][0] == least


def test_more_ranges_than_are_set_at_once_are_refused_with_the_number(shared, client):
    publish_crowd(client, "m", 8001)
    path = shared.home / "calibration"
    path.write_text("TRT-8601-A\n" + "".join(f"t{number}: 3f800000\n" for number in range(8001)))
    ctl_refused(shared.ctl("observe", "model:m", "--import", path, "--format", "tensorrt"), 1, "8001", "8000 are imported at once")
    with pytest.raises(RpcError, match="1 to 8000"):
        shared.rpc("hbm.set_ranges", {"ranges": [{"id": "0x5", "lowest": 0, "highest": 1}] * 8001})


LIES = [("tensorrt", "TRT-8601-MinMaxCalibration\na: 3f800000\nb: ffffffff\n", "line 3"), ("tensorrt", "a: 3f800000\n", "first line"),
        ("tensorrt", "TRT-8601-MinMaxCalibration\na: 3f800000\nb: 0\n", "m/b"), ("onnxruntime", '{"a": [-1, 1], "b": [1, -1]}', '\\"b\\"'),
        ("onnxruntime", '{"a": [-1, 1]', "JSON"), ("onnxruntime", '{"a": [-1, 1], "ids": [0, 1]}', "m/ids"), ("tensorrt", "TRT-8601-A\nc: 3f800000\n", "none of the 1")]


@pytest.mark.parametrize("kind, text, words", LIES, ids=[str(i) for i in range(len(LIES))])
def test_a_calibration_file_that_lies_imports_nothing(shared, kind, text, words):
    two_tensors(shared)
    path = shared.home / "calibration"
    path.write_text(text)
    result = shared.ctl("observe", "model:m", "--import", path, "--format", kind)
    ctl_refused(result, 1, words.replace("\\", ""))
    assert all(row["observed"] is None for row in shared.rpc("hbm.show", {"sel": "model:m"}))


def test_exports_and_imports_that_make_no_sense_are_refused(shared):
    two_tensors(shared)
    path = shared.home / "never"
    ctl_refused(shared.ctl("observe", "model:m", "--export", path, "--format", "tensorrt"), 1, "nothing was observed")
    assert not path.exists()
    ctl_refused(shared.ctl("observe", "model:m", "--export", path), 2, "--format")
    ctl_refused(shared.ctl("observe", "model:m", "--export", path, "--import", path, "--format", "tensorrt"), 2, "--format")
    ctl_refused(shared.ctl("observe", "model:m", "--import", path, "--format", "tensorrt"), 1, "cannot be read")
    ctl_refused(shared.ctl("observe", "model:m", "--import", shared.home, "--format", "tensorrt"), 1, "regular file")
    for ranges in ([], [1], [{"id": 5}], [{"id": "0x5", "lowest": 0}], [{"id": "0x5", "lowest": 0, "highest": 1e99}], [{"id": "0x5", "lowest": 0, "highest": 1}]):
        with pytest.raises(RpcError):
            shared.rpc("hbm.set_ranges", {"ranges": ranges})
    with pytest.raises(RpcError):
        shared.rpc("hbm.set_ranges", {"ranges": "all"})
