"""The same for asyncio: what waits for the daemon waits in a thread, and the loop goes on.

    async with hbm.aio.connect() as session:
        model = await session.model("minilm")
        await session.offload("model:reranker", force=True)
        await session.wake("minilm")

An operation whose task is cancelled is cancelled in the daemon, and all stays as it was. What else is given up goes on to its end,
and lets go of what it got.
"""
from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from .buffer import Buffer
from .model import Model
from .op import Op, Receipt
from .session import Session

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")
T = TypeVar("T")


def _awaited(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: AsyncSession, *args: P.args, **how: P.kwargs) -> T:
        return await asyncio.to_thread(functools.partial(method, self.session, *args, **how))

    return call


class _Operation:
    """Begun and waited for in a thread; given up at any moment, it is cancelled."""

    def __init__(self, begin: Callable[[], Op]):
        self._begin, self._guard = begin, threading.Lock()
        self._op: Op | None = None
        self._given_up = False

    def run(self) -> Receipt:
        op = self._begin()
        with self._guard:
            self._op = op
        if self._given_up:
            op.cancel()
        return op.wait()

    def give_up(self) -> None:
        with self._guard:
            self._given_up = True
        if self._op:
            self._op.cancel()


def _ended(method: Callable[Concatenate[Session, P], Op]) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, Receipt]]:
    @functools.wraps(method)
    async def call(self: AsyncSession, *args: P.args, **how: P.kwargs) -> Receipt:
        operation = _Operation(functools.partial(method, self.session, *args, **how))
        try:
            return await asyncio.to_thread(operation.run)
        except asyncio.CancelledError:
            operation.give_up()
            raise

    return call


class AsyncSession:
    """A Session's calls, to be awaited. Operations are awaited to their end."""

    def __init__(self, session: Session):
        self.session = session

    devices = _awaited(Session.devices)
    alloc = _awaited(Session.alloc)
    attach = _awaited(Session.attach)
    lock = _awaited(Session.lock)
    safepoint = _awaited(Session.safepoint)
    model = _awaited(Session.model)
    build = _awaited(Session.build)
    sleep = _awaited(Session.sleep)
    wake = _awaited(Session.wake)
    fill = _ended(Session.fill)
    offload = _ended(Session.offload)
    restore = _ended(Session.restore)
    prefetch = _ended(Session.prefetch)
    compress = _ended(Session.compress)
    decompress = _ended(Session.decompress)


class connect:  # pylint: disable=invalid-name
    """`async with connect(...)`, with the options of hbm.connect(): a session, opened and closed without holding up the loop."""

    def __init__(self, runtime_dir: Any = None, **options: Any):
        self._open = functools.partial(Session, runtime_dir, **options)

    async def __aenter__(self) -> AsyncSession:
        self._session = await asyncio.to_thread(self._open)
        return AsyncSession(self._session)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._session.close)


async def lock(what: Model | Buffer, *group: str, timeout: float | None = 60.0) -> None:
    """A buffer, a group of a model, or all of it: resident again."""
    await asyncio.to_thread(functools.partial(what.lock, *group, timeout=timeout))


async def load_model(*args: Any, **how: Any) -> dict:
    """As hbm.load_model()."""
    from . import load_model as load

    return await asyncio.to_thread(load, *args, **how)
