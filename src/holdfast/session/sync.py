"""The same verbs without await, for scripts and notebooks.

Nothing is implemented twice: an event loop runs in a thread of its own and every call is handed to
it. What comes back is wrapped only if it has verbs itself.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from holdfast.errors import InvalidInput, StoreClosed, StoreForked
from holdfast.session.commit import CommitBuilder
from holdfast.session.session import Session
from holdfast.session.sessions import Holdfast
from holdfast.store.protocol import Seal

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread, and a way to run things on it from outside."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="holdfast-sync", daemon=True
        )
        self._thread.start()
        self._pid = os.getpid()

    def call(self, function: Any, *args: Any, **named: Any) -> Any:
        if self._pid != os.getpid():
            raise StoreForked
        if self._loop.is_closed():
            raise StoreClosed
        if threading.current_thread() is self._thread:
            raise InvalidInput(
                "a function called by Holdfast cannot wait for Holdfast. Do it before or after."
            )

        async def inside() -> Any:
            result = function(*args, **named)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result()

    def is_open(self) -> bool:
        return self._pid == os.getpid() and not self._loop.is_closed()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Sync(Generic[T]):
    """A stand-in for an object of the async API: the same names, without await."""

    def __init__(self, of: T, loop: _Loop) -> None:
        self._of, self._loop = of, loop

    def __repr__(self) -> str:
        return f"<sync {self._of!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            args = tuple(_plain(a) for a in args)
            named = {n: _plain(a) for n, a in named.items()}
            return self._wrap(self._loop.call(found, *args, **named))

        return call

    def __enter__(self) -> Sync[T]:
        self._loop.call(self._of.__aenter__)  # type: ignore[attr-defined]  # only wrapped if so
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._of.__aexit__, kind, error, trace)  # type: ignore[attr-defined]

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, (Session, CommitBuilder)):
            return Sync(result, self._loop)
        return self._iterate(result) if isinstance(result, AsyncIterator) else result

    def _iterate(self, events: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.call(events.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._loop.call(events.aclose)  # type: ignore[attr-defined]  # an async generator


def _plain(argument: Any) -> Any:
    return argument._of if isinstance(argument, Sync) else argument


class SyncHoldfast(Sync[Holdfast]):
    """Holdfast without await, open at once: use it in a `with` block, or call close()."""

    def __init__(
        self, url: str, *, seal: Seal | None = None, connections: int | None = None
    ) -> None:
        super().__init__(Holdfast(url, seal=seal, connections=connections), _Loop())
        try:
            super().__enter__()
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> SyncHoldfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what was handed over and let go of everything. Closing twice is fine."""
        if self._loop.is_open():
            self._loop.call(self._of.close)
            self._loop.stop()
