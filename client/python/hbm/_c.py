"""libhbm through ctypes: what client/hbm.h declares, in its order, and how its errors become exceptions.

ctypes lets go of the interpreter's lock during a call, so that other threads go on while one waits for the daemon.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p

from .errors import error_of

RANK_MAX = 8
FOREVER = 0xFFFFFFFF
ANY_DEVICE = 0xFFFFFFFF

RO, RW = 0, 1
NO_THREAD, NO_RECONNECT = 1, 2
WAIT, UNLOCKED, KEEP, SHARED, REPLACE, FORCE, LIVE, IN_PLACE, FORGET = 1, 2, 4, 8, 16, 32, 64, 128, 256
PER_TENSOR, PER_CHANNEL, PER_GROUP = 0, 1, 2
RAW = 0
MOMENTUM = 0.99


class Options(ctypes.Structure):
    _fields_ = [("runtime_dir", c_char_p), ("socket", c_char_p), ("client", c_char_p), ("flags", c_uint),
                ("reconnect_ms", c_uint32), ("server_uid", c_uint32)]


class DeviceInfo(ctypes.Structure):
    _fields_ = [("uuid", c_char * 48), ("name", c_char * 64), ("is_cuda", c_int), ("ready", c_int),
                ("capacity", c_uint64), ("used", c_uint64)]


class Spec(ctypes.Structure):
    _fields_ = [("size", c_uint64), ("device", c_uint32), ("dtype", c_uint32), ("rank", c_uint32),
                ("handle", c_uint32), ("mode", c_uint32), ("flags", c_uint32), ("name", c_char_p),
                ("group", c_char_p), ("dims", c_uint64 * RANK_MAX)]


class Encoding(ctypes.Structure):
    _fields_ = [("codec", c_uint8), ("granularity", c_uint8), ("axis", c_uint8), ("stored", c_uint8),
                ("group", c_uint32)]


class Info(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("pointer", c_void_p), ("size", c_uint64), ("name", c_char_p), ("group", c_char_p),
                ("device", c_uint32), ("dtype", c_uint32), ("rank", c_uint32), ("version", c_uint32),
                ("access", c_uint32), ("handle", c_uint32), ("dims", c_uint64 * RANK_MAX), ("encoding", Encoding),
                ("tier", c_uint32)]


class PublishBuffer(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("group", c_char_p), ("dtype", c_uint32), ("rank", c_uint32),
                ("dims", c_uint64 * RANK_MAX)]


class Publish(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("key", c_char_p), ("device", c_uint32), ("mode", c_uint32), ("flags", c_uint32),
                ("metadata", c_void_p), ("metadata_size", c_size_t), ("buffers", POINTER(PublishBuffer)),
                ("n_buffers", c_uint)]


class Range(ctypes.Structure):
    _fields_ = [("buffer", c_uint64), ("buffer_offset", c_uint64), ("file_offset", c_uint64), ("bytes", c_uint64)]


class Receipt(ctypes.Structure):
    _fields_ = [("bytes_before", c_uint64), ("bytes_after", c_uint64), ("sqnr_db", c_double),
                ("max_abs_error", c_double), ("clipped_fraction", c_double), ("seconds", c_double),
                ("elements", c_uint64), ("nonfinite", c_uint64)]


class Compress(ctypes.Structure):
    _fields_ = [("sel", c_char_p), ("as_name", c_char_p), ("codec", c_uint), ("granularity", c_uint),
                ("axis", c_uint), ("group", c_uint), ("copy", c_int), ("park", c_int),
                ("min_sqnr_db", c_double), ("max_error", c_double), ("calibrate", c_char_p), ("observed", c_char_p)]


class Observation(ctypes.Structure):
    _fields_ = [("batches", c_uint64), ("elements", c_uint64), ("nonfinite", c_uint64), ("lo", c_float), ("hi", c_float),
                ("average_lo", c_float), ("average_hi", c_float), ("last_lo", c_float), ("last_hi", c_float),
                ("imported", c_uint32), ("unused", c_uint32)]


class OpStatus(ctypes.Structure):
    _fields_ = [("done", c_int), ("error", c_int), ("bytes_done", c_uint64), ("bytes_total", c_uint64),
                ("receipt", Receipt)]


class DlPack(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("device_type", c_uint32), ("device_id", c_uint32), ("code", c_uint32),
                ("bits", c_uint32), ("rank", c_uint32), ("versioned", c_uint32), ("read_only", c_uint32),
                ("dims", c_uint64 * RANK_MAX)]


# By the name of the C struct: a test holds them against the header.
STRUCTS = {"hbm_options": Options, "hbm_device_info": DeviceInfo, "hbm_spec": Spec, "hbm_encoding": Encoding,
           "hbm_info": Info, "hbm_publish_buffer": PublishBuffer, "hbm_publish": Publish, "hbm_range": Range,
           "hbm_receipt": Receipt, "hbm_compress": Compress, "hbm_observation": Observation, "hbm_op_status": OpStatus,
           "hbm_dlpack": DlPack}

_HANDLE = c_void_p
_OUT = POINTER(c_void_p)
_STREAMS = POINTER(c_void_p)

# name: argument types of calls that return 0 (or a count) or a negative error.
_CALLS = {
    "hbm_open": [POINTER(Options), _OUT],
    "hbm_event_fd": [_HANDLE],
    "hbm_dispatch": [_HANDLE],
    "hbm_device_count": [_HANDLE],
    "hbm_device_get": [_HANDLE, c_uint, POINTER(DeviceInfo)],
    "hbm_alloc": [_HANDLE, POINTER(Spec), _OUT],
    "hbm_attach": [_HANDLE, c_char_p, c_uint, c_uint, c_uint32, _OUT],
    "hbm_attach_id": [_HANDLE, c_uint64, c_uint, c_uint, c_uint32, _OUT],
    "hbm_detach": [_HANDLE],
    "hbm_free": [_HANDLE, c_uint64],
    "hbm_unlock": [_HANDLE, _STREAMS, c_uint],
    "hbm_lock": [_HANDLE, c_uint32],
    "hbm_lock_on": [_HANDLE, c_void_p, c_uint32],
    "hbm_lock_many": [POINTER(c_void_p), c_uint, c_uint32],
    "hbm_safepoint": [_HANDLE, _STREAMS, c_uint, c_uint32],
    "hbm_publish_begin": [_HANDLE, POINTER(Publish), c_uint32, _OUT, POINTER(c_int)],
    "hbm_publish_commit": [_HANDLE],
    "hbm_publish_abort": [_HANDLE],
    "hbm_model_attach": [_HANDLE, c_char_p, c_uint, c_uint, c_uint32, _OUT],
    "hbm_model_detach": [_HANDLE],
    "hbm_model_find": [_HANDLE, c_char_p],
    "hbm_model_unlock": [_HANDLE, c_char_p, _STREAMS, c_uint],
    "hbm_model_lock": [_HANDLE, c_char_p, c_uint32],
    "hbm_model_lock_on": [_HANDLE, c_char_p, c_void_p, c_uint32],
    "hbm_model_order": [_HANDLE, POINTER(c_char_p), c_uint, c_uint],
    "hbm_model_window": [_HANDLE, c_uint, c_uint],
    "hbm_fill": [_HANDLE, c_int, POINTER(Range), c_uint, _OUT],
    "hbm_write_out": [_HANDLE, c_int, POINTER(Range), c_uint, _OUT],
    "hbm_compress": [_HANDLE, POINTER(Compress), POINTER(Receipt), _OUT],
    "hbm_decompress": [_HANDLE, c_char_p, _OUT],
    "hbm_observe": [_HANDLE, c_char_p, c_double, c_uint, _OUT],
    "hbm_observed": [_HANDLE, c_char_p, POINTER(Observation)],
    "hbm_offload": [_HANDLE, c_char_p, c_uint, c_uint, _OUT],
    "hbm_restore": [_HANDLE, c_char_p, _OUT],
    "hbm_prefetch": [_HANDLE, c_char_p, _OUT],
    "hbm_op_wait": [_HANDLE, c_uint32, POINTER(OpStatus)],
    "hbm_op_cancel": [_HANDLE],
    "hbm_claim_session": [_HANDLE, _OUT],
    "hbm_claim_lease": [_HANDLE, _HANDLE, _OUT],
    "hbm_claim_model": [_HANDLE, _HANDLE, _OUT],
    "hbm_torch_use": [_HANDLE, c_char_p],
    "hbm_torch_unlock": [c_char_p, _STREAMS, c_uint],
    "hbm_torch_lock": [c_char_p, c_uint32],
    "hbm_dlpack_export": [_HANDLE, POINTER(DlPack), _OUT],
}

# name: (result, argument types) of calls that cannot fail, or say so by their result.
_PLAIN = {
    "hbm_strerror": (c_char_p, [c_int]),
    "hbm_last_error_detail": (c_char_p, []),
    "hbm_error_name": (c_char_p, [c_int]),
    "hbm_close": (None, [_HANDLE]),
    "hbm_lease_info": (None, [_HANDLE, POINTER(Info)]),
    "hbm_pointer": (c_void_p, [_HANDLE]),
    "hbm_model_count": (c_uint, [_HANDLE]),
    "hbm_model_buffer": (None, [_HANDLE, c_uint, POINTER(Info)]),
    "hbm_model_metadata": (c_void_p, [_HANDLE, POINTER(c_size_t)]),
    "hbm_op_id": (c_uint64, [_HANDLE]),
    "hbm_op_free": (c_void_p, [_HANDLE]),
    "hbm_claim_ref": (c_void_p, [_HANDLE]),
    "hbm_claim_unref": (None, [_HANDLE]),
    "hbm_claim_disown": (None, [_HANDLE]),
    "hbm_dlpack_capsule_ends": (None, [_HANDLE]),
    "hbm_torch_alloc": (c_void_p, [c_size_t, c_int, c_void_p]),
    "hbm_torch_free": (None, [c_void_p, c_size_t, c_int, c_void_p]),
    "hbm_dtype_name": (c_char_p, [c_uint]),
    "hbm_dtype_by_name": (c_int, [c_char_p]),
    "hbm_dtype_bits": (c_uint, [c_uint]),
    "hbm_codec_name": (c_char_p, [c_uint]),
    "hbm_codec_by_name": (c_int, [c_char_p]),
    "hbm_tier_by_name": (c_int, [c_char_p]),
    "hbm_tier_name": (c_char_p, [c_uint]),
    "hbm_encoding_text": (None, [POINTER(Encoding), c_char_p, ctypes.c_ulong]),
}


def _load() -> ctypes.CDLL:
    """HBM_LIBRARY names the file; else it is where the system's linker finds it."""
    named = os.environ.get("HBM_LIBRARY")
    try:
        return ctypes.CDLL(named or "libhbm.so.0")
    except OSError as error:
        raise ImportError(f"libhbm cannot be loaded: {error}; install it (make install), or name the file in "
                          "HBM_LIBRARY") from None


lib = _load()


def _check(result: int, function, _arguments) -> int:
    if result < 0:
        raise error_of(lib.hbm_error_name(result).decode(), result, lib.hbm_last_error_detail().decode())
    return result


for _name, _arguments in _CALLS.items():
    _function = getattr(lib, _name)
    _function.argtypes, _function.restype, _function.errcheck = _arguments, c_int, _check
for _name, (_result, _arguments) in _PLAIN.items():
    _function = getattr(lib, _name)
    _function.argtypes, _function.restype = _arguments, _result


def handle(pointer: c_void_p) -> int:
    """What a call has put there."""
    return pointer.value or 0


def text(value: str | None) -> bytes | None:
    """A C string; NUL would end it early, and another object be meant."""
    if value is None:
        return None
    if "\0" in value:
        raise ValueError(f"a NUL in {value!r}")
    return value.encode()


def milliseconds(seconds: float | None) -> int:
    """None: for ever."""
    if seconds is None:
        return FOREVER
    if seconds < 0:
        raise ValueError(f"{seconds} s is no time to wait")
    return min(int(seconds * 1000), FOREVER - 1)


def stream(value) -> int:
    """A CUstream handle: an integer, torch's stream (cuda_stream), CuPy's (ptr)."""
    if isinstance(value, int):
        return value
    return value.cuda_stream if hasattr(value, "cuda_stream") else value.ptr


def streams(values) -> tuple:
    handles = [stream(value) for value in values]
    return ((c_void_p * len(handles))(*handles) if handles else None), len(handles)


def dims(shape) -> tuple:
    """A shape as C has it, and its rank."""
    shape = tuple(int(n) for n in shape)
    if len(shape) > RANK_MAX or any(n < 0 for n in shape):
        raise ValueError(f"shape {shape}: at most {RANK_MAX} dimensions, none negative")
    return (c_uint64 * RANK_MAX)(*shape), len(shape)
