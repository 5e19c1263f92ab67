"""PyTorch in the broker's memory: its own allocations, and modules whose parameters lie there already.

An engine runs unchanged, and its weights are counted, asked back and brought back like everything else there:

    with hbm.torch.MemPool("engine") as pool:
        model = load_the_engine()                   # torch allocates as ever
    ...
    pool.unlock(torch.cuda.current_stream())        # idle: `hbmctl offload group:engine`, or who needs the room
    pool.lock()                                     # back, at the same addresses

A module shares what is published:

    with hbm.torch.skeleton():
        module = MyModel()                              # takes no memory
    hbm.torch.assign(module, hbm.load_model("mine"))
"""
from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

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
    (None: of this process's number). It is this process's own, and ends with its tensors. torch.multiprocessing cannot send
    them: for that there is hbm.publish()."""

    def __init__(self, name: str | None = None, *, session=None):
        from . import default_session

        if not hasattr(torch.cuda, "MemPool"):
            raise RuntimeError(f"torch {torch.__version__} has no torch.cuda.MemPool: take 2.5 or newer")
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


@contextlib.contextmanager
def skeleton():
    """Modules made within have their parameters on the meta device, which takes no memory. What else they compute as they are made
    (positions, rotary frequencies) is there: no checkpoint has it."""
    modules: Any = torch.nn.Module
    real = modules.register_parameter

    def register(module, name, parameter):
        real(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    modules.register_parameter = register
    try:
        yield
    finally:
        modules.register_parameter = real


def assign(module, tensors: Mapping[str, Any]) -> set:
    """Puts tensors in the place of the module's parameters and buffers of those names, which are the broker's memory then, and no
    copies; the module's other buffers go where they lie. Returns the names of the module that tensors does not have.

    They are read-only, and take no gradients: a write into one ends the process."""
    slots = {f"{prefix}.{last}" if prefix else last: (table, last) for prefix, part in module.named_modules(remove_duplicate=False)
             for table in (part._parameters, part._buffers) for last, old in table.items() if old is not None}
    taken = {name: tensors[name] for name in slots if name in tensors}
    for name, tensor in taken.items():
        table, last = slots[name]
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is encoded, and a module wants it decoded: `hbmctl decompress` it, or give what its decoded() "
                            "makes")
        if tensor.shape != table[last].shape:
            raise ValueError(f"{name} is {list(tensor.shape)} here, and {list(table[last].shape)} in the module: it is of another "
                             "model")
    devices = {tensor.device for tensor in taken.values()}
    for name, (table, last) in slots.items():
        parameter = isinstance(table[last], torch.nn.Parameter)
        if name in taken:
            table[last] = torch.nn.Parameter(taken[name], requires_grad=False) if parameter else taken[name]
        elif not parameter and len(devices) == 1:
            table[last] = table[last].to(next(iter(devices)))
    return set(slots) - set(taken)
