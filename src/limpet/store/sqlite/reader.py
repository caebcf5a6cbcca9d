"""Reading sessions: bounded queries on one connection, each within one instant of the database.

Used inline on the event loop (a page takes well under a millisecond and no cursor outlives the
query), by the writer inside its transaction, and by verification in a thread of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import msgspec

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model.canonical import canonical
from limpet.model.events import Event
from limpet.model.fold import Fold, replay_any
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store import bodies
from limpet.store.codec import Codec, Damaged
from limpet.store.pages import Room, bare, newest, within
from limpet.store.protocol import Erasure, Place
from limpet.store.sqlite import rows
from limpet.store.sqlite.scopes import ScopeReader
from limpet.store.sqlite.sql import SQL, compose, select_types

_PAGE = 500
_BACK = 32


class Found(msgspec.Struct):
    """A session's fold as read from disk, and what it took to get there."""

    sid: int
    fold: Fold
    snapshot_bytes: int
    delta_bytes: int
    events: tuple[Event, ...]  # the last of those since the snapshot, as many as were asked for


class Reader:
    """Heads, folds and events of sessions; `scopes` reads the shared names."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self.conn, self.codec = conn, codec
        self.scopes = ScopeReader(conn, codec)
        self._secret: bytes | None = None

    @contextmanager
    def instant(self) -> Iterator[None]:
        """All reads inside see the database at one moment."""
        self.conn.execute("BEGIN")
        try:
            yield
        finally:
            try:
                self.conn.execute("COMMIT")
            except apsw.Error:  # a damaged page was met; nothing was written, so nothing is lost
                if self.conn.in_transaction:
                    self.conn.execute("ROLLBACK")

    def _rows(self, sql: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self.conn.execute(sql, args).fetchall()

    # --- heads ---------------------------------------------------------------------------------

    def head(self, key: Key) -> tuple[int, Head] | None:
        """sid and head of a living session; None if there never was one."""
        row = self.conn.execute(SQL["head"], (key.app, key.user, key.id)).fetchone()
        if row is None:
            if self.erasure(key) is not None:
                raise SessionErased(key)
            return None
        if row[-1] is not None:
            raise SessionDeleted(key)
        return row[0], rows.head_from(row)

    def living(self, key: Key) -> tuple[int, Head]:
        found = self.head(key)
        if found is None:
            raise SessionNotFound(key)
        return found

    def erasure(self, key: Key) -> Erasure | None:
        row = self.conn.execute(SQL["erased"], (self.key_hash(key),)).fetchone()
        return None if row is None else Erasure(*row)

    def key_hash(self, key: Key) -> bytes:
        """What is kept of an erased key: enough to know it again. The secret is in the same file,
        so who has the file can test a guess; it cannot be read off."""
        if self._secret is None:
            self._secret = bytes(self.conn.execute(SQL["secret"]).get)
        return hmac.new(self._secret, canonical(key), hashlib.sha256).digest()

    # --- the fold ------------------------------------------------------------------------------

    def found(self, sid: int, head: Head, *, tail: int = 0) -> Found:
        """The session's fold at `head`: its snapshot and the events since, a page at a time."""
        fold, snapshot_bytes = self.snapshot(sid, head)
        last: list[tuple[Event, int]] = []
        count = 0
        damaged: list[int] = []
        size = self._rows(SQL["delta_bytes"], (sid, fold.head.version))[0][0]
        seq = fold.head.version
        while page := self._sized(sid, head.uid, "events_after", seq, _PAGE, room := Room()):
            if page[-1][0].seq <= seq:
                break  # an index out of order would never end
            for event, _ in page:
                damaged += range(seq + 1, event.seq)  # rows that are not there at all
                fold, whole = replay_any(fold, event)
                if not whole:
                    damaged.append(event.seq)
                seq = event.seq
            count += len(page)
            last = newest(last + page, tail)
            if len(page) < _PAGE and not room.full:
                break  # within one instant there is no more, and most sessions are one page
        damaged += range(seq + 1, head.version + 1)
        settled = Fold(head, fold.fields, fold.versions, tuple(damaged))
        size += EVENT_OVERHEAD_BYTES * count
        return Found(sid, settled, snapshot_bytes, size, bare(last))

    def snapshot(self, sid: int, head: Head) -> tuple[Fold, int]:
        """The fold at the snapshot, or before the first event: a bad snapshot only costs time."""
        try:
            row = self.conn.execute(SQL["snapshot"], (sid,)).fetchone()
        except (apsw.CorruptError, UnicodeDecodeError):
            row = None
        return self.snapshot_in(row, head)

    def snapshot_in(self, row: tuple[Any, ...] | None, head: Head) -> tuple[Fold, int]:
        """The same, of a row that was read."""
        start = Fold(blank(head.key, head.uid, head.created_us))
        try:
            if row is None or row[0] > head.version:
                return start, 0
            seq, flags, body, crc = row
            place = Place("snapshot", head.uid, str(seq))
            raw = self.codec.unpack(flags, body, crc, lambda: place, bound=True)
            fields, versions = bodies.snapshot_from(raw)
        except (Damaged, msgspec.MsgspecError, TypeError, UnicodeDecodeError):
            return start, 0  # even a value of another kind than its column's: one bit makes it so
        at = msgspec.structs.replace(start.head, version=seq)
        return Fold(at, fields, versions), len(raw)

    # --- events --------------------------------------------------------------------------------

    def events(
        self,
        sid: int,
        uid: str,
        name: str,
        start: int,
        limit: int,
        *,
        types: tuple[str, ...] | None = None,
        room: Room | None = None,
    ) -> tuple[Event, ...]:
        """A page of a statement's events; rows that cannot be read at all are stood in for."""
        return bare(self._sized(sid, uid, name, start, limit, room or Room(), types))

    def _sized(
        self,
        sid: int,
        uid: str,
        name: str,
        start: int,
        limit: int,
        room: Room,
        types: tuple[str, ...] | None = None,
    ) -> list[tuple[Event, int]]:
        codec, used = self.codec, room.used
        chosen, chosen_args = select_types(types)
        args = (sid, start, *chosen_args, limit)
        try:  # row by row: none is read that does not fit the page
            with closing(self.conn.execute(compose(name, types=chosen), args)) as found:
                return within(room, (rows.sized_event(row, uid, codec) for row in found))
        except (apsw.CorruptError, UnicodeDecodeError):
            # Some row is broken: read each by itself, so that only that one is lost.
            room.used = used
            seqs = self._rows(compose(name, event="seq", types=chosen), args)
            return within(room, (self._event(sid, uid, seq) for (seq,) in seqs))

    def oldest_pending(self, sid: int, count: int) -> int | None:
        """The seq of the oldest of so many pending inputs; None if there are none."""
        found: int | None = self.conn.execute(SQL["pending_since"], (sid, count)).get
        return found

    def newest(
        self, sid: int, head: Head, limit: int, since_us: int | None, room: Room
    ) -> tuple[Event, ...]:
        """The last events, and of those none much older than a time: read back page by page."""
        size = limit if since_us is None else min(limit, _BACK)
        found: list[Event] = []
        past = head.version + 1
        while len(found) < limit and not room.full:
            most = min(size, limit - len(found))
            page = self.events(sid, head.uid, "events_last", past, most, room=room)
            found += page
            if not page or page[-1].seq >= past:
                break  # the beginning, or an index out of order that would never end
            if since_us is not None and 0 < page[-1].at_us < since_us:
                break  # 0: a row that cannot be read says nothing
            past, size = page[-1].seq, size * 2
        return tuple(reversed(found))

    def _event(self, sid: int, uid: str, seq: int) -> tuple[Event, int]:
        try:
            row = self._rows(SQL["event_at"], (sid, seq))[0]
            return rows.sized_event(row, uid, self.codec)
        except (apsw.CorruptError, UnicodeDecodeError, TypeError, IndexError) as error:
            return rows.lost_event(seq, f"has a row that cannot be read ({error})"), 0

    def event_from(self, row: tuple[Any, ...], uid: str) -> Event:
        """The event in a row of EVENT_COLUMNS."""
        return rows.event_from(row, uid, self.codec)

    def recorded(self, sid: int, uid: str, id: str) -> Event | None:
        row = self.conn.execute(SQL["event_by_id"], (rows.pack_id(id), sid)).fetchone()
        return None if row is None else rows.event_from(row, uid, self.codec)
