"""PyTorch's own allocations in the broker's memory: an engine runs unchanged, and its weights are counted, asked back and
brought back like everything else there.

    with hbm.torch.MemPool("engine") as pool:
        model = load_the_engine()                   # torch allocates as ever
    ...
    pool.unlock(torch.cuda.current_stream())        # idle: `hbmctl offload group:engine`, or who needs the room
    pool.lock()                                     # back, at the same addresses
"""
from __future__ import annotations

import os
import threading

import torch

from . import _c
from ._c import lib

_allocator = None
_threads = threading.local()  # .pools: those that the thread is within


def allocator():
    """One for the process, for torch.cuda.MemPool, or for torch.cuda.memory.change_current_allocator: then everything that
    torch allocates comes from the process's own session, and stays locked."""
    global _allocator
    if _allocator is None:
        # By the path: torch opens it again, and has to get the library that is loaded here.
        _allocator = torch.cuda.memory.CUDAPluggableAllocator(lib._name, "hbm_torch_alloc", "hbm_torch_free")
    return _allocator


class MemPool:
    """What this thread allocates by torch within the `with` block lies in the broker's memory, in blocks of the group `name`
    (None: of this process's number). It is this process's own, and ends with its tensors."""

    def __init__(self, name: str | None = None, *, session=None):
        from . import default_session

        self.name = name or f"torch.{os.getpid()}"
        self._session = (session or default_session())._open()
        self._pool = torch.cuda.MemPool(allocator().allocator())

    def __enter__(self) -> MemPool:
        lib.hbm_torch_use(self._session.claim, _c.text(self.name))
        entered = torch.cuda.use_mem_pool(self._pool)
        entered.__enter__()
        _threads.pools = [*getattr(_threads, "pools", ()), (self, entered)]
        return self

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, torch.cuda.OutOfMemoryError) and hasattr(error, "add_note"):
            error.add_note(f"hbm: {lib.hbm_last_error_detail().decode()}")
        *outer, (_, entered) = _threads.pools
        _threads.pools = outer
        entered.__exit__(kind, error, trace)
        around = outer[-1][0] if outer else None
        lib.hbm_torch_use(around and around._session.claim, around and _c.text(around.name))

    def unlock(self, *streams) -> None:
        """All of it may move once the work queued on these streams until now has finished; without any: its work is done.
        Tensors in it must not be used until lock()."""
        lib.hbm_torch_unlock(_c.text(self.name), *_c.streams(streams))

    def lock(self, timeout: float | None = 60.0) -> None:
        """All of it resident again, at the same addresses, or none."""
        lib.hbm_torch_lock(_c.text(self.name), _c.milliseconds(timeout))
