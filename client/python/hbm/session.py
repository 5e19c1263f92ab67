"""A connection to hbmd, and everything that is asked over it."""
from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_int, c_void_p
from typing import NamedTuple

from . import _c, dtypes, rpc
from ._c import lib
from .buffer import Buffer, Lease
from .errors import NotFound, error_of
from .model import Build, Model
from .op import Observation, Op
from .suggest import did_you_mean, published


class Device(NamedTuple):
    index: int  # type: ignore[assignment]  # of a tuple, its method
    uuid: str
    name: str
    is_cuda: bool
    ready: bool
    capacity: int
    used: int


class _Connection:
    """The session in C. It is closed after the last lease of it."""

    def __init__(self, pointer: int):
        self.pointer = pointer
        self._cuda: dict[int, bool] = {}
        claim = c_void_p()
        lib.hbm_claim_session(pointer, byref(claim))
        self.claim = _c.handle(claim)
        weakref.finalize(self, lib.hbm_claim_unref, self.claim).atexit = False

    def device(self, index: int) -> Device:
        info = _c.DeviceInfo()
        lib.hbm_device_get(self.pointer, index, byref(info))
        return Device(index, info.uuid.decode(), info.name.decode(), bool(info.is_cuda), bool(info.ready),
                      info.capacity, info.used)

    def is_cuda(self, index: int) -> bool:
        if index not in self._cuda:
            self._cuda[index] = self.device(index).is_cuda
        return self._cuda[index]


class Session:
    """Thread-safe. After fork the child opens its own."""

    def __init__(self, runtime_dir: str | os.PathLike | None = None, *, socket: str | os.PathLike | None = None,
                 client: str | None = None, reconnect: float | None = None, server_uid: int = 0):
        """runtime_dir None: HBM_RUNTIME_DIR, else /run/hbmd, else $XDG_RUNTIME_DIR/hbmd. reconnect: seconds that calls
        wait for a daemon that went away (None: 10; 0: not at all)."""
        flags = _c.NO_RECONNECT if reconnect == 0 else 0
        options = _c.Options(runtime_dir=_path(runtime_dir), socket=_path(socket), client=_c.text(client), flags=flags,
                             reconnect_ms=_c.milliseconds(reconnect) if reconnect else 0, server_uid=server_uid)
        pointer = c_void_p()
        lib.hbm_open(byref(options), byref(pointer))
        self._runtime_dir = runtime_dir or (os.path.dirname(os.fspath(socket)) if socket else None)
        self._connection: _Connection | None = _Connection(_c.handle(pointer))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """No more calls. The connection ends once the last buffer and array of the session is gone as well."""
        self._connection = None

    @property
    def _pointer(self) -> int:
        return self._open().pointer

    def _open(self) -> _Connection:
        if self._connection is None:
            raise ValueError("the session is closed")
        return self._connection

    def devices(self) -> list[Device]:
        connection = self._open()
        return [connection.device(i) for i in range(lib.hbm_device_count(connection.pointer))]

    # ---- Buffers ----

    def alloc(self, shape, dtype: str = "U8", *, name: str | None = None, group: str | None = None,
              device: int = _c.ANY_DEVICE, mode: int = 0o600, keep: bool = False, shared: bool = False) -> Buffer:
        """Zeroed memory, writable and locked. Freed with its last lease unless keep."""
        dims, rank = _c.dims((shape,) if isinstance(shape, int) else shape)
        if not rank:
            raise ValueError("a buffer has a dimension at least: (1,) is one element")
        spec = _c.Spec(device=device, dtype=dtypes.number(dtype), rank=rank, mode=mode, name=_c.text(name),
                       group=_c.text(group), dims=dims, flags=(_c.KEEP if keep else 0) | (_c.SHARED if shared else 0))
        pointer = c_void_p()
        lib.hbm_alloc(self._pointer, byref(spec), byref(pointer))
        return self._buffer(_c.handle(pointer))

    def attach(self, what: str | int, *, write: bool = False, unlocked: bool = False, in_place: bool = False,
               timeout: float | None = 60.0) -> Buffer:
        """By name or id; waits for it to come back from another tier. in_place: host memory is mapped as it lies."""
        pointer = c_void_p()
        how = (_c.RW if write else _c.RO, _where(unlocked, in_place), _c.milliseconds(timeout), byref(pointer))
        if isinstance(what, int):
            lib.hbm_attach_id(self._pointer, what, *how)
        else:
            lib.hbm_attach(self._pointer, _c.text(what), *how)
        return self._buffer(_c.handle(pointer))

    def _buffer(self, pointer: int) -> Buffer:
        info = _c.Info()
        lib.hbm_lease_info(pointer, byref(info))
        return Buffer(Lease(self._open(), pointer, lib.hbm_claim_lease), info, owns=True)

    def free(self, what: Buffer | int) -> None:
        """Busy while anyone leases it, this process included."""
        lib.hbm_free(self._pointer, what if isinstance(what, int) else what.id)

    def lock(self, buffers: Iterable[Buffer], timeout: float | None = 60.0) -> None:
        """All or none."""
        pointers = [buffer._own().pointer for buffer in buffers]
        lib.hbm_lock_many((c_void_p * len(pointers))(*pointers), len(pointers), _c.milliseconds(timeout))

    def safepoint(self, *streams, timeout: float | None = 60.0) -> None:
        """Between steps: what the daemon wants back it gets, and returns."""
        lib.hbm_safepoint(self._pointer, *_c.streams(streams), _c.milliseconds(timeout))

    # ---- Models ----

    def model(self, name: str, *, write: bool = False, unlocked: bool = False, in_place: bool = False, wait: bool = False,
              timeout: float | None = 60.0) -> Model:
        """All of a published model by one request. wait: for one that is being built."""
        pointer = c_void_p()
        flags = _where(unlocked, in_place) | (_c.WAIT if wait else 0)
        try:
            lib.hbm_model_attach(self._pointer, _c.text(name), _c.RW if write else _c.RO, flags, _c.milliseconds(timeout),
                                 byref(pointer))
        except NotFound as error:
            sentence = str(error) + did_you_mean(name, published(self._runtime_dir))
            raise error_of(error.name, error.code, sentence) from None
        return Model(Lease(self._open(), _c.handle(pointer), lib.hbm_claim_model), name)

    def build(self, name: str, tensors: Mapping[str, tuple], *, key: str | None = None, metadata: bytes = b"",
              group: Callable[[str], str] | None = None, device: int = _c.ANY_DEVICE, mode: int = 0o600,
              shared: bool = False, replace: bool = False, wait: bool = True, mapped: bool = True,
              timeout: float | None = 60.0) -> Build | Model:
        """Single flight: the first to ask gets a Build to fill, the others, when it is committed, the Model.
        tensors: name -> (dtype, shape). group: the layer of a tensor; buffers of one lie and move together."""
        group = group or layer_of
        rows = (_c.PublishBuffer * len(tensors))()
        for row, (tensor, (dtype, shape)) in zip(rows, tensors.items()):
            row.name, row.group = _c.text(tensor), _c.text(group(tensor))
            row.dtype = dtypes.number(dtype)
            row.dims, row.rank = _c.dims(shape)
        flags = ((_c.SHARED if shared else 0) | (_c.REPLACE if replace else 0) | (_c.WAIT if wait else 0) |
                 (0 if mapped else _c.UNLOCKED))
        blob = ctypes.create_string_buffer(metadata, len(metadata)) if metadata else None
        spec = _c.Publish(name=_c.text(name), key=_c.text(key), device=device, mode=mode, flags=flags,
                          metadata=ctypes.cast(blob, c_void_p) if blob else None, metadata_size=len(metadata),
                          buffers=rows, n_buffers=len(rows))
        pointer, must_build = c_void_p(), c_int()
        lib.hbm_publish_begin(self._pointer, byref(spec), _c.milliseconds(timeout), byref(pointer), byref(must_build))
        if must_build.value:
            return Build(Lease(self._open(), _c.handle(pointer), lib.hbm_claim_model), name)
        return Model(Lease(self._open(), _c.handle(pointer), lib.hbm_claim_model), name)

    def fill(self, fd: int, ranges: Iterable[tuple]) -> Op:
        """The daemon reads ranges of an open file into buffers: (buffer id, offset in it, offset in the file, bytes)."""
        rows = [_c.Range(*row) for row in ranges]
        return self._op(lambda out: lib.hbm_fill(self._pointer, fd, (_c.Range * len(rows))(*rows), len(rows), out))

    def sleep(self, name: str, to: str = "host", *, codec: str | None = None, timeout: float | None = None) -> None:
        """The whole model off the device, to "host" or "disk", past the offload limit; codec: encoded so meanwhile. Returns
        when it is there. For who may write the model."""
        rpc.call(self._runtime_dir, "hbm.sleep", {"model": name, "to": to, **({"codec": codec} if codec else {})}, timeout)

    def wake(self, name: str, *, timeout: float | None = None) -> None:
        """All of it back, layer by layer in its order of use. Each can be locked as soon as it is there."""
        rpc.call(self._runtime_dir, "hbm.wake", {"model": name}, timeout)

    # ---- Operations: each returns an Op; wait() for it, or go on ----

    def _op(self, call) -> Op:
        pointer = c_void_p()
        call(byref(pointer))
        return Op(self._open(), _c.handle(pointer))

    def offload(self, sel: str, to: str = "host", *, force: bool = False, live: bool = False) -> Op:
        """sel: a name, a glob, "id:0x...", "group:NAME" or "model:NAME"; to: "host" or "disk". live: those who have it
        attached go on with it in host memory, from their next safe point on."""
        tier = lib.hbm_tier_by_name(_c.text(to))
        if tier < 0:
            raise ValueError(f"there is no tier {to!r}")
        flags = (_c.FORCE if force else 0) | (_c.LIVE if live else 0)
        return self._op(lambda out: lib.hbm_offload(self._pointer, _c.text(sel), tier, flags, out))

    def restore(self, sel: str) -> Op:
        return self._op(lambda out: lib.hbm_restore(self._pointer, _c.text(sel), out))

    def prefetch(self, sel: str) -> Op:
        """Restore as a hint: what there is no room for stays away."""
        return self._op(lambda out: lib.hbm_prefetch(self._pointer, _c.text(sel), out))

    def decompress(self, sel: str) -> Op:
        return self._op(lambda out: lib.hbm_decompress(self._pointer, _c.text(sel), out))

    def observe(self, sel: str, *, momentum: float = _c.MOMENTUM, forget: bool = False) -> Op:
        """What is in these buffers now is one more batch: its range is added to those of the batches before. What writes it
        must be done (synchronize first), and the next may be written when the op has ended. momentum: how much of the moving
        average a batch leaves. forget: counts nothing, and forgets what was observed."""
        return self._op(lambda out: lib.hbm_observe(self._pointer, _c.text(sel), momentum, _c.FORGET if forget else 0, out))

    def observed(self, name: str) -> Observation:
        """What was observed of a buffer so far; NotFound where that is nothing."""
        seen = _c.Observation()
        lib.hbm_observed(self._pointer, _c.text(name), byref(seen))
        return Observation(seen.batches, seen.elements, seen.nonfinite, (seen.lo, seen.hi), (seen.average_lo, seen.average_hi),
                           (seen.last_lo, seen.last_hi), bool(seen.imported))

    def compress(self, sel: str, codec: str, *, per: str = "tensor", axis: int = 0, group: int = 0, copy: bool = False,
                 park: bool = False, as_name: str | None = None, min_sqnr_db: float = 0, max_error: float = 0,
                 calibrate: str | None = None, observed: str | None = None) -> Op:
        """per: "tensor", "channel" (of axis) or "group" (of so many). wait() gives the receipt. Of int8-split, axis says of which
        axis the loudest channels stay in fp16, group how many (0: one of a hundred).
        park: not now, but whenever it leaves the device; on the device it stays as it is.
        calibrate: by what the range is chosen, as `hbmctl compress --calibrate` has it: "minmax", "percentile:99.9", "mse",
        "entropy", "range:4", "observed", "observed:mse", ...; observed: the buffer whose observed ranges are used."""
        found = lib.hbm_codec_by_name(_c.text(codec))
        if found < 0:
            raise ValueError(f"there is no codec {codec!r}")
        granularity = {"tensor": _c.PER_TENSOR, "channel": _c.PER_CHANNEL, "group": _c.PER_GROUP}[per]
        spec = _c.Compress(sel=_c.text(sel), as_name=_c.text(as_name), codec=found, granularity=granularity, axis=axis,
                           group=group, copy=copy, park=park, min_sqnr_db=min_sqnr_db, max_error=max_error,
                           calibrate=_c.text(calibrate), observed=_c.text(observed))
        return self._op(lambda out: lib.hbm_compress(self._pointer, byref(spec), None, out))


def _where(unlocked: bool, in_place: bool) -> int:
    return (_c.UNLOCKED if unlocked else 0) | (_c.IN_PLACE if in_place else 0)


_GROUP_BYTES = 127
_REST = "_"


def layer_of(tensor: str) -> str:
    """The group that `hbmctl load` gives a tensor: its name through the first numeric component."""
    parts = tensor.split(".")
    for i, part in enumerate(parts):
        if part.isascii() and part.isdigit():
            group = ".".join(parts[:i + 1])
            return group if len(group.encode()) <= _GROUP_BYTES else _REST
    return _REST


def _path(path) -> bytes | None:
    return None if path is None else os.fsencode(path)
