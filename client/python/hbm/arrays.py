"""Publishing arrays that a process has: each is copied once, into the broker's memory."""
from __future__ import annotations

from collections.abc import Mapping

from . import dtypes
from .buffer import Buffer, to_framework
from .model import Build, Model
from .session import Session


def publish(name: str, tensors: Mapping, *, session: Session | None = None, **how) -> Model:
    """Copies NumPy, torch, CuPy or JAX arrays into a model of that name, seals it, and attaches it. Who asks while it is
    being built gets what the first one publishes. how: as Session.build takes it (key, metadata, shared, replace ...)."""
    from . import default_session

    session = session or default_session()
    rows = {tensor: (dtypes.of_array(array.dtype), tuple(array.shape)) for tensor, array in tensors.items()}
    build = session.build(name, rows, **how)
    if not isinstance(build, Build):
        return build
    with build:
        for tensor, array in tensors.items():
            _copy(array, build[tensor])
    return session.model(name)


def _copy(array, buffer: Buffer) -> None:
    if not buffer.nbytes:
        return
    module = type(array).__module__.partition(".")[0]
    if module == "torch":
        import torch

        to_framework(buffer, "torch").copy_(array)
        if buffer.is_cuda:
            torch.cuda.synchronize()
    elif module == "cupy" or buffer.is_cuda:
        import cupy

        cupy.copyto(to_framework(buffer, "cupy"), cupy.asarray(array))
        cupy.cuda.get_current_stream().synchronize()
    else:
        import numpy

        numpy.copyto(buffer.numpy(), array)
