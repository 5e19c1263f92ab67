"""Checkpoints by way of the broker: the first process that asks has them read from disk once, by the daemon and at the
disk's speed; all others, and the same one after its restart, map what is there."""
from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import NamedTuple

from .errors import Exists
from .model import Build, Model
from .session import Session

_HEADER_MAX = 100 << 20  # of the format
_KEPT = b"hbm kept files 1"  # what `hbmctl save` gives the file back from: client/ctl/kept_files.h


class File(NamedTuple):
    """What a safetensors file's header says."""

    path: str
    size: int
    head: bytes  # the bytes before the tensors
    tensors: dict  # name -> (dtype, shape, begin, end): offsets in the file
    metadata: dict


def read_header(path) -> File:
    path = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = file.read(8)
        if length.startswith(b"GGUF"):
            raise ValueError(f"{path} is a GGUF file: `hbmctl load {path} --as NAME` publishes it, and hbm.gguf reads what it says")
        n = struct.unpack("<Q", length)[0] if len(length) == 8 else 0
        if not 2 <= n <= min(_HEADER_MAX, size - 8):
            raise ValueError(f"{path} is no safetensors file: its header would have {n} bytes")
        text = file.read(n)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        tensors = {name: (row["dtype"], tuple(row["shape"]), 8 + n + row["data_offsets"][0], 8 + n + row["data_offsets"][1])
                   for name, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
    if any(not 8 + n <= begin <= end <= size for _, _, begin, end in tensors.values()):
        raise ValueError(f"{path} ends before its tensors do: it was not written whole")
    return File(path, size, length + text, tensors, metadata)


def name_for(path) -> str:
    """The model's name for a file as it is now: another when it has changed."""
    status = os.stat(path)
    what = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    stem = os.path.basename(os.fspath(path)).removesuffix(".safetensors")
    clean = "".join(c if c not in "/:~@*?[" and c.isprintable() else "_" for c in stem)[:100]
    return f"{clean}.{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def load_model(session: Session, path, name: str | None = None, *, replace: bool = False, shared: bool = False,
               timeout: float | None = None) -> Model:
    """The model of a file: published if nobody has yet, and attached."""
    name = name or name_for(path)
    file = read_header(path)
    rows = {tensor: (dtype, shape) for tensor, (dtype, shape, _, _) in file.tensors.items()}
    key = "safetensors header " + hashlib.sha256(file.head).hexdigest()[:16]
    try:
        build = session.build(name, rows, key=key, metadata=_kept(file), shared=shared, replace=replace, mapped=False,
                              timeout=timeout)
    except Exists:
        return session.model(name, timeout=timeout)
    if not isinstance(build, Build):
        build.lock(timeout=timeout)
        return build
    with build:
        _fill(session, build, file, timeout)
    return session.model(name, timeout=timeout)


def _fill(session: Session, build: Build, file: File, timeout: float | None) -> None:
    ranges = [(build[tensor].id, 0, begin, end - begin) for tensor, (_, _, begin, end) in file.tensors.items() if end > begin]
    if not ranges:
        return
    with open(file.path, "rb") as opened:
        session.fill(opened.fileno(), ranges).wait(timeout)


def _kept(file: File) -> bytes:
    name = os.path.basename(file.path).encode()
    return _KEPT + struct.pack("<QIIQQ", 1, 0, len(name), file.size, len(file.head)) + name + file.head


def load_file(filename, device: str | None = None, *, name: str | None = None, framework: str = "torch",
              session: Session | None = None) -> dict:
    """As safetensors.torch.load_file, but the tensors are shared by all processes that ask for the file, and outlive
    each of them. They are read-only: a write into one ends the process. device is taken for the signature's sake: they
    lie where the broker serves."""
    del device
    from . import default_session

    return load_model(session or default_session(), filename, name).tensors(framework)


def load_folder(path, framework: str | None = None, *, name: str | None = None, session: Session | None = None) -> dict:
    """The tensors of a checkpoint in a folder: model.safetensors, or the files that model.safetensors.index.json names, each of
    which is a model in the broker (name, or name.0, name.1 ...)."""
    from . import default_session

    files, tensors = _files_of(os.fspath(path)), {}
    for i, file in enumerate(files):
        file_name = f"{name}.{i}" if name and files[1:] else name
        tensors.update(load_model(session or default_session(), file, file_name).tensors(framework))
    return tensors


def _files_of(path: str) -> list[str]:
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        return [os.path.join(path, "model.safetensors")]
    with open(index, encoding="utf-8") as file:
        names = set(json.load(file)["weight_map"].values())
    return [os.path.join(path, os.path.basename(each)) for each in sorted(names)]
