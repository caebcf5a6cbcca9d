"""This Limpet's end of the live channel: partial events to and from other processes.

Partials of this process are gathered: the first goes out at once, the next after GATHER_SECONDS,
all that came meanwhile together. Nobody waits for them and nothing here raises: a partial may be
lost, and the final event, which is in the log, is not. While nobody in another process follows,
a partial costs one question to the store in that time, and an event that is not partial nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from limpet.errors import LimpetError
from limpet.model import Event, Key
from limpet.model.limits import PARTIALS_WAITING_MAX
from limpet.store.protocol import Channel, Live, Partial, Store

GATHER_SECONDS: Final = 0.02
LINGER_SECONDS: Final = 5.0  # how long it stays subscribed after the last follower has left
PATIENCE_SECONDS: Final = 1.0  # how long a follower, or closing, waits for a slow channel
_KNOWN: Final = 256  # sessions whose uid is remembered for handles that were never loaded


class LiveEnd:
    """Sends while somebody publishes, listens while somebody follows."""

    def __init__(self, store: Store, heard: Callable[[], None]) -> None:
        self._store, self._heard = store, heard
        self._channel: Channel | None = None  # see `_open`
        self._opened = False
        self.waiting: deque[tuple[Key, str | None, int, Event]] = deque(maxlen=PARTIALS_WAITING_MAX)
        self._known: dict[Key, tuple[str, int]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._followers = 0
        self._wants = self._listens = False  # to be subscribed; and is
        self._tending: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()  # it listens, or that takes long
        self._ready.set()
        self._leaving: asyncio.TimerHandle | None = None

    # --- sending -------------------------------------------------------------------------------

    def publish(self, key: Key, uid: str | None, version: int, event: Event) -> None:
        """Send a partial to other processes, soon. The oldest are dropped if too many wait."""
        if self._open() is None:
            return
        self.waiting.append((key, uid, version, event))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def drop(self, finals: Collection[Event]) -> None:
        """Drop the partials of events that were recorded: they need not be sent any more."""
        ids = {event.id for event in finals}
        kept = [each for each in self.waiting if each[3].id not in ids]
        self.waiting.clear()
        self.waiting.extend(kept)

    async def _send(self) -> None:
        assert self._channel is not None
        while self.waiting:
            taken = [self.waiting.popleft() for _ in range(len(self.waiting))]
            addressed = [await self._addressed(*each) for each in taken]
            await self._channel.publish([each for each in addressed if each is not None])
            await asyncio.sleep(GATHER_SECONDS)

    async def _addressed(
        self, key: Key, uid: str | None, version: int, event: Event
    ) -> Partial | None:
        """Add the session's uid, and a mark. A handle that was never loaded knows neither."""
        if uid is None:
            if key not in self._known:
                with suppress(LimpetError, MemoryError):
                    head = (await self._store.load(key, tail=0, scopes=False)).head
                    self._known[key] = (head.uid, head.version)
                    if len(self._known) > _KNOWN:
                        del self._known[next(iter(self._known))]
            if key not in self._known:
                return None  # there is no such session, or it cannot be read
            uid, version = self._known[key]
        return Partial(key, uid, version, event)

    # --- receiving -----------------------------------------------------------------------------

    def join(self) -> None:
        """Somebody follows who takes partials."""
        self._followers += 1
        channel = self._open()
        if channel is None:
            return
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
            channel.received(lambda _: False)  # it came while nobody followed
        self._want(subscribed=True)

    def leave(self) -> None:
        """One of them follows no more."""
        self._followers -= 1
        if not self._followers and self._wants and self._tending is not None:
            loop = self._tending.get_loop()
            if not loop.is_closed():
                lapse = partial(self._want, subscribed=False)
                self._leaving = loop.call_later(LINGER_SECONDS, lapse)

    async def subscribed(self) -> None:
        """Wait until partials of other processes come, if that does not take long."""
        if not self._ready.is_set():  # one timer for all who wait
            await self._ready.wait()

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        """Return the partials that other processes sent for these sessions."""
        if self._channel is None or not self._followers:
            return ()
        return self._channel.received(wanted)

    def _open(self) -> Channel | None:
        """The store's channel, if it has one, from the first time that somebody publishes or
        follows: most processes never do, and start sooner."""
        if not self._opened:
            self._opened = True
            self._channel = self._store.channel() if isinstance(self._store, Live) else None
        return self._channel

    def _want(self, *, subscribed: bool) -> None:
        self._wants = subscribed
        done = self._tending is None or self._tending.done()
        if done and self._listens != subscribed:
            loop = asyncio.get_running_loop()
            self._ready.clear()
            late = loop.call_later(PATIENCE_SECONDS, self._ready.set)
            self._tending = loop.create_task(self._tend())
            self._tending.add_done_callback(partial(self._tended, late))

    def _tended(self, late: asyncio.TimerHandle, _: object) -> None:
        late.cancel()
        self._ready.set()

    async def _tend(self) -> None:
        """Subscribe, or not any more, until it is as is wanted now."""
        assert self._channel is not None
        while self._listens != self._wants:
            self._listens = not self._listens
            if self._listens:
                await self._channel.subscribe(self._heard)
            else:
                await self._channel.unsubscribe()

    async def close(self) -> None:
        """Send what waits, if that does not take long, and let go of the channel."""
        if self._channel is None:
            return
        if self._leaving is not None:
            self._leaving.cancel()
        if self._sending is not None and self.waiting:
            await asyncio.wait([self._sending], timeout=PATIENCE_SECONDS)
        ending = [task for task in (self._sending, self._tending) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._channel.close()
