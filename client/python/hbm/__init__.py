"""hbm: GPU memory that a broker owns and processes share.

    import hbm

    with hbm.connect() as session:
        model = session.model("minilm")             # one request, nothing is copied
        weights = model.tensors("torch")            # name -> tensor, in the broker's memory

    weights = hbm.load_model("minilm")              # the same over this process's own session

Beside it: hbm.aio for event loops, hbm.safetensors and hbm.gguf for files, hbm.torch for PyTorch's own allocations and modules,
hbm.transformers and hbm.vllm for those engines.

hbmd has to run; its client library libhbm is loaded as the package is imported.
"""
from __future__ import annotations

import os
import threading

from . import errors, safetensors
from .buffer import Buffer, to_torch
from .errors import (Busy, Denied, Disconnected, Error, Exists, Invalid, Lost, NoDaemon, NoMemory, NotFound, Timeout,
                     Unsupported)
from .model import Build, Model
from .op import Observation, Op, Receipt
from .quantised import Quantised
from .arrays import publish
from .session import Device, Session, layer_of

__all__ = ["Buffer", "Build", "Busy", "Denied", "Device", "Disconnected", "Error", "Exists", "Invalid", "Lost", "Model",
           "NoDaemon", "NoMemory", "NotFound", "Observation", "Op", "Quantised", "Receipt", "Session", "Timeout", "Unsupported", "connect",
           "default_session", "errors", "layer_of", "load_model", "publish", "safetensors", "to_torch"]

_default: tuple | None = None
_guard = threading.Lock()


def connect(runtime_dir=None, **options) -> Session:
    """A new session; options as Session takes them."""
    return Session(runtime_dir, **options)


def default_session() -> Session:
    """One for the whole process, opened at the first call; after fork the child gets its own."""
    global _default
    with _guard:
        if _default is None or _default[0] != os.getpid():
            _default = os.getpid(), Session()
        return _default[1]


def load_model(name: str, framework: str | None = None, *, path=None, wait: bool = True, timeout: float | None = None,
               session: Session | None = None) -> dict:
    """A model as tensors that share its memory: name -> tensor ("torch", "cupy", "jax", "numpy"; None: the first of these
    that is here), and Quantised where it is encoded with scales. It stays attached until they are gone.

    wait: for a model that is being built. path: its safetensors file, from which the first process that asks publishes
    it, while the others wait. They are read-only: a write into one faults."""
    session = session or default_session()
    if path is None:
        model = session.model(name, wait=wait, timeout=timeout)
    else:
        model = safetensors.load_model(session, path, name, timeout=timeout)
    return model.tensors(framework)
