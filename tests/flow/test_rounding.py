"""The codecs against independent implementations: NumPy's and ml_dtypes' casts and, with HBM_PEERS=1, ONNX Runtime's QuantizeLinear and
DequantizeLinear (a download of 20 MB). What is compared is the reference; tests/gpu/codec_gpu compares the kernels with that."""
import ctypes
import importlib
import os
import subprocess
import sys

import pytest

from conftest import ROOT
from helpers import host_only
from packages import PIP, fetch, with_peers
from vocab import CODECS, DTYPES

numpy = pytest.importorskip("numpy")

TENSOR, CHANNEL, GROUP = range(3)
RAW = ["F32", "F16", "BF16"]


def fetched(package, version=""):
    fetch(package, version, "--no-deps")
    sys.path.append(str(PIP))
    return importlib.import_module(package)


@pytest.fixture(scope="module")
def ml_dtypes():
    return fetched("ml_dtypes", "==0.5.1")  # later ones want a later NumPy than Debian 12 has


@pytest.fixture(scope="module")
def onnxruntime():
    return fetched("onnxruntime")


WRAPPER = """
#include "kernels/codec.h"

uint64_t units(unsigned codec, unsigned granularity, unsigned axis, unsigned group, const uint64_t *dims, unsigned rank)
{
    struct hbm_encoding e = {codec, granularity, axis, hbm_codec_stored_dtype(codec), group};
    uint64_t n = 0;
    return hbm_encoding_units(&e, dims, rank, &n) ? n : 0;
}

void code(unsigned codec, unsigned granularity, unsigned axis, unsigned group, const uint64_t *dims, unsigned rank, unsigned dtype,
          const void *in, void *out, void *data, float *scale, int32_t *zero)
{
    struct codec_job job = {.raw_in = in, .raw_out = out, .data = data, .scale = scale, .zero = zero, .rank = rank, .dtype = dtype,
                            .encoding = {codec, granularity, axis, hbm_codec_stored_dtype(codec), group}};
    struct hbm_receipt receipt;
    for (unsigned i = 0; i < rank; i++)
        job.dims[i] = dims[i];
    codec_encode_host(&job, &receipt);
    codec_decode_host(&job);
}
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codecs")
    (folder / "wrapper.c").write_text(WRAPPER)
    sources = [folder / "wrapper.c", *sorted((ROOT / "kernels").glob("*.c")), ROOT / "proto" / "vocab.c"]
    subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu17", "-O2", "-shared", "-fPIC", "-ffp-contract=off", f"-I{ROOT}",
                    *map(str, sources), "-o", str(folder / "codecs.so"), "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "codecs.so"))
    library.units.restype = ctypes.c_uint64
    return library


class Coded:
    """An array encoded and decoded by the reference."""

    def __init__(self, reference, array, dtype, codec, granularity=TENSOR, axis=0, group=0):
        bits = reference.hbm_dtype_bits(reference.hbm_codec_stored_dtype(CODECS[codec]))
        dims = (ctypes.c_uint64 * 8)(*array.shape)
        units = reference.units(CODECS[codec], granularity, axis, group, dims, array.ndim)
        self.back = numpy.empty_like(array)
        self.data = numpy.zeros((array.size * bits + 7) // 8, numpy.uint8)
        self.scale, self.zero = numpy.zeros(units, numpy.float32), numpy.zeros(units, numpy.int32)
        arrays = [ctypes.c_void_p(each.ctypes.data) for each in (array, self.back, self.data, self.scale, self.zero)]
        reference.code(CODECS[codec], granularity, axis, group, dims, array.ndim, DTYPES[dtype], *arrays)

    def a_row(self, values, shape, granularity, axis, group):
        """One of these (a unit each) for every element."""
        if granularity == CHANNEL:
            return values.reshape([-1 if k == axis else 1 for k in range(len(shape))])
        if granularity == GROUP:
            return numpy.repeat(values.reshape(*shape[:-1], -1), group, axis=-1)[..., :shape[-1]]
        return values.reshape(())


def types_of(ml_dtypes):
    return {"F32": numpy.dtype(numpy.float32), "F16": numpy.dtype(numpy.float16), "BF16": numpy.dtype(ml_dtypes.bfloat16)}


def any_bits(n):
    """Every exponent, NaN and infinities; ties of the 16-bit types; their ends."""
    bits = numpy.random.default_rng(5).integers(0, 1 << 32, n, numpy.uint32)
    bits[: n // 4] &= numpy.uint32(0xFFFF8000)  # ties of bf16
    bits[n // 4: n // 2] &= numpy.uint32(0xFFFFF000)  # of fp16, and short of one
    ends = numpy.array([0, -0.0, 65504, 65519, 65520, 1e38, -3.4e38, 6e-8, 2.9e-8, 3e-8, 1e-45, numpy.inf, -numpy.inf], numpy.float32)
    bits[-ends.size:] = ends.view(numpy.uint32)
    return bits.view(numpy.float32)


def normal(shape, dtype, ml_dtypes, seed=7, offset=0.0):
    return (numpy.random.default_rng(seed).standard_normal(shape) + offset).astype(types_of(ml_dtypes)[dtype])


def same_bits(ours, theirs):
    """The same number, or NaN both."""
    width = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32}[theirs.dtype.itemsize]
    with numpy.errstate(invalid="ignore"):
        nan = numpy.isnan(theirs.astype(numpy.float32))
    assert numpy.array_equal(ours.view(width)[~nan], theirs.view(width)[~nan])
    assert numpy.isnan(ours.view(theirs.dtype)[nan].astype(numpy.float32)).all()


@host_only
@pytest.mark.parametrize("codec, stored, most", [("FP16", "F16", 65504.0), ("BF16", "BF16", 3.3895313892515355e38)])
def test_fp16_and_bf16_are_the_casts_of_numpy_and_ml_dtypes_but_for_saturation(reference, ml_dtypes, codec, stored, most):
    """FAULTS 25."""
    stored = types_of(ml_dtypes)[stored]
    x = any_bits(1 << 18)
    held = numpy.where(numpy.isfinite(x), numpy.clip(x, -most, most), x)
    coded = Coded(reference, x, "F32", codec)
    with numpy.errstate(all="ignore"):
        same_bits(coded.data.view(stored), held.astype(stored))
    same_bits(coded.back, coded.data.view(stored).astype(numpy.float32))


@host_only
@pytest.mark.parametrize("dtype", RAW)
@pytest.mark.parametrize("codec, name, most", [("FP8_E4M3", "float8_e4m3fn", 448.0), ("FP8_E5M2", "float8_e5m2", 57344.0)])
def test_fp8_codes_are_those_of_ml_dtypes(reference, ml_dtypes, dtype, codec, name, most):
    """FAULTS 25."""
    stored = numpy.dtype(getattr(ml_dtypes, name))
    x = normal((257, 129), dtype, ml_dtypes)
    x[5, :7] = [numpy.nan, -0.0, 0.0, 1e-4, -1e-5, 1e-6, 1e-7]
    coded = Coded(reference, x, dtype, codec, CHANNEL, 0)
    wide = x.astype(numpy.float32)
    assert numpy.array_equal(coded.scale, numpy.nanmax(numpy.abs(wide), axis=1) / numpy.float32(most))
    scale = coded.scale.reshape(-1, 1)
    same_bits(coded.data.view(stored).reshape(x.shape), (wide * (numpy.float32(1) / scale)).astype(stored))
    same_bits(coded.back, (coded.data.view(stored).reshape(x.shape).astype(numpy.float32) * scale).astype(x.dtype))


@host_only
@pytest.mark.parametrize("dtype", RAW)
def test_int4_lies_as_ml_dtypes_has_it_two_a_byte(reference, ml_dtypes, dtype):
    """FAULTS 25."""
    x = normal((33, 257), dtype, ml_dtypes)
    coded = Coded(reference, x, dtype, "INT4", GROUP, group=32)
    scale = coded.a_row(coded.scale, x.shape, GROUP, 0, 32)
    codes = numpy.rint(x.astype(numpy.float32) * (numpy.float32(1) / scale)).astype(ml_dtypes.int4)
    nibbles = numpy.append(codes.view(numpy.uint8).reshape(-1) & 15, numpy.zeros(x.size % 2, numpy.uint8))
    assert numpy.array_equal(coded.data, nibbles[::2] | nibbles[1::2] << 4)
    same_bits(coded.back, (codes.astype(numpy.float32) * scale).astype(x.dtype))


# ---- ONNX Runtime ----


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(number, value):
    """Of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


FLOAT, INT8 = 1, 3


def session_of(onnxruntime, operator, inputs, output, **attributes):
    """Of one node."""
    node = b"".join(field(1, name) for name in inputs) + field(2, "y") + field(4, operator)
    for name, value in attributes.items():
        node += field(5, field(1, name) + field(3, value) + field(20, 2))
    graph = field(1, node) + field(2, "g")
    for number, values in ((11, inputs), (12, {"y": output})):
        for name, kind in values.items():
            graph += field(number, field(1, name) + field(2, field(1, field(1, kind))))
    model = field(1, 10) + field(7, graph) + field(8, field(1, "") + field(2, 21))
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@with_peers
@pytest.mark.parametrize("codec", ["INT8", "INT8_ASYM"])
@pytest.mark.parametrize("granularity, axis, group", [(TENSOR, 0, 0), (CHANNEL, 0, 0), (CHANNEL, 1, 0), (GROUP, 0, 32)],
                         ids=["tensor", "channel0", "channel1", "group"])
def test_int8_is_quantised_and_dequantised_as_onnx_runtime_does(reference, ml_dtypes, onnxruntime, codec, granularity, axis, group):
    """FAULTS 25."""
    x = normal((64, 96), "F32", ml_dtypes, offset=0.7)
    coded = Coded(reference, x, "F32", codec, granularity, axis, group)
    scale, zero = coded.scale, coded.zero.astype(numpy.int8)
    if granularity == TENSOR:
        scale, zero, how = scale.reshape(()), zero.reshape(()), {}
    elif granularity == CHANNEL:
        how = {"axis": axis}
    else:
        scale, zero, how = scale.reshape(64, -1), zero.reshape(64, -1), {"axis": 1, "block_size": group}
    quantise = session_of(onnxruntime, "QuantizeLinear", {"x": FLOAT, "s": FLOAT, "z": INT8}, INT8, **how)
    dequantise = session_of(onnxruntime, "DequantizeLinear", {"x": INT8, "s": FLOAT, "z": INT8}, FLOAT, **how)
    [codes] = quantise.run(None, {"x": x, "s": scale, "z": zero})
    assert numpy.array_equal(coded.data.view(numpy.int8).reshape(x.shape), codes)
    [back] = dequantise.run(None, {"x": codes, "s": scale, "z": zero})
    same_bits(coded.back, back)
