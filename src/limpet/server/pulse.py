"""Streams that cost next to nothing while nothing happens.

A follower of a session looks at its store every few milliseconds, which is right for a worker and
too much for a page that somebody left open. A stream of the server waits here instead: one look at
the store's pulse every LOOK_SECONDS serves all of them. When something was recorded, the stream
follows as anybody else does, partial events included, until its session has been quiet for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from limpet.errors import LimpetError
from limpet.model import Event
from limpet.server.limits import LIVELY_SECONDS, LOOK_SECONDS
from limpet.session.follow import feed_of
from limpet.session.limpet import Limpet, journal_of
from limpet.session.session import Session
from limpet.store.protocol import FeedEntry, Hints

_FEED_PAGE: Final = 500


class StorePulse:
    """Says that something was recorded in a store, by this process or by another one."""

    def __init__(self, lp: Limpet) -> None:
        self._lp = lp
        self._bell = asyncio.Event()  # of those who wait now; replaced when it rings
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def bell(self) -> asyncio.Event:
        """To be taken before one looks at the store, and waited for afterwards."""
        return self._bell

    async def wait(self, bell: asyncio.Event) -> None:
        """Wait until something was recorded since the bell was taken. May return without."""
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._look())
            await bell.wait()
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        """Ring whenever the pulse is another one, while somebody waits."""
        journal = journal_of(self._lp)
        seen: object = None  # the first who waits has to look: its change may be over
        while self._waiting:
            try:
                if seen is None and isinstance(journal.store, Hints):
                    await journal.store.listen(lambda: None)  # from now on its pulse knows
                now: object = (journal.store.pulse(), journal.hub.commits)
            except LimpetError:  # each stream finds out by itself
                now = object()
            if now != seen:
                seen = now
                bell, self._bell = self._bell, asyncio.Event()
                bell.set()
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def follow_quietly(
    pulse: StorePulse, lp: Limpet, session: Session[Any], after: int, *, partials: bool
) -> AsyncGenerator[Event, None]:
    """The events of a session after a seq, as `session.follow` yields them."""
    lively = session.status == "running"
    while True:
        bell = pulse.bell
        if not lively and not await session.read(after=after, limit=1):
            await lp.get(session.key, tail=0)  # raises SessionDeleted
            await pulse.wait(bell)
            continue
        async with aclosing(session.follow(after=after, partials=partials)) as events:
            async for event in _until_quiet(lp, session, events):
                after = max(after, event.seq)
                yield event
        lively = False


async def _until_quiet(
    lp: Limpet, session: Session[Any], events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """Events until none came for a while and nobody works on the session."""
    waiting = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait((waiting,), timeout=LIVELY_SECONDS)
            if done:
                yield waiting.result()
                waiting = asyncio.ensure_future(anext(events))
            elif (await lp.get(session.key, tail=0)).status != "running":
                return
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def watch_quietly(
    pulse: StorePulse, lp: Limpet, app: str | None, after: str
) -> AsyncGenerator[FeedEntry, None]:
    """The entries of the feed after a position, as `lp.watch` yields them."""
    feed, position = feed_of(journal_of(lp).store), after
    while True:
        bell = pulse.bell
        entries, position = await feed.changes(position, app=app, key=None, limit=_FEED_PAGE)
        for entry in entries:
            yield entry
        if not entries:
            await pulse.wait(bell)
