"""Capsules of DLPack: a tensor that lies in somebody else's memory, and keeps that alive for as long as it is used.

libhbm makes the tensor and lets go of it, so that it may die where no Python can run: with an exception under way, in a
thread of the consumer's, after the interpreter.
"""
from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_void_p

from . import _c
from ._c import lib

CPU, CUDA = 1, 2
# Capsules point at them: they live as long as the process.
_NAME, _VERSIONED = c_char_p(b"dltensor"), c_char_p(b"dltensor_versioned")

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_ends = ctypes.cast(lib.hbm_dlpack_capsule_ends, c_void_p)


def capsule(claim: int, address: int, shape: tuple, dtype: tuple, device: tuple, read_only: bool, max_version):
    """A new one. Its older form has no word for read-only memory: a write into that faults."""
    versioned = max_version is not None and max_version[0] >= 1
    dims, rank = _c.dims(shape)
    what = _c.DlPack(pointer=address, device_type=device[0], device_id=device[1], code=dtype[0], bits=dtype[1],
                     rank=rank, versioned=versioned, read_only=read_only, dims=dims)
    tensor = c_void_p()
    lib.hbm_dlpack_export(claim, byref(what), byref(tensor))
    return _new(tensor, _VERSIONED if versioned else _NAME, _ends)
