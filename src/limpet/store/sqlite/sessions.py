"""Reading sessions for callers: loads, pages of events and pages of heads, each from one instant.

What was committed or read a moment ago is mostly still in memory: the writer's folds, and the last
events of sessions. It is used if it is of the very version that the head has now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from limpet.model.events import Event
from limpet.model.fold import Fold
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX, Live
from limpet.store.pages import Room
from limpet.store.protocol import Loaded, Page, Query
from limpet.store.scopes import Scopes
from limpet.store.select import newest_since
from limpet.store.sqlite import heads, states
from limpet.store.sqlite.reader import Reader

TAILS_MAX: Final = 256


class Sessions:
    """What callers read of sessions. `peek` gives what the writer has in memory of one."""

    def __init__(self, reader: Reader, peek: Callable[[Key], Live | None]) -> None:
        self._reader, self._peek = reader, peek
        self._tails: dict[Key, tuple[Event, ...]] = {}

    def load(self, key: Key, tail: int, since_us: int | None, *, scopes: bool) -> Loaded:
        reader = self._reader
        with reader.instant():
            sid, head = reader.living(key)
            fold, events, damaged = self._fold(sid, head, tail)
            if len(events) < min(tail, head.version):
                events = self._newest(sid, key, head, tail, since_us)
            names = reader.scopes.all(key.app, key.user) if scopes else Scopes()
        events = newest_since(events[len(events) - min(tail, len(events)) :], since_us)
        damaged = tuple(sorted({*damaged, *(event.seq for event in events if event.damage)}))
        return Loaded(head, fold.fields, fold.versions, names, events, damaged)

    def events(
        self, key: Key, after: int, limit: int, types: tuple[str, ...] | None, *, reverse: bool
    ) -> tuple[Event, ...]:
        name = "events_last" if reverse else "events_after"
        start = (after or 2**62) if reverse else after
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if reverse and types is None and not 0 < after <= head.version:
                return self._newest(sid, key, head, limit)[::-1]
            return self._reader.events(sid, head.uid, name, start, limit, types=types)

    def pending_inputs(self, key: Key, limit: int) -> tuple[Event, ...]:
        """The head knows how many there are, so no row before the oldest is looked at."""
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if not head.pending:
                return ()
            since = self._reader.oldest_pending(sid, head.pending)
            if since is None:  # the head counts inputs that are lost
                return ()
            return self._reader.events(sid, head.uid, "pending_inputs", since, limit)

    def heads(self, query: Query, cursor: str | None, limit: int, *, with_states: bool) -> Page:
        if not with_states:
            return heads.page(self._reader.conn, query, cursor=cursor, limit=limit)
        with self._reader.instant():
            return states.page(self._reader, self._known, query, cursor=cursor, limit=limit)

    # --- what is in memory ---------------------------------------------------------------------

    def _known(self, head: Head) -> Fold | None:
        """The fold at this very head, if the writer has it undamaged."""
        live = self._peek(head.key)
        if live is None or live.damaged:
            return None
        fold = live.fold
        same = (fold.head.version, fold.head.uid) == (head.version, head.uid)
        return fold if same else None

    def _fold(
        self, sid: int, head: Head, tail: int
    ) -> tuple[Fold, tuple[Event, ...], tuple[int, ...]]:
        """The fold at this head: the writer's if it is just that, else read from the tables."""
        fold = self._known(head)
        if fold is not None:
            return fold, (), ()
        found = self._reader.found(sid, head, tail=tail)
        return found.fold, found.events, found.fold.damaged

    def _newest(
        self, sid: int, key: Key, head: Head, limit: int, since_us: int | None = None
    ) -> tuple[Event, ...]:
        """The last events, as many as fit a page, ascending; of a time, hardly any older."""
        last = self._last(key, head, limit)
        if last is None:
            room = Room()
            last = self._reader.newest(sid, head, limit, since_us, room)
            if since_us is None:
                self._keep_last(key, last, room.used)
        return last

    def _last(self, key: Key, head: Head, limit: int) -> tuple[Event, ...] | None:
        """The last events from memory, if all of them are there at this very version.

        An event only changes by another event (when it is processed), so equal versions are equal.
        """
        live = self._peek(key)
        for last in (() if live is None else live.tail, self._tails.get(key, ())):
            current = last and last[-1].seq == head.version and last[-1].link == head.link
            if current and len(last) >= min(limit, head.version):
                return last[len(last) - min(limit, len(last)) :]
        return None

    def _keep_last(self, key: Key, last: tuple[Event, ...], size: int) -> None:
        """Remember the last events that were read: they are asked for again and again.

        Not those with an event that could not be read: it may be readable the next time.
        """
        if any([event.damage for event in last]):
            return
        if 0 < len(last) <= TAIL_MAX and size <= TAIL_MAX * TAIL_BYTES_MAX:
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            self._tails[key] = last
