"""A published set of buffers: attached, or being built by this process."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence

from . import _c, quantised
from ._c import lib
from .buffer import Buffer, Lease, framework_here
from .errors import NotFound
from .suggest import did_you_mean


class Model(Mapping):
    """Tensor name -> Buffer. Its lease ends when it and everything made of its buffers are gone."""

    def __init__(self, lease: Lease, name: str):
        self.name = name
        self._lease: Lease | None = lease
        self._rows: dict[str, int] = {}
        self.groups: list[str] = []
        info = _c.Info()
        for i in range(lib.hbm_model_count(lease.pointer)):
            lib.hbm_model_buffer(lease.pointer, i, ctypes.byref(info))
            self._rows[info.name.decode()] = i
            group = info.group.decode() if info.group else ""
            if group not in self.groups:
                self.groups.append(group)

    def __repr__(self) -> str:
        return f"<hbm.Model {self.name}: {len(self)} buffers in {len(self.groups)} groups>"

    def _held(self) -> Lease:
        if self._lease is None:
            raise ValueError(f"model {self.name} was detached")
        return self._lease

    def __getitem__(self, tensor: str) -> Buffer:
        info = _c.Info()
        row = self._rows.get(tensor)
        if row is None:
            raise NotFound(f"model {self.name} has no tensor {tensor!r}{did_you_mean(tensor, self._rows)}")
        lib.hbm_model_buffer(self._held().pointer, row, ctypes.byref(info))
        return Buffer(self._held(), info, owns=False)

    def __contains__(self, tensor) -> bool:
        return tensor in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def metadata(self) -> bytes:
        """What its publisher left with it: of `hbmctl load` the safetensors header."""
        size = ctypes.c_size_t()
        at = lib.hbm_model_metadata(self._held().pointer, ctypes.byref(size))
        return ctypes.string_at(at, size.value) if at else b""

    def tensors(self, framework: str | None = None) -> dict:
        """All of them, sharing the memory: "torch", "cupy", "jax" or "numpy" arrays, or "buffer" (None: of the first of
        these that is here). Encoded ones come with their scales, as Quantised."""
        return quantised.tensors(self, framework or self._framework())

    def _framework(self) -> str:
        return framework_here(any(buffer.is_cuda for buffer in self.values()))

    def lock(self, group: str | None = None, timeout: float | None = 60.0) -> None:
        """One group (None: all) resident again, at the same addresses."""
        lib.hbm_model_lock(self._held().pointer, _c.text(group), _c.milliseconds(timeout))

    def lock_on(self, group: str | None, stream, timeout: float = 60.0) -> None:
        """One group (None: all), for the work of that stream: see Buffer.lock_on()."""
        lib.hbm_model_lock_on(self._held().pointer, _c.text(group), _c.stream(stream), _c.milliseconds(timeout))

    def unlock(self, group: str | None = None, *streams) -> None:
        """It may move once the work queued on these streams until now has finished; without any: its work is done."""
        lib.hbm_model_unlock(self._held().pointer, _c.text(group), *_c.streams(streams))

    def order(self, groups: Sequence[str] | None = None, depth: int = 1) -> None:
        """Declares the order of use (None: as published): with each group locked the next `depth` come back."""
        names = [_c.text(group) for group in groups or ()]
        lib.hbm_model_order(self._held().pointer, (ctypes.c_char_p * len(names))(*names) if names else None,
                            len(names), depth)

    def window(self, behind: int | None = 0, *, force: bool = False) -> None:
        """After order(): only the group locked last, those to come and `behind` before it stay on the device; None ends
        that. force: past the daemon's offload_limit."""
        lib.hbm_model_window(self._held().pointer, _c.FOREVER if behind is None else behind, _c.FORCE if force else 0)

    def detach(self) -> None:
        """Lets go: the lease ends with the last array made of it."""
        self._lease = None


class Build(Model):
    """A model that this process fills: write into its buffers, then commit() - or leave the `with` block."""

    def __enter__(self) -> Build:
        return self

    def __exit__(self, kind, _value, _trace) -> None:
        if self._lease is None:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _end(self, call) -> None:
        lease = self._held()
        lib.hbm_claim_disown(lease.claim)
        self._lease = None
        call(lease.pointer)

    def commit(self) -> None:
        """Seals it and unmaps it here: arrays made of it must not be used any more. Others get it from now on."""
        self._end(lib.hbm_publish_commit)

    def abort(self) -> None:
        """Discards it; so does this process's end."""
        self._end(lib.hbm_publish_abort)
