"""Element types: by libhbm's (safetensors') name, and what NumPy, DLPack and torch call them."""
from __future__ import annotations

from typing import NamedTuple

from . import _c


class _Row(NamedTuple):
    numpy: str            # a typestr, or a type of ml_dtypes
    dlpack: tuple | None  # (code, bits); None: goes as bytes
    torch: str


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

_ROWS = {
    "U8": _Row("|u1", (_UINT, 8), "uint8"), "I8": _Row("|i1", (_INT, 8), "int8"),
    "BOOL": _Row("|b1", (_BOOL, 8), "bool"),
    "U16": _Row("<u2", (_UINT, 16), "uint16"), "I16": _Row("<i2", (_INT, 16), "int16"),
    "U32": _Row("<u4", (_UINT, 32), "uint32"), "I32": _Row("<i4", (_INT, 32), "int32"),
    "U64": _Row("<u8", (_UINT, 64), "uint64"), "I64": _Row("<i8", (_INT, 64), "int64"),
    "F16": _Row("<f2", (_FLOAT, 16), "float16"), "BF16": _Row("bfloat16", (_BFLOAT, 16), "bfloat16"),
    "F32": _Row("<f4", (_FLOAT, 32), "float32"), "F64": _Row("<f8", (_FLOAT, 64), "float64"),
    "C64": _Row("<c8", (_COMPLEX, 64), "complex64"),
    "F8_E4M3": _Row("float8_e4m3fn", None, "float8_e4m3fn"), "F8_E5M2": _Row("float8_e5m2", None, "float8_e5m2"),
    "F8_E8M0": _Row("float8_e8m0fnu", None, "float8_e8m0fnu"),
}


def number(name: str) -> int:
    found = _c.lib.hbm_dtype_by_name(_c.text(name))
    if found < 0:
        raise ValueError(f"no element type is called {name!r}; they are named as in safetensors: F32, BF16, I8 ...")
    return found


def name(dtype: int) -> str:
    return _c.lib.hbm_dtype_name(dtype).decode()


def bits(dtype: str) -> int:
    return _c.lib.hbm_dtype_bits(number(dtype))


def _row(dtype: str) -> _Row:
    try:
        return _ROWS[dtype]
    except KeyError:
        raise TypeError(f"{dtype} has elements smaller than a byte, which no array here can hold; "
                        "take its bytes by memoryview()") from None


def to_numpy(dtype: str):
    """A numpy.dtype. bfloat16 and the eight-bit floats are ml_dtypes'."""
    import numpy

    wanted = _row(dtype).numpy
    if wanted[0] in "<|":
        return numpy.dtype(wanted)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy has no {dtype}; install ml_dtypes, or take the bytes by memoryview()") from None
    return numpy.dtype(getattr(ml_dtypes, wanted))


def to_dlpack(dtype: str) -> tuple:
    found = _row(dtype).dlpack
    if found is None:
        raise BufferError(f"{dtype} does not travel by DLPack; use hbm.to_torch, or take the bytes by memoryview()")
    return found


def to_torch(dtype: str):
    import torch

    found = getattr(torch, _row(dtype).torch, None)
    if found is None:
        raise TypeError(f"this torch has no {dtype}")
    return found


_BY_TEXT = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
            "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
            **{f"{sign}int{n}": f"{letter}{n}" for sign, letter in (("", "I"), ("u", "U")) for n in (8, 16, 32, 64)}}


def of_array(dtype) -> str:
    """The name of a NumPy, CuPy, JAX or torch dtype."""
    text = str(dtype).removeprefix("torch.")
    if text not in _BY_TEXT:
        raise TypeError(f"no element type of hbm is a {dtype}")
    return _BY_TEXT[text]
