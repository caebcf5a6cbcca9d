"""Following a session live.

The log is the truth and the bell only a hint: a follower reads on from its own position, so no
recorded event is lost or doubled whatever happens to the hints. In one process the bell rings at
once; across processes a poller, one for all followers, asks the store whether anything changed.
Partial events travel beside the log, in this process, and keep their place among recorded ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

from limpet.errors import FollowerBehind, StoreClosed, StoreError
from limpet.model.events import Event
from limpet.model.keys import Key
from limpet.model.limits import PARTIALS_WAITING_MAX
from limpet.session.logs import SESSION
from limpet.store.logs import error_name
from limpet.store.protocol import Hints, Store
from limpet.store.select import wanted

POLL_SECONDS: Final = 0.005
_PAGE: Final = 100
_UNKNOWN: Final = (
    2**62
)  # a version not known yet: later than any, until the log was read to its end


class _Follower:
    __slots__ = ("behind", "bell", "partials", "types")

    def __init__(self, types: tuple[str, ...] | None) -> None:
        self.types = types
        self.bell = asyncio.Event()
        self.partials: deque[tuple[int, Event]] = deque()
        self.behind = False


class Hub:
    """Who follows what, in one Limpet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: dict[Key, set[_Follower]] = {}
        self._versions: dict[Key, int] = {}
        self._bells: set[asyncio.Event] = set()
        self._poller: asyncio.Task[None] | None = None
        self._open = True

    def touch(self, key: Key, version: int = 0) -> None:
        """Say that the session reached this version (or, with none, ceased to be), here."""
        for bell in self._bells:
            bell.set()
        followers = self._followers.get(key)
        if followers:
            if version and (version > self._versions[key] or self._versions[key] == _UNKNOWN):
                self._versions[key] = version
            for follower in followers:
                follower.bell.set()

    def publish(self, key: Key, partial: Event, version: int) -> None:
        """Hand a partial event to those who follow now, after what was recorded before it.

        `version` is what its publisher knows of; 0 if nothing.
        """
        known = self._versions.get(key, _UNKNOWN)
        mark = max(known, version) if known != _UNKNOWN else version or _UNKNOWN
        for follower in self._followers.get(key, ()):
            if not wanted(partial.type, follower.types):
                continue
            if len(follower.partials) >= PARTIALS_WAITING_MAX:
                follower.behind = True
                follower.partials.clear()
            if not follower.behind:
                follower.partials.append((mark, partial))
            follower.bell.set()

    async def follow(
        self, key: Key, after: int, types: tuple[str, ...] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Every event (of these types) beyond seq `after`, in order, once; and partials as they
        come."""
        # All are read and the others passed over: a store that selected would be asked again from
        # the last match on, each time anything is recorded.
        position = after
        with self._joined(key, types) as follower:
            while True:
                follower.bell.clear()
                if follower.behind:
                    raise FollowerBehind(position, PARTIALS_WAITING_MAX)
                page = await self._read(key, position)
                for event in page:
                    while follower.partials and follower.partials[0][0] < event.seq:
                        yield follower.partials.popleft()[1]
                    position = event.seq
                    if wanted(event.type, types):
                        yield event
                if page:  # a page may be short, and more follow
                    await asyncio.sleep(0)  # nothing of it may have been wanted: let others run
                    continue
                if self._versions[key] == _UNKNOWN:
                    self._versions[key] = position
                while follower.partials and _reached(follower.partials[0][0], position):
                    yield follower.partials.popleft()[1]
                await follower.bell.wait()

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Event]:
        """A bell that rings whenever anything may have changed, here or in another process."""
        bell = asyncio.Event()
        self._bells.add(bell)
        self._start_polling()
        try:
            yield bell
        finally:
            self._bells.discard(bell)
            self._rest()

    def check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    def ring(self) -> None:
        """Have everybody look: something may have changed."""
        for followers in self._followers.values():
            for follower in followers:
                follower.bell.set()
        for bell in self._bells:
            bell.set()

    async def close(self) -> None:
        self._open = False
        self.ring()
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)

    async def _read(self, key: Key, position: int) -> tuple[Event, ...]:
        self.check_open()
        return await self._store.read(key, after=position, limit=_PAGE, reverse=False, types=None)

    @contextmanager
    def _joined(self, key: Key, types: tuple[str, ...] | None) -> Iterator[_Follower]:
        follower = _Follower(types)
        self._followers.setdefault(key, set()).add(follower)
        self._versions.setdefault(key, _UNKNOWN)
        self._start_polling()
        try:
            yield follower
        finally:
            followers = self._followers[key]
            followers.discard(follower)
            if not followers:
                del self._followers[key], self._versions[key]
            self._rest()

    def _start_polling(self) -> None:
        if self._poller is None and self._open:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def _rest(self) -> None:
        """Nobody looks any more: no need to ask the store."""
        if not self._followers and not self._bells and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self) -> None:
        if isinstance(self._store, Hints):
            await self._store.listen(self.ring)
        pulse, lost = None, False
        while True:
            try:
                now = self._store.pulse()
            except (StoreError, MemoryError) as error:
                now = None  # let each reader find out by itself, and go on asking
                if not lost:
                    SESSION.warning("feed reader lost: error=%s", error_name(error))
            if lost and now is not None:
                SESSION.info("feed reader regained")
            lost = now is None
            if now is None or now != pulse:
                pulse = now
                self.ring()
            await asyncio.sleep(POLL_SECONDS)


def _reached(mark: int, position: int) -> bool:
    """Whether everything recorded before a partial was delivered, given all was read just now."""
    return mark <= position or mark == _UNKNOWN
