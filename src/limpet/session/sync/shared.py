"""One store for callers on any event loop and in any thread.

An open Limpet belongs to the event loop that opened it. Frameworks call from wherever they run: a
web server's loop, a loop for each call, a thread without any. So a URL is opened on a loop in a
thread of its own. A SQLite file is opened once more on the first loop that asks, for that loop's
own calls, which then cross no threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

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
        self._limpet = store if isinstance(store, Limpet) else None
        self._lock = threading.Lock()  # over the next three
        self._closed = False
        self._home: asyncio.AbstractEventLoop | None = None  # the first that asked
        self._loop: Loop | None = None  # for all others
        self._at_home = _Opening(self.url, seal, connections)
        self._elsewhere = _Opening(self.url, seal, connections)

    async def run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """What `work(lp)` gives, run where the store is. Raises what it raises, StoreClosed.

        A caller who is cancelled hears of it when the work was undone or is over.
        """
        if self._is_home(asyncio.get_running_loop()):
            return await work(self._limpet or self._at_home.lp or await self._at_home.opened())
        return await self._started().await_(self._run(work))

    def call(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """The same without await, for threads without an event loop."""
        if self._limpet is not None:
            raise InvalidInput(
                "an open Limpet belongs to its event loop and cannot be called without await. "
                "Pass its URL instead."
            )
        result: R = self._started().call(self._run, work)
        return result

    async def close(self) -> None:
        """Close what a URL has opened. Closing twice is fine; an open Limpet stays open."""
        with self._lock:
            self._closed = True
            home, self._home = self._home, None
        if home is not None and self._at_home.lp is not None:
            closing = self._at_home.lp.close()
            if home is asyncio.get_running_loop() or not home.is_running():
                await closing
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, home))
        await asyncio.to_thread(self._stop)

    async def __aenter__(self) -> SharedLimpet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private -------------------------------------------------------------------------------

    def _is_home(self, here: asyncio.AbstractEventLoop) -> bool:
        """Whether the store that this loop may touch is its own. Raises InvalidInput if it has to
        be and is not: two loops would share what only one may touch."""
        if self._home is here:
            return True
        with self._lock:
            self._check_open()
            if self._home is None and not self._is_shared_only():
                self._home = here
        if self._limpet is not None and self._home is not here:
            raise InvalidInput(
                "this Limpet is used on another event loop already. Pass its URL instead of the "
                "open Limpet, to use it from several."
            )
        return self._home is here

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store", "It was closed with close(): make another object")

    def _is_shared_only(self) -> bool:
        """Whether there is one store for all loops. A memory store that is opened twice is two
        stores, and connections to a server cannot outlive the loop that they are on."""
        return self._limpet is None and not self.url.startswith("sqlite:")

    def _started(self) -> Loop:
        loop = self._loop
        if loop is None:
            with self._lock:
                self._check_open()
                if self._loop is None:
                    self._loop = Loop()
                loop = self._loop
        loop.check_caller()
        return loop

    async def _run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        return await work(self._elsewhere.lp or await self._elsewhere.opened())

    def _stop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and loop.is_open():
            try:
                with suppress(StoreClosed):
                    loop.call(self._elsewhere.close)
            finally:
                loop.stop()


class _Opening:
    """A Limpet that the first who asks opens, for all who come at the same time."""

    def __init__(self, url: str, seal: Seal | None, connections: int | None) -> None:
        self._url, self._seal, self._connections = url, seal, connections
        self.lp: Limpet | None = None
        self._lock: asyncio.Lock | None = None

    async def opened(self) -> Limpet:
        """If it fails, the next one tries again."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self.lp is None:
                self.lp = await Limpet(self._url, seal=self._seal, connections=self._connections)
            return self.lp

    async def close(self) -> None:
        if self.lp is not None:
            await self.lp.close()
