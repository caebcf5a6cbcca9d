"""The feed reader: one for each open Limpet, whatever the number of its followers.

It asks the store's pulse every few milliseconds. When that has changed it reads which sessions have
new events, beyond the last position, and rings only for those; so a commit of another process costs
one read here. Deletions leave the feed without an entry: when the store says that a session has
ended, every follower looks at its own. The reader is never asked for events: followers read them
from the log, so nothing is lost or doubled if the reader fails and begins again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from limpet.errors import PositionUnknown
from limpet.model import Key
from limpet.session.loggers import SESSION
from limpet.store.logs import error_name
from limpet.store.protocol import Feed, Hints, Store

POLL_SECONDS: Final = 0.005
POLL_SECONDS_LIVELY: Final = 0.002  # for a while after partials came from another process
_LIVELY_SECONDS: Final = 1.0
# The least time between two calls for everybody to look, while it cannot be known who has to.
_RING_SECONDS: Final = 0.25


class Listening(Protocol):
    """Who is told what the reader found."""

    def found(self, sessions: Mapping[Key, int]) -> None:
        """These sessions have events up to these seqs."""
        ...

    def ring(self) -> None:
        """Any session may have changed: everybody has to look."""
        ...

    def waits(self) -> bool:
        """Whether there is anybody who was not told already to look at everything."""
        ...

    def tick(self) -> bool:
        """Called before every dispatch, and every few milliseconds in any case.

        Whether partials came from another process.
        """
        ...


class FeedReader:
    """Runs while somebody follows or watches."""

    def __init__(self, store: Store, listening: Listening) -> None:
        self._store, self._listening = store, listening
        self._feed: Feed | None = None  # looked for at the start: most processes follow nothing
        self._position: str | None = None
        self._ended: str | None = None
        self._rung_at = float("-inf")
        self._lively_until = float("-inf")
        self._bell = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, from the present end of the feed. Costs nothing if it is running."""
        if self._task is None:
            self._feed = self._store if isinstance(self._store, Feed) else None
            self._position = None
            self._started = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def started(self) -> None:
        """Wait until every later commit is noticed, or the store has failed."""
        await self._started.wait()

    @property
    def wake(self) -> Callable[[], None]:
        """Have the reader look at once instead of in a few milliseconds."""
        return self._bell.set

    def stop(self) -> asyncio.Task[None] | None:
        """Read no more. Returns the task that is ending, if one was running."""
        task, self._task = self._task, None
        self._started.set()  # nobody waits for what does not come
        if task is not None:
            task.cancel()
        return task

    async def _run(self) -> None:
        pulse: int | None = None
        lost = False
        while True:
            self._bell.clear()
            self._tick()
            try:
                if pulse is None and isinstance(self._store, Hints):
                    await self._store.listen(self._bell.set)
                now = self._store.pulse()
                if now == pulse or pulse is None or self._listening.waits():
                    if now != pulse:
                        await self._look()
                    pulse = now
                else:  # a busy worker, say: it is told again when it has looked
                    self._position = None
                if lost:
                    SESSION.info("feed reader regained")
                lost = False
            except Exception as error:  # whatever it is, followers must not wait in vain
                pulse = None  # look again; meanwhile let each follower find out by itself
                if not lost:
                    SESSION.warning("feed reader lost: error=%s", error_name(error))
                lost = True
                self._ring_seldom()
            self._started.set()
            await self._nap()

    async def _look(self) -> None:
        feed = self._feed
        if feed is None:
            self._listening.ring()
            return
        more = True
        while more:
            began = self._position is None
            if self._position is None:
                self._position = await feed.position()
            try:
                found = await feed.touched(self._position)
            except PositionUnknown:  # the store was put back to an earlier time
                self._position = None
                raise
            self._position = found.position
            self._tick()  # partials that were sent before these events come before them
            self._listening.found(found.sessions)
            ended, self._ended = self._ended, found.ended
            if began or ended != found.ended:
                self._listening.ring()
            elif not found.whole:
                self._ring_seldom()
            more = found.more
            if more:
                await asyncio.sleep(0)  # a store may answer without a pause: let others run

    def _tick(self) -> None:
        if self._listening.tick():
            self._lively_until = time.monotonic() + _LIVELY_SECONDS

    def _ring_seldom(self) -> None:
        now = time.monotonic()
        if now - self._rung_at >= _RING_SECONDS:
            self._rung_at = now
            self._listening.ring()

    async def _nap(self) -> None:
        lively = time.monotonic() < self._lively_until
        seconds = POLL_SECONDS_LIVELY if lively else POLL_SECONDS
        timer = asyncio.get_running_loop().call_later(seconds, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()
