"""Compression as a client sees it: what it saves, what it costs, what it refuses (FAULTS 25; CASES 21, 25)."""
import math
import struct

import pytest

from conftest import RpcError
from helpers import (MIB, Client, client, client_program, ctl_done, ctl_json, ctl_refused, floats, get, hash_of, host_only, module_daemon,
                     on_terminal, program, refused, row_of, safetensors, shared, used)
from vocab import CODECS, DTYPES

INF, NAN = math.inf, math.nan
TENSORS = {
    "zeros": [0.0] * 300, "one": [3.25], "odd": [i / 3 - 50 for i in range(257)], "negative zero": [-0.0, 0.0, -0.0],
    "equal": [0.1] * 1000, "denormals": [1e-40, -1e-42, 1e-45, 0.0] * 9, "tiny": [1e-37] * 8, "huge": [1e30, -1e30, 1.0] * 5,
    "479 480": [479.0, 480.0, -480.0, 0.5], "nan": [1.0, NAN, -2.0, NAN], "all nan": [NAN] * 5, "infinite": [INF, -INF, 1.0, 0.5],
    "row of zeros": [0.0] * 64 + [float(i) for i in range(64)], "amax max": [3.4028234663852886e38, -3.4028234663852886e38, 1.0],
}
GRANULARITIES = {"fp16": [None], "bf16": [None], "int8": ["tensor", "channel", "channel:0", "group:32", "group:7"],
                 "fp8-e4m3": ["tensor", "channel", "group:7"], "fp8-e5m2": ["tensor", "channel", "group:32"],
                 "fp16-scaled": [None], "int4": [None, "group:7"], "int8-asym": ["tensor", "channel", "group:7"]}

STEPS = {"int8": 127, "int8-asym": 127, "fp8-e4m3": 14, "fp8-e5m2": 7, "int4": 7, "fp16-scaled": 1024}


def load(daemon, tensors, dtype="F32", shape=None, model="m"):
    pack = {"F32": floats, "F16": lambda v: struct.pack(f"<{len(v)}e", *v)}[dtype]
    rows = {name.replace(" ", "_"): (dtype, shape or (len(values),), pack(values)) for name, values in tensors.items()}
    ctl_done(daemon, "load", safetensors(daemon.home / "x.safetensors", rows), "--as", model)


def values_of(daemon, name):
    data = get(daemon, name)
    return struct.unpack(f"<{len(data) // 4}f", data)


def compress(daemon, sel, codec, granularity=None, *more):
    return ctl_json(daemon, "compress", sel, "--codec", codec, *(["--granularity", granularity] if granularity else []), *more)


@pytest.mark.parametrize("codec, granularity", [(c, g) for c, gs in GRANULARITIES.items() for g in gs])
def test_special_values_go_through_and_come_back_as_what_they_were_near(shared, codec, granularity):
    """FAULTS 25, CASES 21: finite stays finite, zero stays zero, nothing dies."""
    load(shared, TENSORS)
    receipts = {row["name"]: row for row in compress(shared, "model:m", codec, granularity)}
    assert len(receipts) == len(TENSORS)
    for name, before in TENSORS.items():
        name = name.replace(" ", "_")
        row = receipts[f"m/{name}"]
        after = values_of(shared, f"m/{name}")
        assert len(after) == len(before) and row["bytes_before"] == 4 * len(before)
        finite = [(x, y) for x, y in zip(before, after) if math.isfinite(x)]
        assert all(math.isfinite(y) or codec == "fp16" and abs(x) > 65504 for x, y in finite), (name, after[:8])
        assert all(y == 0 for x, y in finite if x == 0), (name, after[:8])
        steps = STEPS.get(codec)  # of the largest magnitude, as far from each other as codes are at most
        if steps and all(map(math.isfinite, before)):
            bound = max(map(abs, before)) / steps * 0.5001 + 1e-37 * (codec != "int8")
            assert all(abs(x - y) <= bound for x, y in finite), (name, row)
        error = row["max_abs_error"]
        assert error is None or error >= 0
    ctl_done(shared, "decompress", "model:m")
    assert {row["encoding"] for row in shared.rpc("hbm.ls")} == {"raw"}


def test_the_whole_receipt_is_shown_and_fits_80_columns(shared):
    name = "a.tensor.with.a.name.as.long.as.models.give.them.layers.10.weight"
    load(shared, {name: [NAN, INF] + [math.sin(i) * 1e-3 for i in range(500)] + [1e4]})
    [row] = compress(shared, f"m/{name}", "int8", "tensor", "--calibrate", "percentile:99", "--mode", "copy", "--as", "copy")
    text = on_terminal(shared, 80, "compress", f"m/{name}", "--codec", "int8", "--granularity", "tensor", "--calibrate", "percentile:99")
    assert max(map(len, text.splitlines())) <= 80, text
    words = text.split()
    for member, form in {"sqnr_db": "%.2f", "sqnr_inlier_db": "%.2f", "max_abs_error": "%.4g", "max_rel_error": "%.4g", "zeroed": "%d",
                         "nans": "%d", "infinities": "%d", "method": "%s"}.items():
        assert form % row[member] in words, (member, text)
    low, high = row["range"]
    assert f"{low:.4g} to {high:.4g}" in text and f"{row['clipped_fraction'] * 100:.3g} %" in text


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1), (7, 11, 13), (255,), (257, 3)], ids=str)
@pytest.mark.parametrize("codec", list(GRANULARITIES))
def test_every_shape_is_compressed_or_refused_with_its_reason(shared, dtype, shape, codec):
    """FAULTS 25: 0-d, empty, and sizes that are no multiple of anything."""
    n = math.prod(shape)
    data = struct.pack(f"<{n}f", *[i / 8 for i in range(n)]) if dtype == "F32" else bytes(2 * n)
    path = safetensors(shared.home / "x.safetensors", {"t": (dtype, shape, data), "keep": ("U8", (3,), b"abc")})
    ctl_done(shared, "load", path, "--as", "m")
    result = shared.ctl("--json", "compress", "m/t", "--codec", codec)
    if result.returncode:
        ctl_refused(result, 1, "m/t")
    back = get(shared, "m/t")
    assert len(back) == len(data) and get(shared, "m/keep") == b"abc"
    if row_of(shared, "m/t")["encoding"] != "raw":
        ctl_done(shared, "decompress", "m/t")
    assert get(shared, "m/t") == back


def test_compression_frees_what_it_saves_and_says_so(shared):
    N = 1 << 18
    values = {f"t{i}": [((i + 1) * j % 97) / 9 for j in range(N)] for i in range(4)}
    load(shared, values)
    before = used(shared)
    rows = compress(shared, "model:m", "int8", "group:128")
    assert used(shared) <= max(before * 0.3, 2 * MIB) < before
    for row in rows:
        assert row["bytes_after"] == N + 4 * N // 128 and row["bytes_before"] == 4 * N
        assert row["sqnr_db"] > 30 and row["clipped_fraction"] <= 1 and row["max_abs_error"] < 0.1
        assert row["encoding"].startswith("int8") and row["seconds"] >= 0
    shown = row_of(shared, "m/t0")
    events = [event for event in shared.rpc("hbm.events") if event["event"] == "buffer.encoded" and event["name"] == "m/t0"]
    assert events[-1]["detail"].startswith("int8 per group of 128 by minmax,"), events
    assert shown["stored_size"] == N + 4 * N // 128 and shown["size"] == 4 * N and shown["receipt"]["sqnr_db"] > 30
    ctl_done(shared, "decompress", "model:m")
    assert used(shared) == before


def test_a_receipt_says_what_was_lost_against_the_original_and_stays_with_the_buffer(shared):
    values = [math.sin(i) * (100 if i % 50 == 0 else 1) for i in range(3000)] + [NAN, INF, -INF, 0.0]
    load(shared, {"t": values})
    before = values_of(shared, "m/t")
    row, = compress(shared, "m/t", "int8", "tensor")
    after = values_of(shared, "m/t")
    pairs = [(x, y) for x, y in zip(before, after) if math.isfinite(x)]
    near = lambda a, b: abs(a - b) <= 1e-5 * abs(b)
    sqnr = 10 * math.log10(sum(x * x for x, _ in pairs) / sum((x - y) ** 2 for x, y in pairs))
    assert near(row["sqnr_db"], sqnr) and near(row["sqnr_inlier_db"], sqnr) and row["clipped"] == 0
    assert near(row["max_abs_error"], max(abs(x - y) for x, y in pairs))
    assert near(row["max_rel_error"], max(abs(x - y) / abs(x) for x, y in pairs if x))
    assert row["zeroed"] == sum(x != 0 and y == 0 for x, y in pairs) > 0 and row["nans"] == 1 and row["infinities"] == 2
    most = max(abs(x) for x, _ in pairs)
    assert row["method"] == "minmax" and near(row["range"][1], most) and row["range"][0] == -row["range"][1]
    assert row["bytes_saved"] == row["bytes_before"] - row["bytes_after"] > 0 and row["gb_per_s"] > 0
    receipt = row_of(shared, "m/t")["receipt"]
    assert all(receipt[key] == row[key] for key in ("method", "clipped", "zeroed", "nans", "infinities", "bytes_saved"))
    assert near(receipt["sqnr_inlier_db"], sqnr) and near(receipt["seconds"], row["seconds"])


@pytest.mark.parametrize("method", ["minmax", "percentile:99", "mse", "entropy", "range:2.5"])
def test_a_calibrated_range_clips_outliers_and_the_receipt_names_it(shared, method):
    values = [math.sin(i * i) for i in range(5000)]
    values[::1000] = [300.0, -200.0, 300.0, 300.0, -300.0]
    load(shared, {"t": values})
    row, = compress(shared, "m/t", "int8", "tensor" if method == "minmax" else None, "--calibrate", method)
    lo, hi = row["range"]
    assert row["method"] == method.removesuffix(":2.5") and lo == -hi and row["encoding"] == "int8 per tensor"
    if method.startswith("percentile"):
        assert abs(hi - sorted(map(abs, values))[4949]) < 1e-6, "the magnitude that 99 % do not exceed"
    clipped = [i for i, x in enumerate(values_of(shared, "m/t")) if abs(values[i]) > hi * 127.5 / 127]
    assert row["clipped"] == len(clipped) and all(abs(abs(x) - hi) <= 1e-5 * hi for i, x in enumerate(values_of(shared, "m/t")) if i in clipped)
    if method == "range:2.5":
        assert hi == 2.5
    if method == "minmax":
        assert hi == 300 and abs(row["sqnr_inlier_db"] - row["sqnr_db"]) < 1e-5, "but for the order of its sums: a GPU's are its own"
    elif method != "mse":
        assert row["clipped"] >= 5 and row["sqnr_inlier_db"] > row["sqnr_db"]
    receipt = row_of(shared, "m/t")["receipt"]
    assert receipt["method"] == row["method"] and receipt["clipped"] == row["clipped"]


@pytest.mark.parametrize("method", ["percentile:99", "mse", "entropy", "range:2.5"])
def test_an_asymmetric_range_clips_either_end_by_itself(shared, method):
    values = [math.sin(i * i) + 0.75 for i in range(5000)]
    values[::1000] = [300.0, 300.0, 300.0, 300.0, 0.0]
    load(shared, {"t": values})
    row, = compress(shared, "m/t", "int8-asym", None, "--calibrate", method)
    lo, hi = row["range"]
    assert row["method"] == method.removesuffix(":2.5") and row["encoding"] == "int8-asym per tensor"
    if method.startswith("percentile"):
        assert abs(lo - sorted(values)[25]) < 1e-6 and abs(hi - sorted(values)[4974]) < 1e-6, "25 elements beyond either end"
    elif method == "range:2.5":
        assert (lo, hi) == (-2.5, 2.5)
    else:
        assert -0.25 <= lo < -0.2 and hi <= 300
    step, = struct.unpack("<f", get(shared, "m/t.scale"))
    assert abs(step * 255 - (hi - lo)) <= 0.01 * (hi - lo)
    back = values_of(shared, "m/t")
    assert all(abs(x - min(max(y, lo), hi)) <= 1.01 * step for x, y in zip(back, values))
    assert row["clipped"] == sum(abs(x - y) >= step * 1.01 for x, y in zip(back, values)) == (0 if method == "mse" else 4)


def test_the_id_stays_and_the_version_goes_up(shared):
    load(shared, {"t": [1.0, 2.0, 3.5]})
    before = row_of(shared, "m/t")
    compress(shared, "m/t", "bf16")
    after = row_of(shared, "m/t")
    assert after["id"] == before["id"] and after["version"] == before["version"] + 1
    assert values_of(shared, "m/t") == (1.0, 2.0, 3.5)


def test_a_copy_is_a_buffer_beside_the_original(shared):
    load(shared, {"t": [float(i) for i in range(100)]})
    before = hash_of(shared, "m/t")
    compress(shared, "m/t", "int8", "tensor", "--mode", "copy")
    assert row_of(shared, "m/t")["encoding"] == "raw" and hash_of(shared, "m/t") == before
    copy = row_of(shared, "m/t@int8.tensor")
    assert copy["encoding"].startswith("int8") and copy["model"] is None
    ctl_refused(shared.ctl("compress", "m/t", "--codec", "int8", "--granularity", "tensor", "--mode", "copy"), 1, "taken")
    compress(shared, "m/t", "int8", "tensor", "--mode", "copy", "--as", "mine")
    assert hash_of(shared, "mine")["mine"] == hash_of(shared, "m/t@int8.tensor")["m/t@int8.tensor"]
    ctl_done(shared, "free", "mine")


def test_the_scales_are_attachable_by_name(shared, client):
    load(shared, {"t": [127.0, -254.0]}, shape=(2, 1))
    compress(shared, "m/t", "int8", "channel:0")
    grant, _ = client.attach("m/t.scale")
    assert grant["size"] == 8 and grant["offset"] % 256 == 0
    data, _ = client.attach("m/t")
    assert data["size"] == 2 and data["encoding"]["codec"] == CODECS["INT8"] and data["dims"][:2] == [2, 1]
    assert struct.unpack("<2f", get(shared, "m/t.scale")) == (1.0, 2.0)
    with pytest.raises(RpcError):
        shared.rpc("hbm.free", {"sel": "m/t.scale"})


def test_the_zero_points_lie_beside_the_scales_and_go_with_them(shared, client):
    load(shared, {"t": [0.0, 2.0, 510.0, -510.0, -2.0, 0.0]}, shape=(2, 3))
    [row] = compress(shared, "m/t", "int8-asym", "channel:0", "--mode", "copy", "--as", "copy")
    assert row["bytes_after"] == 6 + 2 * 4 + 2 * 4 and row["sqnr_db"] is None and row["encoding"] == "int8-asym per channel 0"
    data, scale, zero = (client.attach(name)[0] for name in ("copy", "copy.scale", "copy.zero"))
    assert (scale["dtype"], zero["dtype"]) == (DTYPES["F32"], DTYPES["I32"]) and zero["dims"][0] == 2
    assert all(part["offset"] % 256 == 0 and part["size"] == 8 for part in (scale, zero))
    compress(shared, "m/t", "int8-asym", "channel:0")
    assert struct.unpack("<2f", get(shared, "m/t.scale")) == (2.0, 2.0)
    assert struct.unpack("<2i", get(shared, "m/t.zero")) == (-128, 127)
    assert values_of(shared, "m/t") == values_of(shared, "copy") == (0.0, 2.0, 510.0, -510.0, -2.0, 0.0)
    ctl_refused(shared.ctl("free", "m/t.zero"), 1, "zero points")
    ctl_done(shared, "rename", "copy", "other")
    assert client.attach("other.zero")[0]["buffer"] == zero["buffer"]
    ctl_refused(shared.ctl("decompress", "other"), 1, "zero points")  # the client has them


def test_int8_split_keeps_the_loudest_channels_in_fp16_beside_the_rest(shared, client):
    rows = [[(100.0 if row == 41 else 1.0) * math.sin(row * 7 + i) for i in range(32)] for row in range(64)]
    load(shared, {"t": sum(rows, [])}, shape=(64, 32))
    ctl_refused(shared.ctl("compress", "m/t", "--codec", "int8", "--granularity", "tensor", "--min-sqnr", "39"), 1, "worse")
    [row] = compress(shared, "m/t", "int8-split", None, "--min-sqnr", "39", "--mode", "copy", "--as", "copy")
    assert row["bytes_after"] == 64 * 32 + 4 + 4 + 2 * 32 and row["encoding"] == "int8-split but 1 of axis 0"
    data, scale, channels, outliers = (client.attach("copy" + part)[0] for part in ("", ".scale", ".channels", ".outliers"))
    assert (channels["dtype"], outliers["dtype"]) == (DTYPES["I32"], DTYPES["F16"]) and outliers["dims"][0] == 32
    assert data["encoding"]["group"] == 1 and struct.unpack("<i", get(shared, "copy.channels")) == (41,)
    assert struct.unpack("<32e", get(shared, "copy.outliers")) == values_of(shared, "copy")[41 * 32:42 * 32]
    step = struct.unpack("<f", get(shared, "copy.scale"))[0]
    assert step < 1 / 126
    for i, (before, after) in enumerate(zip(sum(rows, []), values_of(shared, "copy"))):
        assert abs(before - after) <= (0.04 if i // 32 == 41 else 0.5001 * step)
    ctl_refused(shared.ctl("decompress", "copy"), 1, "attached")  # the client has what belongs to it
    [row] = compress(shared, "m/t", "int8-split", "channel:1:31")
    assert row["bytes_after"] == 64 * 32 + 4 + 4 * 31 + 2 * 64 * 31
    ctl_done(shared, "decompress", "m/t")
    assert row_of(shared, "m/t")["encoding"] == "raw" and not [row for row in shared.rpc("hbm.ls") if row["name"] == "m/t.outliers"]
    for granularity, why in ("channel:1:32", "fp16"), ("channel:2", "axis"), ("group:8", "granularity"), ("channel:0:0", "channels"):
        ctl_refused(shared.ctl("compress", "m/t", "--codec", "int8-split", "--granularity", granularity), 1, why)
    ctl_refused(shared.ctl("compress", "m/t", "--codec", "int8-split", "--mode", "park"), 1, "per channel")
    ctl_refused(shared.ctl("sleep", "m", "--codec", "int8-split"), 1, "stays on the device")


@pytest.mark.parametrize("bound", [["--min-sqnr", "120"], ["--max-error", "0.0001"]], ids=lambda bound: bound[0])
def test_a_result_worse_than_its_bound_is_refused_and_changes_nothing(shared, bound):
    load(shared, {"t": [i * 1.7 for i in range(1000)], "u": [1.0] * 10})
    rows, before, held = {row["name"]: row for row in shared.rpc("hbm.ls")}, hash_of(shared, "m/*"), used(shared)
    ctl_refused(shared.ctl("compress", "m/t", "--codec", "int8", *bound), 1, "m/t", "worse")
    assert {row["name"]: row for row in shared.rpc("hbm.ls")} == rows and hash_of(shared, "m/*") == before and used(shared) == held
    compress(shared, "m/t", "int8", "tensor", "--min-sqnr", "20", "--max-error", "100")


REFUSED = [["--codec", "int8", "--granularity", "group:0"], ["--codec", "int8", "--granularity", "channel:5"], ["--codec", "gzip"],
           ["--codec", "int8", "--granularity", "group:x"], ["--codec", "int8", "--mode", "parked"], ["--codec", "raw"],
           ["--codec", "int8", "--calibrate", "percentile:0"],
           ["--codec", "int8", "--calibrate", "range:-1"], ["--codec", "int8", "--calibrate", "range:nan"],
           ["--codec", "int8", "--calibrate", "mse", "--granularity", "channel"], ["--codec", "fp8-e4m3", "--calibrate", "entropy"],
           ["--codec", "fp16", "--calibrate", "mse"], ["--codec", "int8", "--calibrate", "mse", "--mode", "park"], ["--codec", "int8", "--granularity", "group:99999999999"]]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: " ".join(options[1:]))
def test_a_codec_or_granularity_that_does_not_fit_is_refused(shared, options):
    load(shared, {"t": [1.0] * 12}, shape=(3, 4))
    before = row_of(shared, "m/t")
    result = shared.ctl("compress", "m/t", *options)
    ctl_refused(result, result.returncode)
    assert result.returncode in (1, 2), "2 where hbmctl sees it, 1 where the daemon does"
    with pytest.raises(RpcError):
        shared.rpc("hbm.compress", {"sel": "m/t"} | {name[2:]: value for name, value in zip(options[::2], options[1::2])})
    assert row_of(shared, "m/t") == before


@pytest.mark.parametrize("bits", [0, 250], ids=["raw", "unknown"])
def test_a_codec_number_over_the_wire_that_is_none_is_refused(client, bits):
    client.alloc(4096, "t", dtype=DTYPES["F32"], rank=1, dims=[1024])
    with refused("INVALID", "codec"):
        client.call("compress", sel="t", encoding={"codec": bits})


def test_what_is_no_float_is_refused_alone_by_name_and_skipped_in_a_model(shared):
    path = safetensors(shared.home / "x.safetensors", {"ids": ("I64", (2,), bytes(16)), "w": ("F32", (2,), floats([1, 2]))})
    ctl_done(shared, "load", path, "--as", "m")
    ctl_refused(shared.ctl("compress", "m/ids", "--codec", "fp16"), 1, "m/ids", "F32")
    rows = {row["name"]: row for row in compress(shared, "model:m", "fp16")}
    assert "skipped" in rows["m/ids"] and rows["m/w"]["encoding"].startswith("fp16")


def test_a_compressed_buffer_is_refused_twice_and_offloads_as_it_is(shared):
    load(shared, {"t": [float(i % 11) for i in range(5000)]})
    compress(shared, "m/t", "int8", "tensor")
    once = values_of(shared, "m/t")
    ctl_refused(shared.ctl("compress", "m/t", "--codec", "fp16"), 1, "m/t")
    ctl_done(shared, "offload", "m/t", "--to", "disk", "--force")
    assert values_of(shared, "m/t") == once
    ctl_done(shared, "restore", "m/t")
    assert values_of(shared, "m/t") == once


@host_only
def test_a_reader_keeps_the_old_bytes_through_a_replace_and_a_writer_forbids_it(shared, program):
    load(shared, {"t": [float(i) for i in range(4096)]})
    reader = program(shared)
    lease, _, address = reader.attach("m/t", "ro")
    before = reader.ask("sum", lease)
    compress(shared, "m/t", "int8", "tensor")
    assert reader.ask("sum", lease) == before and reader.ask("pointer", lease) == [address]
    fresh, _, other = reader.attach("m/t", "ro")
    assert other != address
    held = used(shared)
    reader.ask("detach", lease)
    assert used(shared) < held
    reader.ask("detach", fresh)
    writer = program(shared)
    lease, _, _ = writer.attach("m/t", "rw")
    ctl_refused(shared.ctl("decompress", "m/t"), 1, writer.process.pid)
    writer.ask("detach", lease)
    ctl_done(shared, "decompress", "m/t")


def test_more_than_2_to_the_31_elements_are_refused_before_anything_ran(shared):
    """CASES 25 where the machine has no room for them: a typed error, nothing allocated."""
    with Client(shared.socket) as link:
        link.hello()
        with refused("TOO_LARGE"):
            link.alloc(0, "t", dtype=DTYPES["F32"], rank=1, dims=[2**40 + 65536])
    assert used(shared) == 0
