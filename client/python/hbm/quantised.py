"""Encoded tensors as they lie in memory: their stored elements beside what these are multiplied with."""
from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import dtypes
from .buffer import Buffer, Units, to_framework

SCALE, ZERO, CHANNELS, OUTLIERS = ".scale", ".zero", ".channels", ".outliers"


class Quantised(NamedTuple):
    """Arrays that share the broker's memory. What was encoded is about (values - zero) * scale, which decoded() gives."""

    values: Any    # the stored elements; of int4 the bytes, each with two of them, the first in the low bits
    scale: Any     # F32, one a tensor, channel or group
    zero: Any      # I32, one a scale; None where the codec has none
    stored: str    # element type: "I8", "I4", "F8_E4M3" ...
    dtype: str     # of what was encoded
    shape: tuple
    encoding: str  # "int8 per channel 0"
    units: Units   # what shares one scale
    channels: Any = None  # I32, of int8-split: the numbers of the channels, along units.axis, that stayed in fp16
    outliers: Any = None  # and their elements, F16, of this shape but for that axis; their values are 0

    def decoded(self):
        """A new array of float32."""
        values = _float32(_nibbles(self.values, self.shape) if self.stored == "I4" else self.values)
        if self.zero is not None:
            values = values - _float32(self._spread(self.zero))
        values = values * self._spread(self.scale)
        return values if self.channels is None else self._with_outliers(values)

    def _with_outliers(self, values):
        numbers = self.channels.long() if hasattr(self.channels, "long") else self.channels
        where, outliers = (slice(None),) * self.units.axis + (numbers,), _float32(self.outliers)
        if hasattr(values, "at"):  # jax, whose arrays do not change
            return values.at[where].set(outliers)
        values[where] = outliers
        return values

    def _spread(self, parts):
        """In a shape that meets the elements."""
        if self.units.per == "tensor":
            return parts.reshape((1,) * len(self.shape))
        if self.units.per == "channel":
            return parts.reshape(tuple(n if i == self.units.axis else 1 for i, n in enumerate(self.shape)))
        module = _module(parts)
        repeat = getattr(module, "repeat_interleave", None) or module.repeat
        return repeat(parts.reshape((*self.shape[:-1], -1)), self.units.group, -1)[..., :self.shape[-1]]


def tensors(buffers: Mapping[str, Buffer], framework: str) -> dict:
    """name -> array; or Quantised where a scale goes with it, which then has no entry of its own."""
    taken = {name: buffers[name] for name in buffers}
    encoded = [name for name, buffer in taken.items() if buffer.encoding != "raw" and name + SCALE in taken]
    parts = {name + suffix for name in encoded for suffix in _suffixes(taken[name])} if framework != "buffer" else set()
    return {name: _quantised(name, taken, framework) if name + SCALE in parts else to_framework(buffer, framework)
            for name, buffer in taken.items() if name not in parts}


def _suffixes(buffer: Buffer) -> tuple:
    return (SCALE, CHANNELS, OUTLIERS) if buffer.encoding.startswith("int8-split") else (SCALE, ZERO)


def _quantised(name: str, buffers: Mapping[str, Buffer], framework: str) -> Quantised:
    buffer, zero, channels, outliers = buffers[name], buffers.get(name + ZERO), None, None
    if buffer.encoding.startswith("int8-split"):
        channels = to_framework(buffers[name + CHANNELS], framework)
        shape = (*buffer.shape[:buffer.units.axis], buffer.units.group, *buffer.shape[buffer.units.axis + 1:])
        outliers = to_framework(buffers[name + OUTLIERS], framework).reshape(shape)
    return Quantised(to_framework(_in_bytes(buffer), framework), to_framework(buffers[name + SCALE], framework),
                     zero and to_framework(zero, framework), buffer.stored, buffer.dtype, buffer.shape, buffer.encoding,
                     buffer.units, channels, outliers)


def _in_bytes(buffer: Buffer) -> Buffer:
    """Where its elements are smaller, its bytes in a row."""
    if dtypes.bits(buffer.stored) % 8 == 0:
        return buffer
    flat = copy.copy(buffer)
    flat.stored, flat.shape = "U8", (buffer.nbytes,)
    return flat


def _module(array):
    name = type(array).__module__.partition(".")[0]
    return importlib.import_module("jax.numpy" if name.startswith("jax") else name)


def _float32(array):
    return array.float() if hasattr(array, "float") else array.astype("float32")


def _nibbles(packed, shape: tuple):
    count = 1
    for n in shape:
        count *= n
    pairs = _module(packed).stack((packed & 15, packed >> 4), -1)
    return (_float32(pairs.reshape(-1)[:count] ^ 8) - 8).reshape(shape)
