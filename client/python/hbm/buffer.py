"""A buffer as this process has it mapped, and its ways out: DLPack, the CUDA array interface, memoryview, NumPy, torch.

Whatever is made from a buffer keeps its lease: the memory stays mapped until the last array, tensor or view of it is gone,
also when the Buffer or the Session have been let go of before.
"""
from __future__ import annotations

import builtins
import ctypes
import importlib.util
import weakref
from typing import NamedTuple

from . import _c, dlpack, dtypes
from ._c import lib


class Lease:
    """A lease, on a buffer or a model, and this object's claim on it: it ends with the last claim."""

    def __init__(self, session, pointer: int, claim_on):
        self.pointer, self.session = pointer, session
        claim = ctypes.c_void_p()
        claim_on(pointer, session.claim, ctypes.byref(claim))
        self.claim = _c.handle(claim)
        # Not as the interpreter ends: views may be used until then, and the process's end gives all back.
        weakref.finalize(self, lib.hbm_claim_unref, self.claim).atexit = False


_GRANULARITIES = ("tensor", "channel", "group")  # by their numbers


class Units(NamedTuple):
    """What shares one scale of an encoded buffer."""

    per: str    # "tensor", "channel" or "group"
    axis: int   # of the channels
    group: int  # elements of a group, along the last axis


class Buffer:
    """What has a name, an element type and a shape. Attached by Session.attach, Session.alloc or a Model."""

    def __init__(self, lease: Lease, info: _c.Info, owns: bool):
        self._lease: Lease | None = lease
        self._owns = owns  # owns: a lease of its own, which can be locked by itself
        self._lent = False
        self._address = info.pointer or (lib.hbm_pointer(lease.pointer) if owns else None)
        self.id: int = info.id
        self.nbytes: int = info.size
        self.name: str | None = info.name.decode() if info.name else None
        self.group: str | None = info.group.decode() if info.group else None
        self.device: int = info.device
        self.version: int = info.version
        self.readonly: bool = info.access == _c.RO
        self.dtype: str = dtypes.name(info.dtype)
        self.shape: tuple = tuple(info.dims[:info.rank]) if info.rank else _flat(info.size, self.dtype)
        self.encoding: str = _encoding_text(info.encoding)
        self.units = Units(_GRANULARITIES[info.encoding.granularity], info.encoding.axis, info.encoding.group)
        self.stored: str = self.dtype if info.encoding.codec == _c.RAW else dtypes.name(info.encoding.stored)

    def __repr__(self) -> str:
        form = "" if self.encoding == "raw" else f", {self.encoding}"
        return f"<hbm.Buffer {self.name or hex(self.id)}: {self.dtype} {list(self.shape)}{form}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a buffer without dimensions has no length")
        return self.shape[0]

    # ---- Locks ----

    def lock(self, timeout: float | None = 60.0) -> None:
        """Resident again, at the same address. NoMemory or Timeout leave it unlocked."""
        lib.hbm_lock(self._own().pointer, _c.milliseconds(timeout))

    def lock_on(self, stream, timeout: float = 60.0) -> None:
        """Locked for the work of that stream, which waits for the bytes: the call does not, where there is a GPU. Where they do not
        come, unlock() raises what happened, and the work has to be thrown away."""
        lib.hbm_lock_on(self._own().pointer, _c.stream(stream), _c.milliseconds(timeout))

    def unlock(self, *streams) -> None:
        """It may move once the work queued on these streams until now has finished; without any: its work is done.
        Arrays made from it must not be used until it is locked again."""
        lib.hbm_unlock(self._own().pointer, *_c.streams(streams))

    def detach(self) -> None:
        """Lets go: the lease ends with the last array made from it. Nothing else can be done with this object then."""
        if not self._lent:
            self._lease = None

    def _held(self) -> Lease:
        if self._lease is None:
            raise ValueError(f"{self!r} was detached")
        return self._lease

    def _own(self) -> Lease:
        lease = self._held()
        if not self._owns:
            raise ValueError(f"{self!r} is locked and unlocked with its model: Model.lock(group), Model.unlock(group)")
        return lease

    @property
    def tier(self) -> str:
        """Of what is mapped now, of a buffer attached by itself: "device" or "host"."""
        info = _c.Info()
        lib.hbm_lease_info(self._own().pointer, ctypes.byref(info))
        return lib.hbm_tier_name(info.tier).decode()

    # ---- Ways out ----

    @property
    def address(self) -> int:
        """Of its first byte: on the device, or in host memory where that is the device."""
        self._held()
        if not self._address and self.nbytes:
            raise BufferError(f"{self!r} is not mapped: lock it first")
        return self._address or 0

    @property
    def is_cuda(self) -> bool:
        return self._held().session.is_cuda(self.device)

    def _host_bytes(self) -> memoryview:
        if self.is_cuda:
            raise BufferError(f"{self!r} lies on a GPU: use torch, CuPy or JAX (hbm.to_torch, __dlpack__)")
        array = (ctypes.c_char * self.nbytes).from_address(self.address) if self.nbytes else (ctypes.c_char * 0)()
        array.lease = self._held()  # type: ignore[attr-defined]
        view = memoryview(array).cast("B")
        return view.toreadonly() if self.readonly else view

    def memoryview(self) -> memoryview:
        """The bytes, where host memory is the device."""
        return self._host_bytes()

    def __buffer__(self, _flags) -> builtins.memoryview:  # Python 3.12 and newer
        return self._host_bytes()

    def numpy(self):
        """The stored elements as a NumPy array that shares the memory."""
        import numpy

        array = numpy.frombuffer(self._host_bytes(), dtype=numpy.uint8)
        return array.view(dtypes.to_numpy(self.stored)).reshape(self.shape)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"{self!r} as {dtype} would be a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple:
        if not self.is_cuda:
            return dlpack.CPU, 0
        return dlpack.CUDA, _cuda_ordinal(self.address)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """No stream of ours writes here, so there is nothing for the consumer's to wait for."""
        del stream
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("it is shared where it lies: no copies are made")
        return self._capsule(dtypes.to_dlpack(self.stored), self.shape, max_version)

    def _capsule(self, dtype: tuple, shape: tuple, max_version=None):
        return dlpack.capsule(self._held().claim, self.address, shape, dtype, self.__dlpack_device__(), self.readonly,
                              max_version)

    @property
    def __cuda_array_interface__(self) -> dict:
        if not self.is_cuda:
            raise AttributeError("it lies in host memory")
        typestr = dtypes.to_numpy(self.stored).str
        self._lent = True  # a consumer keeps this object, and cannot be told
        return {"shape": self.shape, "typestr": typestr, "data": (self.address, self.readonly), "version": 3}


class _AsBytes:
    """For types that DLPack has no code for: the bytes, to be viewed as what they are."""

    def __init__(self, buffer: Buffer):
        self._buffer = buffer

    def __dlpack_device__(self):
        return self._buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        del stream
        return self._buffer._capsule((1, 8), (self._buffer.nbytes,), max_version)


def to_torch(buffer: Buffer):
    """A torch tensor of the stored elements that shares the memory. torch knows no read-only tensors: a write into one
    of a read-only lease ends the process, on the host by SIGSEGV, on a GPU by an illegal address."""
    import torch

    wanted = dtypes.to_torch(buffer.stored)
    if 0 in buffer.shape:
        return torch.empty(buffer.shape, dtype=wanted)
    return torch.from_dlpack(_AsBytes(buffer)).view(wanted).reshape(buffer.shape)


def to_framework(buffer: Buffer, framework: str):
    """"numpy", "torch", "cupy", "jax", or "buffer" for the Buffer itself."""
    if framework == "buffer":
        return buffer
    if framework == "numpy":
        return buffer.numpy()
    if framework == "torch":
        return to_torch(buffer)
    if framework == "cupy":
        import cupy

        return cupy.from_dlpack(buffer)
    if framework == "jax":
        import jax

        return jax.dlpack.from_dlpack(buffer)
    raise ValueError(f"framework {framework!r}: numpy, torch, cupy, jax or buffer")


def framework_here(is_cuda: bool) -> str:
    """What there is for memory on a GPU, or in host memory."""
    for framework in ("torch", "cupy", "jax") if is_cuda else ("torch", "jax", "numpy"):
        if importlib.util.find_spec(framework):
            return framework
    raise ImportError("there is no torch, CuPy or JAX here" if is_cuda else "there is no torch, JAX or NumPy here") from None


def _flat(nbytes: int, dtype: str) -> tuple:
    """Without dimensions it is one element, or a run of them."""
    n = nbytes * 8 // dtypes.bits(dtype)
    return () if n == 1 else (n,)


def _encoding_text(encoding: _c.Encoding) -> str:
    text = ctypes.create_string_buffer(64)
    lib.hbm_encoding_text(ctypes.byref(encoding), text, 64)
    return text.value.decode()


_libcuda = None


def _cuda_ordinal(address: int) -> int:
    """This process's number of the GPU that the address belongs to."""
    global _libcuda
    ordinal = ctypes.c_int()
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    if _libcuda is None:
        _libcuda = ctypes.CDLL("libcuda.so.1")
    result = _libcuda.cuPointerGetAttribute(ctypes.byref(ordinal), device_ordinal, ctypes.c_uint64(address))
    if result:
        raise BufferError(f"the driver does not know the address {address:#x} (CUresult {result})")
    return ordinal.value
