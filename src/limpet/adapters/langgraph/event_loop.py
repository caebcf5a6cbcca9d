"""The event loop that an adapter's store lives on, and the way to it from anywhere else.

LangGraph calls savers with and without await, and from its own threads. A store belongs to one
loop: the one it was opened on, or one in a thread of its own when it is opened without await.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from limpet import Limpet, Seal, open as open_limpet
from limpet.errors import InvalidInput, StoreClosed

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="LoopBound")


def on_store_loop(
    method: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a method of a LoopBound run on its store's loop, whichever loop awaits it."""

    @wraps(method)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        bound: Any = args[0]
        made: R = await bound._here(method(*args, **kwargs))
        return made

    return run


class LoopBound:
    """Opens a Limpet, or uses one that is open, with `async with` or `with`."""

    _lp: Limpet
    _owned: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def _take(self, store: Limpet | str, seal: Seal | None = None) -> None:
        if not isinstance(store, (str, Limpet)):
            raise InvalidInput(
                f"{type(store).__name__} is not a store. Pass a URL, such as sqlite:///chat.db, or "
                "an open Limpet."
            )
        self._owned = isinstance(store, str)
        self._lp = open_limpet(store, seal=seal) if isinstance(store, str) else store
        if not self._owned:  # it is open, so its loop is the one that runs
            self._loop = asyncio.get_running_loop()

    async def __aenter__(self: Self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._owned:
            await self._lp.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self._lp.close()

    def __enter__(self: Self) -> Self:
        if not self._owned:
            return self
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="limpet-langgraph", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        try:
            self._wait(self._lp.close())
        finally:
            self._stop()

    async def _open(self) -> None:
        await self._lp.__aenter__()

    def _stop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _here(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the store's loop, for callers on any loop, and return its result."""
        loop = self._home(work)
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for the result, for callers who do not await."""
        loop = self._home(work)
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            work.close()
            raise InvalidInput(
                "this call waits for the event loop that it was made on. Await the method whose "
                "name begins with 'a' instead, as in `await graph.ainvoke(…)` or `await "
                "saver.aget_tuple(config)`."
            )
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _home(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            work.close()
            name = type(self).__name__
            advice = f"Use it inside `with {name}.from_url(url) as opened`, or `async with`"
            raise StoreClosed(f"this {name}", advice)
        return self._loop

    def _step(self, items: AsyncIterator[R]) -> Iterator[R]:
        """An async iterator without await."""

        async def step() -> tuple[R | None, bool]:
            async for item in items:
                return item, True
            return None, False

        while True:
            item, more = self._wait(step())
            if not more:
                return
            yield item  # type: ignore[misc]  # there was one
