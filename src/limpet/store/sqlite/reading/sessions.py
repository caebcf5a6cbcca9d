"""Reading sessions for callers: loads, pages of events and pages of heads, each from one instant.

What was committed or read a moment ago is mostly still in memory: the writer's folds, and the last
events of sessions. It is used if it is of the very version that the head has now. What a process
may never read (forks, lists, logs as they were recorded) is imported when it first does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from limpet.errors import (
    InvalidInput,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import NO_CHECKPOINT, Base, Event, Fold, Head, Key, LastCheckpoint
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX, CachedSession
from limpet.store.coding.codec import Damaged
from limpet.store.pages import PageBytes, newest_since
from limpet.store.protocol import ChainedEvent, Loaded, Owner, Page, Query
from limpet.store.scopes import Scopes
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL

TAILS_MAX: Final = 256
_LAST: Final = 2**62  # beyond every seq


class SessionReader:
    """Sessions as callers read them. `peek` returns what the writer has cached of one."""

    def __init__(self, reader: SQLiteReader, peek: Callable[[Key], CachedSession | None]) -> None:
        self._reader, self._peek = reader, peek
        self._tails: dict[Key, tuple[Event, ...]] = {}

    def load(self, key: Key, tail: int, since_us: int | None, *, scopes: bool) -> Loaded:
        reader = self._reader
        with reader.instant():
            found = self._living(key)  # first: what is gone needs no keys of its names
            names = reader.scopes.all(key.app, key.user) if scopes else Scopes()
            checkpoint = reader.checkpoint(key) if scopes else None
            return self._loaded(*found, tail, since_us, names, checkpoint)

    def load_many(self, keys: Sequence[Key], tail: int) -> list[Loaded | None]:
        """All from one instant; the names of an owner are read once."""
        reader, names = self._reader, dict[Owner, Scopes]()
        done: list[Loaded | None] = []
        with reader.instant():
            has_any = reader.has_checkpoints()
            for key in keys:
                try:
                    found = self._living(key)
                except (SessionNotFound, SessionDeleted, SessionErased):
                    done.append(None)
                    continue
                owner = (key.app, key.user)
                if owner not in names:
                    names[owner] = reader.scopes.all(*owner)
                last = reader.checkpoint(key) if has_any else NO_CHECKPOINT
                done.append(self._loaded(*found, tail, None, names[owner], last))
        return done

    def _loaded(
        self,
        sid: int,
        head: Head,
        tail: int,
        since_us: int | None,
        names: Scopes,
        checkpoint: LastCheckpoint | None,
    ) -> Loaded:
        fold, events, damaged = self._fold(sid, head, tail)
        if len(events) < min(tail, head.version - head.floor):
            events = self._newest(sid, head.key, head, tail, since_us)
        if head.floor and len(events) < tail:
            events = self._with_parents(sid, head, events, tail)
        events = newest_since(events[len(events) - min(tail, len(events)) :], since_us)
        own = [event.seq for event in events if event.damage and event.seq > head.floor]
        if own:  # what is below the floor is in the base
            damaged = tuple(sorted({*damaged, *own}))
        state = (head, fold.fields, fold.versions, names)
        return Loaded(*state, events, damaged, checkpoint, fold.texts)

    def events(
        self, key: Key, after: int, limit: int, types: tuple[str, ...] | None, *, reverse: bool
    ) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.log(key)
            if head.floor:
                from limpet.store.sqlite.reading import lineage

                read = lineage.events_last if reverse else lineage.events_after
                start = (after or head.version + 1) if reverse else after
                return read(self._reader, sid, head, start, limit, types)
            if reverse and types is None and not 0 < after <= head.version:
                return self._newest(sid, key, head, limit)[::-1]
            name = "events_last" if reverse else "events_after"
            bounds = ((after or _LAST), 0) if reverse else (after, _LAST)
            return self._reader.events(sid, head.uid, name, bounds, limit, types=types)

    def by_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.present(key)
            found = [self._reader.event_by_id(sid, head.uid, id) for id in ids]
        return tuple([event for event in found if event is not None])

    def pending_inputs(self, key: Key, limit: int) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.present(key)
            if not head.pending:
                return ()
            return self._reader.events(sid, head.uid, "pending_inputs", (0, _LAST), limit)

    def fold_at(self, key: Key, seq: int, *, replay: bool = True) -> Fold:
        """Without `replay`, at the snapshot before, or where the log begins."""
        from limpet.store.sqlite.reading import lineage

        with self._reader.instant():
            sid, head = self._reader.present(key)
            if not 1 <= seq <= head.version:
                raise InvalidInput(f"session {key} has no event {seq}.")
            part = lineage.segment_with(self._reader, sid, head, seq)
            if part.sid is None:
                raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
            if replay:
                fold = self._reader.fold_at(part.sid, part.head, seq).fold
            else:
                fold = self._reader.snapshot(part.sid, part.head, seq)[0]
        if fold.damaged:
            raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
        return fold

    def records(self, key: Key, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        from limpet.store.sqlite.reading import lineage

        if found := lineage.records_after(self._reader, key, after, limit):
            return found
        with self._reader.instant():
            sid, head = self._reader.living(key)
            return lineage.records_page(self._reader, sid, head.uid, after, limit)

    def base(self, key: Key) -> Base | None:
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if not head.floor:
                return None
            try:
                return self._reader.base(sid, head)
            except Damaged as error:
                raise SessionCorrupt(key, str(error)) from error

    def forks(self, key: Key) -> tuple[Key, ...]:
        """Of the session that lives under the key, also from before it was archived; or of those
        that were deleted under it."""
        conn, names = self._reader.conn, (key.app, key.user, key.id)
        with self._reader.instant():
            found = conn.execute(SQL["sid_of"], names).fetchall()
            name = "tombstones_moved" if found else "tombstones_of"
            found = [*[row[:1] for row in conn.execute(SQL[name], names)], *found]
            rows_ = [row for sid in found for row in conn.execute(SQL["forks_of"], sid[:1])]
        return tuple([Key(*row) for row in rows_])

    def heads(
        self, query: Query, cursor: str | None, limit: int, *, with_states: bool
    ) -> Page[Head]:
        from limpet.store.sqlite.reading import heads

        if not with_states:
            return heads.page(self._reader.conn, query, cursor=cursor, limit=limit)
        from limpet.store.sqlite.reading import heads

        with self._reader.instant():
            return heads.page_with_states(
                self._reader, self._known, query, cursor=cursor, limit=limit
            )

    # --- what is in memory ---------------------------------------------------------------------

    def _living(self, key: Key) -> tuple[int, Head]:
        """sid and head: the writer's, if it is the one that is stored, which is not decoded then.

        The link stands for the whole log, and so for all that follows from it; a lease does not.
        """
        live = self._peek(key)
        if live is not None:
            head, names = live.fold.head, (key.app, key.user, key.id)
            lease = (head.fence, head.lease_us, head.worker, head.leased_us)
            known = (live.sid, head.version, head.link, *lease)
            if self._reader.conn.execute(SQL["standing"], names).fetchone() == known:
                return live.sid, head
        return self._reader.living(key)

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
        found = self._reader.load_fold(sid, head, tail=tail)
        return found.fold, found.events, found.fold.damaged

    def _newest(
        self, sid: int, key: Key, head: Head, limit: int, since_us: int | None = None
    ) -> tuple[Event, ...]:
        """The last events, as many as fit a page, ascending; of a time, hardly any older."""
        last = self._last(key, head, limit)
        if last is None:
            room = PageBytes()
            last = self._reader.newest(sid, head, limit, since_us, room)
            if since_us is None:
                self._keep_last(key, last, room.used)
        return last

    def _last(self, key: Key, head: Head, limit: int) -> tuple[Event, ...] | None:
        """The last events from memory, if all of them are there at this very version.

        An event only changes by another event (when it is processed), so equal versions are equal.
        """
        live = self._peek(key)
        for last in (() if live is None else tuple(live.tail), self._tails.get(key, ())):
            current = last and last[-1].seq == head.version and last[-1].link == head.link
            if current and len(last) >= min(limit, head.version - head.floor):
                return last[len(last) - min(limit, len(last)) :]
        return None

    def _with_parents(
        self, sid: int, head: Head, events: tuple[Event, ...], tail: int
    ) -> tuple[Event, ...]:
        """The last events, and before them those of the parent, as many as were asked for."""
        first = events[0].seq if events else head.version + 1
        if first != head.floor + 1:  # not all own events fitted: no gap is left
            return events
        from limpet.store.sqlite.reading import lineage

        left = tail - len(events)
        older = lineage.events_last(self._reader, sid, head, first, left, None)
        return (*reversed(older), *events)

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
