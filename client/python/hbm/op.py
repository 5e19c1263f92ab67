"""Operations of the daemon's: to wait for, look at, or cancel."""
from __future__ import annotations

import asyncio
import ctypes
import weakref
from typing import NamedTuple

from . import _c
from ._c import lib
from .errors import Timeout

# A wait is cut into pieces so that Ctrl-C is heard.
_PIECE_MS = 100


class Receipt(NamedTuple):
    """What a lossy operation cost, measured against the original."""

    bytes_before: int
    bytes_after: int
    sqnr_db: float
    max_abs_error: float
    clipped_fraction: float
    seconds: float
    elements: int
    nonfinite: int


class Observation(NamedTuple):
    """What was observed of a buffer, over the batches that were written into it: (least, largest) of what is finite."""

    batches: int
    elements: int
    nonfinite: int
    range: tuple
    average: tuple
    last: tuple
    imported: bool


class Op:
    """An operation under way. wait(), `await op`, or forget it: it goes on."""

    def __init__(self, session, pointer: int):
        self.id: int = lib.hbm_op_id(pointer)
        self._pointer, self._session = pointer, session
        weakref.finalize(self, lib.hbm_op_free, pointer).atexit = False

    def _look(self, wait_ms: int) -> _c.OpStatus | None:
        status = _c.OpStatus()
        try:
            lib.hbm_op_wait(self._pointer, wait_ms, ctypes.byref(status))
        except Timeout:
            if not status.done:
                return None
            raise
        return status

    def done(self) -> bool:
        """True once it has ended; raises what it ended with, if not well."""
        return self._look(0) is not None

    def progress(self) -> tuple:
        """Bytes done, and bytes in all."""
        status = _c.OpStatus()
        try:
            lib.hbm_op_wait(self._pointer, 0, ctypes.byref(status))
        except Timeout:
            pass
        return status.bytes_done, status.bytes_total

    def wait(self, timeout: float | None = None) -> Receipt:
        """Its receipt, which means something for compress alone. Raises what it ended with; Timeout if it goes on.
        Interrupted by Ctrl-C it is cancelled."""
        left = _c.milliseconds(timeout)
        try:
            while True:
                piece = min(left, _PIECE_MS)
                status = self._look(piece)
                if status:
                    return Receipt(*(getattr(status.receipt, field) for field in Receipt._fields))
                if left != _c.FOREVER:
                    left -= piece
                    if left <= 0:
                        raise Timeout(f"operation {self.id:#x} has not ended in {timeout} s")
        except KeyboardInterrupt:
            self.cancel()
            raise

    async def _ended(self) -> Receipt:
        try:
            return await asyncio.to_thread(self.wait)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __await__(self):
        """As wait(), in a thread. Cancelled, the operation is too."""
        return self._ended().__await__()

    def cancel(self) -> None:
        """All that it would have changed stays as it was, unless it ends well first."""
        lib.hbm_op_cancel(self._pointer)
