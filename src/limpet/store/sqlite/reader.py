"""Reading: bounded queries on one connection, each within one instant of the database.

Used inline on the event loop (a page takes well under a millisecond and no cursor outlives a
call), by the writer inside its transaction, and by verification in a thread of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import msgspec

from limpet.errors import (
    LimpetError,
    PositionUnknown,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model.canonical import canonical
from limpet.model.events import Event
from limpet.model.fold import Fold, ScopeKey, ScopeValue, replay_any, scope_next
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.model.values import freeze
from limpet.store import bodies
from limpet.store.codec import Codec, Damaged
from limpet.store.cursor import write_position
from limpet.store.pages import Room, bare, newest, within
from limpet.store.protocol import Erasure, FeedEntry, Place
from limpet.store.room import DELETED
from limpet.store.scopes import Scopes, Unread
from limpet.store.sqlite import rows
from limpet.store.sqlite.sql import SQL

_PAGE = 500
_MALFORMED = (AssertionError, AttributeError, TypeError, ValueError)  # a value of another kind
_STRETCH = 2_000
_BACK = 32


class Found(msgspec.Struct):
    """A session's fold as read from disk, and what it took to get there."""

    sid: int
    fold: Fold
    snapshot_bytes: int
    delta_bytes: int
    events: tuple[Event, ...]  # the last of those since the snapshot, as many as were asked for


class Reader:
    """Everything that is asked of a database."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self.conn, self.codec = conn, codec
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
        while page := self._sized(sid, head.uid, SQL["events_after"], (seq, _PAGE), room := Room()):
            if page[-1][0].seq <= seq:
                break  # an index out of order would go round for ever
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
        self, sid: int, uid: str, sql: str, *args: Any, room: Room | None = None
    ) -> tuple[Event, ...]:
        """A page of a query's events; rows that cannot be read at all are stood in for."""
        return bare(self._sized(sid, uid, sql, args, room or Room()))

    def _sized(
        self, sid: int, uid: str, sql: str, args: tuple[Any, ...], room: Room
    ) -> list[tuple[Event, int]]:
        codec, used = self.codec, room.used
        try:  # row by row: none is read that does not fit the page
            with closing(self.conn.execute(sql, (sid, *args))) as found:
                return within(room, (rows.sized_event(row, uid, codec) for row in found))
        except (apsw.CorruptError, UnicodeDecodeError):
            # Some row is broken: fetch each by itself, so that only that one is lost.
            room.used = used
            sql = sql.replace(f"SELECT {rows.EVENT_COLUMNS}", "SELECT seq")
            seqs = self._rows(sql, (sid, *args))
            return within(room, (self._event(sid, uid, seq) for (seq,) in seqs))

    def newest(
        self, sid: int, head: Head, limit: int, since_us: int | None, room: Room
    ) -> tuple[Event, ...]:
        """The last events, and of those none much older than a time: read back page by page."""
        size = limit if since_us is None else min(limit, _BACK)
        found: list[Event] = []
        past = head.version + 1
        while len(found) < limit and not room.full:
            args = (past, min(size, limit - len(found)))
            page = self.events(sid, head.uid, SQL["events_last"], *args, room=room)
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

    def recorded(self, sid: int, uid: str, id: str) -> Event | None:
        row = self.conn.execute(SQL["event_by_id"], (rows.pack_id(id), sid)).fetchone()
        return None if row is None else rows.event_from(row, uid, self.codec)

    def changes(
        self, after: int, app: str | None, key: Key | None, limit: int, room: Room
    ) -> tuple[tuple[FeedEntry, ...], int]:
        """Events beyond a position. Looks at no more than a stretch of the log at a time."""
        start, end = self._rows(SQL["feed_next"], (after,))[0]
        if start is None:
            if after > self.feed_end():
                raise PositionUnknown(write_position(after))
            return (), after
        stretch = min(end, start + _STRETCH - 1)  # from where there is something: there are gaps
        user, id = (None, None) if key is None else (key.user, key.id)
        app = app if key is None else key.app
        asked = (after, stretch, app, user, id, limit)
        found = bare(self._entries(asked, room))
        if len(found) == limit or room.full:
            return found, int(found[-1].position)
        return found, stretch

    def _entries(self, asked: tuple[Any, ...], room: Room) -> list[tuple[FeedEntry, int]]:
        used = room.used
        try:
            with closing(self.conn.execute(SQL["feed"], asked)) as found:
                return within(room, map(self._entry, found))
        except (apsw.CorruptError, UnicodeDecodeError):
            room.used = used
            return within(room, map(self._entry_at, self._rows(SQL["feed_places"], asked)))

    def _entry(self, row: tuple[Any, ...]) -> tuple[FeedEntry, int]:
        event, size = rows.sized_event(row[5:], rows.unpack_id(row[4]), self.codec)
        return FeedEntry(write_position(row[0]), Key(*row[1:4]), event), size

    def _entry_at(self, place: tuple[Any, ...]) -> tuple[FeedEntry, int]:
        """An entry by itself: if its row cannot be read, an event stands for it that says so."""
        pos, app, user, id, _, seq = place
        try:
            return self._entry(self._rows(SQL["feed"], (pos - 1, pos, app, user, id, 1))[0])
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            lost = rows.lost_event(seq, f"has a row that cannot be read ({error})")
            return FeedEntry(write_position(pos), Key(app, user, id), lost), 0

    def feed_end(self) -> int:
        """The last position that was handed out, be it of an event that is gone."""
        return int(self.conn.execute(SQL["feed_issued"]).get)

    # --- scopes --------------------------------------------------------------------------------

    def scopes(self, app: str, user: str) -> Scopes:
        """The newest version of every name that the user's sessions see, values unread."""
        if self.conn.execute(SQL["scope_any"], (app, user)).fetchone() is None:
            return Scopes()  # as most often, and much cheaper to see
        try:
            read = self._rows(SQL["scopes"], (app, user))
        except (
            UnicodeDecodeError
        ):  # some row is broken: each name by itself, so that only it is lost
            owned = ((app, owner, name) for owner in ("", user) for name in self.names(app, owner))
            apart = {key[2]: found[0] for key in owned if (found := self.scope(key)) is not None}
            return Scopes(apart)
        steps: dict[ScopeKey, list[tuple[Any, ...]]] = {}
        for owner, name, *step in read:
            steps.setdefault((app, owner, name), []).append(tuple(step))
        return Scopes({key[2]: self._unread(key, rows_) for key, rows_ in steps.items()})

    def names(self, app: str, user: str) -> dict[str, int]:
        """The names of one owner and the bytes that each takes, for `Room`."""
        found = self._rows(SQL["scope_names"], (app, user))
        return {n: DELETED if form == bodies.DELETED else size for n, form, size in found}

    def scope_version(self, key: ScopeKey) -> int:
        return int(self.conn.execute(SQL["scope_version"], key).get)

    def _unread(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> Unread:
        version = max([int(step[0]) for step in steps])
        return Unread(version, lambda: self._newest(key, sorted(steps))[0])

    def scope(self, key: ScopeKey) -> tuple[ScopeValue, int, int] | None:
        """The newest version of a name, the version of its base, and the bytes of ops since (-1:
        the next version must be written whole). A value that cannot be read is told, not raised."""
        row = self.conn.execute(SQL["scope_newest"], key).fetchone()
        if row is None:
            return None
        try:
            steps = self._rows(SQL["scope_since"], (*key, row[1]))
        except UnicodeDecodeError as error:
            return ScopeValue(row[0], None, False, str(error)), row[0], -1
        return self._newest(key, steps)

    def _newest(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> tuple[ScopeValue, int, int]:
        """What the rows of a name from its base on, in order, amount to. Told as `scope` tells."""
        version, base, form = steps[-1][:3]
        try:
            if form == bodies.DELETED:
                self._scope_raw(key, steps[-1])
                return ScopeValue(version, None, True), version, -1
            value, size = self._folded(key, steps)
        except (Damaged, msgspec.MsgspecError, LimpetError, *_MALFORMED) as error:
            return ScopeValue(version, None, False, str(error) or repr(error)), version, -1
        return value, base, size

    def _folded(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> tuple[ScopeValue, int]:
        """The value that rows amount to, and the bytes of ops among them."""
        value: ScopeValue | None = None
        size = 0
        for step in steps:
            raw = self._scope_raw(key, step)
            if step[2] == bodies.WHOLE:
                value = ScopeValue(step[0], freeze(msgspec.json.decode(raw)))
            else:
                value = scope_next(key, value, bodies.scope_op_from(raw))
                size += len(raw)
        assert value is not None
        return value, size

    def _scope_raw(self, key: ScopeKey, row: tuple[Any, ...]) -> bytes:
        version, base, form, flags, body, crc, uid, seq = row
        place = bodies.scope_place(key, version, base, form, rows.unpack_id(uid), seq)
        return self.codec.unpack(flags, body, crc, lambda: place, bound=True)
