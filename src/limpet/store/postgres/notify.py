"""LISTEN and NOTIFY: hints to other processes that something was committed.

NOTIFY is sent after the durable commit, in a transaction of its own, once for many commits: inside
the commit it would halve the throughput. It is only a hint, and a lost one only delays: watchers
read the feed, and they poll.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from limpet.store.postgres.failures import FAILURES, UNOPENED
from limpet.store.postgres.server.pool import Outage
from limpet.store.postgres.server.pooler import connect_alone
from limpet.store.postgres.server.settings import (
    Connection,
    Pool,
    listening_url,
    unlimited_settings,
    where,
)
from limpet.store.postgres.sql import SQL

CHANNEL: Final = "limpet"
RELISTEN_SECONDS: Final = 1.0  # the least time between two attempts to listen


class Notifier:
    """Notifies other processes, and listens to them on a connection of its own.

    Behind a pooler it listens past it; if the URL does not say how, nobody listens here, and those
    who follow poll.
    """

    def __init__(self, pool: Pool, url: str) -> None:
        direct = listening_url(url)
        self._pool = pool
        self._connect = (
            None if direct is None else partial(connect_alone, direct, unlimited_settings())
        )
        self._outage = Outage(where(direct or url), "listener")
        self._notifying: asyncio.Task[None] | None = None
        self._due = False  # something was committed since the last NOTIFY began
        self._callback: Callable[[], None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listened_at = 0.0
        self._listener: Connection | None = None
        self.received = 0

    def notify(self) -> None:
        """Say that something was committed. Returns at once; one NOTIFY serves many commits."""
        self._due = True
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.get_running_loop().create_task(self._notify())

    def listen(self, callback: Callable[[], None]) -> None:
        """Call `callback` at every notification, from about now on."""
        self._callback = callback
        self.keep_listening()

    @property
    def can_listen(self) -> bool:
        """True if the URL names a server, and not only a pooler before it."""
        return self._connect is not None

    @property
    def wanted(self) -> bool:
        """True if anybody listens in this process."""
        return self._callback is not None

    def keep_listening(self) -> None:
        """Connect the listener again if its connection broke; not too often."""
        connected = self._listener is not None and not self._listener.is_closed()
        busy = self._listening is not None and not self._listening.done()
        if self._connect is None or self._callback is None or busy or connected:
            return
        if time.monotonic() - self._listened_at >= RELISTEN_SECONDS:
            self._listened_at = time.monotonic()
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        if self._notifying is not None:
            await asyncio.gather(self._notifying, return_exceptions=True)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._listener is not None:
            self._listener.terminate()

    async def _listen(self) -> None:
        if self._listener is not None:
            self._outage.lost(ConnectionResetError())
            self._listener.terminate()
        assert self._connect is not None
        try:
            self._listener = await self._connect()
            await self._listener.add_listener(CHANNEL, self._receive)
            await self._listener.execute(SQL["hold_listening"])
            self._receive()  # for what was committed before the committers knew of us
            self._outage.over()
        except UNOPENED as error:
            self._outage.lost(error)
            if self._listener is not None:
                self._listener.terminate()  # polling goes on

    def _receive(self, *_: object) -> None:
        self.received += 1
        if self._callback is not None:
            self._callback()

    async def _notify(self) -> None:
        while self._due:
            self._due = False
            try:
                await self._pool.execute(SQL["notify"], CHANNEL)
            except FAILURES:
                return
