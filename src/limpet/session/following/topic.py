"""A topic: one session that is followed in this process, and who follows it.

It knows how far the session has come, keeps partial events in their place for each follower, and
lets followers that stand at the same place share what one of them has read. No I/O happens here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from limpet.model import Event, Key
from limpet.model.limits import FINALS_REMEMBERED, PARTIALS_WAITING_MAX
from limpet.store.pages import wanted

# A version that is not known yet: later than any, until the log was read to its end.
UNKNOWN: Final = 2**62


class Follower:
    """What waits for one follower, and the bell that says so."""

    __slots__ = ("behind", "bell", "joining", "partials", "takes_partials", "types")

    def __init__(self, types: tuple[str, ...] | None, *, takes_partials: bool) -> None:
        self.types, self.takes_partials = types, takes_partials
        self.bell = asyncio.Event()
        self.partials: deque[tuple[int, Event]] = deque()
        self.behind = False
        self.joining = True  # until its first page was read

    def offer(self, mark: int, partial: Event) -> None:
        """Queue a partial that comes after the event with seq `mark`.

        One that is still joining could not read any of them yet: it loses the oldest, as if it had
        joined a moment later. One that reads too slowly is behind.
        """
        if not self.takes_partials or not wanted(partial.type, self.types):
            return
        if len(self.partials) >= PARTIALS_WAITING_MAX:
            if self.joining:
                self.partials.popleft()
            else:
                self.behind = True
                self.partials.clear()
        if not self.behind:
            if self.partials:
                mark = max(mark, self.partials[-1][0])  # they keep their own order
            self.partials.append((mark, partial))
        self.bell.set()


class Topic:
    """One session that is followed here."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.followers: set[Follower] = set()
        self.version = UNKNOWN
        self.generation = 0  # grows whenever there may be something to read
        self.endings = 0  # grows whenever the session may have ended
        self.reading: asyncio.Task[tuple[Event, ...]] | None = None
        self.asked = (0, 0)  # after which seq it reads, and in which generation
        self._page: tuple[Event, ...] = ()
        self._page_after = 0
        self._finals: dict[str, int] = {}  # the newest recorded events that were read: id to seq
        self._newest = 0
        self._attempts: dict[str, int] = {}  # the last attempt of each final event's id

    def reached(self, version: int) -> None:
        """The session is at this version, or beyond it. Its followers are to be rung."""
        self.generation += 1
        if self.version != UNKNOWN:  # else what came before it may not be known either
            self.version = max(self.version, version)

    def changed(self) -> None:
        """Anything may have happened to the session. Its followers are to be rung."""
        self.generation += 1
        self.endings += 1
        self.version = UNKNOWN
        self._page = ()

    def read_to(self, position: int, generation: int) -> None:
        """A follower read everything up to here in this generation, and found no more."""
        if self.version == UNKNOWN and generation == self.generation:
            self.version = position

    def is_end(self, position: int, generation: int) -> bool:
        """Whether a follower that read on in this generation has everything that is known of."""
        return position == self.version and generation == self.generation

    # --- pages that followers share --------------------------------------------------------------

    def keep(self, after: int, page: tuple[Event, ...]) -> None:
        """Keep what was read for followers that stand at the same place."""
        self._page_after, self._page = after, page

    def kept(self, after: int) -> tuple[Event, ...]:
        """What another follower read beyond this seq; empty if nothing of it is kept."""
        page = self._page
        if not page or not self._page_after <= after < page[-1].seq:
            return ()
        return page if after == self._page_after else tuple([e for e in page if e.seq > after])

    def drop_page(self) -> None:
        self._page = ()

    # --- partials --------------------------------------------------------------------------------

    def passed(self, event: Event) -> None:
        """A follower is about to deliver a recorded event, or to pass over it."""
        if event.seq > self._newest:
            self._newest = event.seq
            self._finals[event.id] = event.seq
            self._attempts.pop(event.id, None)
            _bound(self._finals)

    def publish(self, mark: int, partial: Event) -> None:
        """Offer a partial to every follower, after the event with seq `mark`.

        One of an earlier attempt than the last is dropped: its publisher was replaced.
        """
        if partial.attempt < self._attempts.get(partial.id, 0):
            return
        self._attempts[partial.id] = partial.attempt
        _bound(self._attempts)
        for follower in self.followers:
            follower.offer(mark, partial)

    def due(self, follower: Follower, position: int, *, all_read: bool) -> Event | None:
        """The next partial that belongs before the event after `position`, if any.

        One whose final event was delivered already, or passed over, comes too late and is dropped.
        """
        waiting = follower.partials
        while waiting and (waiting[0][0] <= position or (all_read and waiting[0][0] == UNKNOWN)):
            _, partial = waiting.popleft()
            if self._finals.get(partial.id, UNKNOWN) > position:
                return partial
        return None


def _bound(kept: dict[str, int]) -> None:
    """Forget the oldest."""
    if len(kept) > FINALS_REMEMBERED:
        del kept[next(iter(kept))]
