"""One Limpet for callers on any event loop and in any thread.

A store belongs to the event loop that opened it. Frameworks call from wherever they run: a web
server's loop, a loop for each call, a thread without any. So the store that a URL names is opened
on a loop in a thread of its own when it is first needed, and work is handed to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from limpet.errors import InvalidInput, StoreClosed
from limpet.session.limpet import Limpet
from limpet.session.sync.loop import Loop
from limpet.store.protocol import Seal

R = TypeVar("R")


class SharedLimpet:
    """A store that any thread and any event loop may use: `await shared.run(work)`.

    `store` is a URL, opened when it is first needed and closed by close(); or an open Limpet, which
    stays its owner's: it is used on its own loop only, and never closed here.
    """

    def __init__(
        self, store: str | Limpet, *, seal: Seal | None = None, connections: int | None = None
    ) -> None:
        if not isinstance(store, (str, Limpet)):
            raise InvalidInput(
                f"{type(store).__name__} is not a store. Pass a URL, such as sqlite:///support.db, "
                "or an open Limpet."
            )
        self.url = store if isinstance(store, str) else store.url
        self._given = store if isinstance(store, Limpet) else None
        self._home: asyncio.AbstractEventLoop | None = None  # of the one that was given
        self._open_with: dict[str, Any] = {"seal": seal, "connections": connections}
        self._starting = threading.Lock()
        self._closed = False
        self._loop: Loop | None = None
        self._opened: Limpet | None = None
        self._opening: asyncio.Lock | None = None

    async def run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """What `work(lp)` gives, run where the store is. Raises what it raises, StoreClosed.

        A caller who is cancelled hears of it when the work was undone or is over.
        """
        if self._given is not None:
            self._check_home()
            return await work(self._given)
        return await self._started().await_(self._run(work))

    def call(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """The same without await, for threads without an event loop."""
        if self._given is not None:
            raise InvalidInput(
                "an open Limpet belongs to its event loop and cannot be called without await. "
                "Pass its URL instead."
            )
        result: R = self._started().call(self._run, work)
        return result

    async def close(self) -> None:
        """Close what a URL has opened. Closing twice is fine; an open Limpet stays open."""
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """The same without await."""
        with self._starting:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and loop.is_open():
            try:
                with suppress(StoreClosed):
                    loop.call(self._close)
            finally:
                loop.stop()

    async def __aenter__(self) -> SharedLimpet:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- private -------------------------------------------------------------------------------

    def _check_home(self) -> None:
        """An open Limpet is of one loop. Two would share what only one may touch."""
        if self._closed:
            raise StoreClosed
        here = asyncio.get_running_loop()
        if self._home is None:
            self._home = here
        if self._home is not here:
            raise InvalidInput(
                "this Limpet is used on another event loop already. Pass its URL instead of the "
                "open Limpet, to use it from several."
            )

    def _started(self) -> Loop:
        loop = self._loop
        if loop is None:
            with self._starting:
                if self._closed:
                    raise StoreClosed
                if self._loop is None:
                    self._loop = Loop()
                loop = self._loop
        loop.check_caller()
        return loop

    async def _run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        return await work(self._opened or await self._open())

    async def _open(self) -> Limpet:
        """Once for all who come at the same time; if it fails, the next one tries again."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._opened is None:
                self._opened = await Limpet(self.url, **self._open_with)
            return self._opened

    async def _close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
