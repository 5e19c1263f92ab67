"""What a GGUF file says, which `hbmctl load FILE.gguf` has published: its metadata, and the types of its tensors.

    model = session.model("llama")
    file = hbm.gguf.read(model.metadata)
    file.metadata["llama.block_count"], file.tensors["blk.0.attn_q.weight"].type

Tensors of quantised types are attached as the bytes of their blocks, U8, a row of blocks a row.
"""
from __future__ import annotations

import struct
from typing import Any, NamedTuple

_KEPT = b"hbm kept files 1"  # client/ctl/kept_files.h
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml's types by number: client/ctl/gguf_types.def has them with their sizes.
TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
         13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
         22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
         35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}


class Tensor(NamedTuple):
    type: str     # "F32", "Q4_K" ...
    shape: tuple  # of elements, rows first


class File(NamedTuple):
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


class _Reader:
    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def take(self, form: str) -> tuple:
        values = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return values

    def number(self, form: str) -> Any:
        return self.take(form)[0]

    def text(self) -> str:
        return self.number(f"{self.number('Q')}s").decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_VALUES[kind])
        element, n = self.take("IQ")
        if element in _VALUES:
            return list(self.take(f"{n}{_VALUES[element]}"))
        return [self.value(element) for _ in range(n)]

    def tensor(self) -> Tensor:
        shape = self.take(f"{self.number('I')}Q")[::-1]
        kind, _offset = self.take("IQ")
        return Tensor(TYPES[kind], shape)

    def file(self) -> File:
        magic, version, n_tensors, n_pairs = self.take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("its files were no GGUF")
        metadata = {self.text(): self.value(self.number("I")) for _ in range(n_pairs)}
        return File(metadata, {self.text(): self.tensor() for _ in range(n_tensors)})


def read(kept: bytes) -> File:
    """Of Model.metadata. Of a model in several files the first one's metadata, and all tensors."""
    if not kept.startswith(_KEPT):
        raise ValueError("the model was not published by `hbmctl load`")
    files, at = [], len(_KEPT) + 8
    try:
        for _ in range(struct.unpack_from("<Q", kept, len(_KEPT))[0]):
            _kind, name_bytes, _size, head_bytes = struct.unpack_from("<IIQQ", kept, at)
            at += 24 + name_bytes
            files.append(_Reader(kept[at:at + head_bytes]).file())
            at += head_bytes
        return File(files[0].metadata, {name: row for file in files for name, row in file.tensors.items()})
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"what was kept of its files is damaged: {error!r}") from None
