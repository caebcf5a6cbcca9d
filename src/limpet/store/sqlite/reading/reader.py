"""Reading sessions: bounded queries on one connection, each within one instant of the database.

Used inline on the event loop (a page takes well under a millisecond and no cursor outlives the
query), by the writer inside its transaction, and by verification in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import apsw
import msgspec

from limpet.errors import SessionArchived, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import (
    CHECKPOINTS,
    NO_CHECKPOINT,
    Base,
    Event,
    Fold,
    Head,
    Key,
    LastCheckpoint,
    ScopeKey,
    ScopeValue,
    checkpoints_of,
    genesis,
    last_checkpoint,
)
from limpet.model.facts.phases import is_stub
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.coding import bodies
from limpet.store.coding.bodies import (
    UNREADABLE,
    ScopeNameReader,
    ScopeRow,
    base_from,
    base_in,
    base_place,
    key_hash,
    replay_events,
    scope_after,
    snapshot_in,
    start_fold,
    unreadable_scope,
)
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.coding.seal import Unready, scope_owner
from limpet.store.pages import PageBytes, bare, newest, within
from limpet.store.protocol import Erasure, Owner
from limpet.store.scopes import DELETED, Scopes, UnreadScope
from limpet.store.sqlite import rows
from limpet.store.sqlite.cold import ColdReader
from limpet.store.sqlite.sql import SQL, compose, select_types

_PAGE = 500
_BACK = 32
_RUNGS = 8  # snapshots that are tried before the whole log is read
# The key in a row of a session. It is checked once: the same sessions are claimed and followed
# again and again.
stored_key: Final = lru_cache(maxsize=4_096)(Key)


class StoredFold(msgspec.Struct):
    """A session's fold as read from disk, and what it took to get there."""

    sid: int
    fold: Fold
    snapshot_bytes: int
    delta_bytes: int
    events: tuple[Event, ...]  # the last of those since the snapshot, as many as were asked for


class SQLiteReader:
    """Heads, folds and events of sessions; `scopes` reads the shared names."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self.conn, self.codec = conn, codec
        self.scopes = ScopeReader(conn, codec)
        self.cold = ColdReader(conn, codec)
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

    def head(self, key: Key, *, reuse: bool = False) -> tuple[int, Head] | None:
        """sid and head of a living session; None if there never was one.

        `reuse`: None also if it was deleted.
        """
        names = (key.app, key.user, key.id)
        row = self.conn.execute(SQL["head"], names).fetchone()
        if row is not None:
            return row[0], rows.head_from(row)
        if not reuse and self.conn.execute(SQL["is_buried"], names).fetchone() is not None:
            raise SessionDeleted(key)
        if self.erasure(self.key_hash(key)) is not None:
            raise SessionErased(key)
        return None

    def living(self, key: Key) -> tuple[int, Head]:
        head = self.head(key)
        if head is None:
            raise SessionNotFound(key)
        return head

    def present(self, key: Key) -> tuple[int, Head]:
        """The same, of a session whose log is here. Raises SessionArchived."""
        living = self.living(key)
        if is_stub(living[1].facts):
            raise SessionArchived(key)
        return living

    def log(self, key: Key) -> tuple[int, Head]:
        """The same, of the head only what reading its log takes: a third of the time, once."""
        row = self.conn.execute(SQL["log_of"], (key.app, key.user, key.id)).fetchone()
        if row is None or row[4]:
            return self.present(key)
        sid, uid, version, link, _ = row
        return sid, Head(key, rows.unpack_id(uid), version, link, 0, 0, 0)

    def has_checkpoints(self) -> bool:
        """True if any session has one: most stores have none, and a page of sessions asks once."""
        return self.conn.execute(SQL["any_in_app"], (CHECKPOINTS,)).fetchone() is not None

    def checkpoint(self, key: Key) -> LastCheckpoint | None:
        """The newest checkpoint of a session, from the head of their log; None if that cannot be
        read: the session is read all the same."""
        log = checkpoints_of(key)
        try:
            row = self.conn.execute(SQL["facts"], (log.app, log.user, log.id)).fetchone()
            return NO_CHECKPOINT if row is None else last_checkpoint(rows.facts_from(row[0]))
        except (msgspec.MsgspecError, LookupError, TypeError, UnicodeDecodeError):
            return None

    def erasure(self, key_hash: bytes) -> Erasure | None:
        row = self.conn.execute(SQL["erased"], (key_hash,)).fetchone()
        return None if row is None else Erasure(*row)

    def key_hash(self, key: Key | tuple[str, str, str]) -> bytes:
        """The hash that is kept of an erased key: enough to recognise it. The secret is in the same
        file, so who has the file can test a guess; the key cannot be read off."""
        return key_hash(self.secret, key)

    @property
    def secret(self) -> bytes:
        """The secret that the file was made with."""
        if self._secret is None:
            self._secret = bytes(self.conn.execute(SQL["secret"]).get)
        return self._secret

    def user_hash(self, app: str, user: str) -> bytes:
        """Return the hash that stands for an erased user."""
        return self.key_hash(("user", app, user))

    def holds(self, sid: int, head: Head) -> bool:
        """True if the keys of the session vouch for where its head stands, or it has none."""
        if not self.codec.marks:
            return True
        row = self.conn.execute(SQL["mac"], (sid,)).fetchone()
        return row is not None and self.codec.head_holds(head, row[0])

    # --- the fold ------------------------------------------------------------------------------

    def load_fold(self, sid: int, head: Head, *, tail: int = 0) -> StoredFold:
        """The session's fold at `head`: its snapshot and the events since, a page at a time."""
        at = self.fold_at(sid, head, head.version, tail)
        fold = at.fold
        damaged = fold.damaged
        if self.codec.checks and fold.head.link != head.link and head.version not in damaged:
            damaged = (*damaged, head.version)  # the head knows another last event
        if head.version not in damaged and not self.holds(sid, head):
            damaged = (*damaged, head.version)  # somebody without the keys put it there
        settled = Fold(head, fold.fields, fold.versions, damaged, fold.texts)
        return StoredFold(sid, settled, at.snapshot_bytes, at.delta_bytes, at.events)

    def fold_at(self, sid: int, head: Head, until: int, tail: int = 0) -> StoredFold:
        """The fold after the own event `until`, from the snapshot before it."""
        fold, snapshot_bytes = self.snapshot(sid, head, until)
        if fold.head.version == until:  # as after a clean close: nothing was recorded since
            return StoredFold(sid, fold, snapshot_bytes, 0, ())
        last: list[tuple[Event, int]] = []
        count, seq = 0, fold.head.version
        size = self._rows(SQL["delta_bytes"], (sid, seq, until))[0][0]
        asked = (sid, head.uid, "events_after")
        while page := self._read_page(*asked, (seq, until), _PAGE, room := PageBytes()):
            if page[-1][0].seq <= seq:
                break  # an index out of order would never end
            seq = page[-1][0].seq
            fold = replay_events(fold, bare(page), seq)
            count += len(page)
            last = newest(last + page, tail)
            if len(page) < _PAGE and not room.full:
                break  # within one instant there is no more, and most sessions are one page
        reached = fold if seq == until else replay_events(fold, (), until)
        size += EVENT_OVERHEAD_BYTES * count
        return StoredFold(sid, reached, snapshot_bytes, size, bare(last))

    def snapshot(self, sid: int, head: Head, until: int) -> tuple[Fold, int]:
        """The fold at the newest snapshot up to there, or before the first event.

        A bad snapshot only costs time: the one before it is taken. Below some of them are read no
        further, so that a ladder of bad ones does not cost more than the log.
        """
        for _ in range(_RUNGS):
            try:
                row = self.conn.execute(SQL["snapshot"], (sid, until)).fetchone()
                if row is None or not isinstance(row[0], int):
                    break
                link = self.link_at(sid, head.uid, row[0])
                fold = self.snapshot_in((*row, link), head)
            except (apsw.CorruptError, UnicodeDecodeError):
                break
            if fold is not None:
                return fold
            until = min(row[0], until) - 1
        return self.start(sid, head), 0

    def snapshot_in(self, row: tuple[Any, ...], head: Head) -> tuple[Fold, int] | None:
        """The fold in a row of snapshots that ends with the log's link there, and its size."""
        seq, flags, body, crc, link = row
        return snapshot_in(self.codec, head, seq, link, (flags, body, crc))

    def start(self, sid: int, head: Head) -> Fold:
        """The fold that the log begins on: nothing, or a state. One that cannot be read is a
        hole."""
        base = None
        if head.floor:
            with suppress(Damaged):
                base = self.base(sid, head)
        return start_fold(head, base)

    def base(self, sid: int, head: Head) -> Base:
        """The state that a log begins on, as its first own event names it. Raises Damaged."""
        try:
            packed: Any = self.conn.execute(SQL["base"], (sid,)).fetchone()
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            what = f"the state that its log begins on cannot be read ({error!r})"
            raise Damaged(what) from error
        return base_in(self.codec, head, packed, self._event(sid, head.uid, head.floor + 1)[0])

    # --- events --------------------------------------------------------------------------------

    def events(
        self,
        sid: int,
        uid: str,
        name: str,
        bounds: tuple[int, int],
        limit: int,
        *,
        types: tuple[str, ...] | None = None,
        room: PageBytes | None = None,
    ) -> tuple[Event, ...]:
        """A page of a statement's events; rows that cannot be read at all are stood in for."""
        return bare(self._read_page(sid, uid, name, bounds, limit, room or PageBytes(), types))

    def _read_page(
        self,
        sid: int,
        uid: str,
        name: str,
        bounds: tuple[int, int],
        limit: int,
        room: PageBytes,
        types: tuple[str, ...] | None = None,
    ) -> list[tuple[Event, int]]:
        """A page of rows, and of what is in cold segments before them."""
        used = room.used
        events = self._hot(sid, uid, name, bounds, limit, room, types)
        dense = types is None and bool(events) and _is_dense(events)
        if name == "events_last":
            short = not dense or (len(events) < limit and not room.full)
            if short and (top := self.cold.top(sid)) > bounds[1]:
                room.used = used  # rows of what is pending, among those in segments, are read there
                hot = (bounds[0], max(bounds[1], top))
                events = self._hot(sid, uid, name, hot, limit, room, types)
                if len(events) == limit or room.full:
                    return events
                high = min(bounds[0] - 1, top)
                older = self.cold.events(sid, uid, bounds[1], high, types=types, reverse=True)
                events += within(room, islice(older, limit - len(events)))
            return events
        begins = dense and events[0][0].seq == bounds[0] + 1
        if name != "events_after" or begins or (top := self.cold.top(sid)) <= bounds[0]:
            return events
        room.used = used
        cold = self.cold.events(sid, uid, bounds[0], min(bounds[1], top), types=types)
        events = within(room, islice(cold, limit))
        if len(events) < limit and not room.full:
            rest = (max(top, bounds[0]), bounds[1])
            events += self._hot(sid, uid, name, rest, limit - len(events), room, types)
        return events

    def _hot(
        self,
        sid: int,
        uid: str,
        name: str,
        bounds: tuple[int, int],
        limit: int,
        room: PageBytes,
        types: tuple[str, ...] | None,
    ) -> list[tuple[Event, int]]:
        codec, used = self.codec, room.used
        chosen, chosen_args = select_types(types)
        args = (sid, *bounds, *chosen_args, limit)
        try:  # row by row: none is read that does not fit the page
            columns = rows.CHECKED_COLUMNS if codec.checks else rows.PAGE_COLUMNS
            sql = compose(name, event=columns, types=chosen)
            with closing(self.conn.execute(sql, args)) as cursor:
                time_at = partial(self._time_at, sid)
                if not codec.checks:
                    return within(room, rows.sized_events(cursor, uid, codec, time_at))
                link_before = partial(self._link_before, sid, uid)
                return within(room, rows.checked_events(cursor, uid, codec, time_at, link_before))
        except (apsw.CorruptError, UnicodeDecodeError):
            # Some row is broken: read each alone, so that only that one is lost.
            room.used = used
            seqs = self._rows(compose(name, event="e.seq", types=chosen), args)
            return within(room, (self._event(sid, uid, seq) for (seq,) in seqs))

    def newest(
        self, sid: int, head: Head, limit: int, since_us: int | None, room: PageBytes
    ) -> tuple[Event, ...]:
        """The last events, and of those none much older than a time: read back page by page."""
        size = limit if since_us is None else min(limit, _BACK)
        events: list[Event] = []
        past = head.version + 1
        while len(events) < limit and not room.full:
            most = min(size, limit - len(events))
            bounds = (past, head.floor)
            page = self.events(sid, head.uid, "events_last", bounds, most, room=room)
            events += page
            if not page or page[-1].seq >= past:
                break  # the beginning, or an index out of order that would never end
            if since_us is not None and 0 < page[-1].at_us < since_us:
                break  # 0: a row that cannot be read says nothing
            past, size = page[-1].seq, size * 2
        return tuple(reversed(events))

    def _event(self, sid: int, uid: str, seq: int) -> tuple[Event, int]:
        try:
            fetched = self._rows(SQL["event_at"], (sid, seq))
            if not fetched and seq <= self.cold.top(sid):
                return next(self.cold.events(sid, uid, seq - 1, seq))
            row = fetched[0]
            return rows.sized_event(row, uid, self.codec)
        except (apsw.CorruptError, UnicodeDecodeError, TypeError, IndexError) as error:
            return rows.lost_event(seq, f"has a row that cannot be read ({error})"), 0

    def event_from(self, row: tuple[Any, ...], uid: str) -> Event:
        """The event in a row of EVENT_COLUMNS."""
        return rows.event_from(row, uid, self.codec)

    def event_by_id(self, sid: int, uid: str, id: str) -> Event | None:
        row = self.conn.execute(SQL["event_by_id"], (rows.pack_id(id), sid)).fetchone()
        if row is None:
            return self.cold.by_id(sid, uid, id)
        return rows.event_from(row, uid, self.codec)

    def link_at(self, sid: int, uid: str, seq: int) -> bytes | None:
        """The link of an own event."""
        link: bytes | None = self.conn.execute(SQL["link_at"], (sid, seq)).get
        return self.cold.link_at(sid, uid, seq) if link is None else link

    def _link_before(self, sid: int, uid: str, seq: int) -> bytes | None:
        """The link that an own event follows, to compare it with; None if it cannot be read."""
        if seq == 1:
            return genesis(uid)
        link = self.link_at(sid, uid, seq - 1)
        if link is not None:
            return link
        with suppress(Damaged, apsw.CorruptError, msgspec.MsgspecError, LookupError, ValueError):
            flags, body, crc = self._rows(SQL["base"], (sid,))[0]  # it is a fork's first
            raw = self.codec.unpack(flags, body, crc, lambda: base_place(uid, seq - 1), bound=True)
            return base_from(raw).link
        return None

    def _time_at(self, sid: int, seq: int) -> int | None:
        at_us: int | None = self.conn.execute(SQL["time_at"], (sid, seq)).get
        return at_us

    def time_at(self, sid: int, uid: str, seq: int) -> int | None:
        """The time at which an own event was recorded."""
        at_us = self._time_at(sid, seq)
        if at_us is None:
            event = self.cold.at(sid, uid, seq)
            at_us = None if event is None else event.at_us
        return at_us


class ScopeReader:
    """Everything that is asked of the table of shared names."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self._conn, self._codec = conn, codec

    def all(self, app: str, user: str) -> Scopes:
        """The newest version of every name that the user's sessions see, values unread."""
        if self._conn.execute(SQL["scope_any"], (app, user)).fetchone() is None:
            return Scopes()  # as most often, and much cheaper to see
        try:
            read = self._all(SQL["scopes"], (app, user))
        except UnicodeDecodeError:
            # Some row is broken: read each name alone, so that only that one is lost.
            owned = ((app, owner, name) for owner in ("", user) for name in self.sizes(app, owner))
            apart = {key[2]: newest[0] for key in owned if (newest := self.newest(key)) is not None}
            return Scopes(apart)
        steps: dict[ScopeKey, list[tuple[Any, ...]]] = {}
        for owner, name, *step in read:
            steps.setdefault((app, owner, name), []).append(tuple(step))
        # Values are opened when somebody reads them, and nobody can wait for keys then.
        needs_keys = self._codec.needs_keys
        owners = {
            key[:2] for key, rows_ in steps.items() if any([needs_keys(row[3]) for row in rows_])
        }
        self._codec.sealer.require([scope_owner(*owner) for owner in owners])
        return Scopes({key[2]: self._unread(key, rows_) for key, rows_ in steps.items()})

    def of(self, app: str, user: str) -> dict[str, ScopeValue]:
        """The newest version of every name of one owner."""
        mine = "user:" if user else "app:"
        scopes = self.all(app, user)
        return {name: scopes[name] for name in scopes if name.startswith(mine)}

    def owners(self, app: str | None, after: Owner | None, limit: int) -> tuple[Owner, ...]:
        """A page of owners of names beyond one of them. Each owner is one search."""
        owners: list[Owner] = []
        last = after or (app or "", "")
        query = SQL["next_owner"] if after is not None else SQL["first_owner"]
        while len(owners) < limit:
            row = self._conn.execute(query, last).fetchone()
            if row is None or app not in (None, row[0]):
                break
            last = (row[0], row[1])
            owners.append(last)
            query = SQL["next_owner"]
        return tuple(owners)

    def sizes(self, app: str, user: str) -> dict[str, int]:
        """The names of one owner and the bytes that each takes, for `ScopeLimits`."""
        names = self._all(SQL["scope_names"], (app, user))
        return {n: DELETED if form == bodies.DELETED else size for n, form, size in names}

    def version(self, key: ScopeKey) -> int:
        return int(self._conn.execute(SQL["scope_version"], key).get)

    def _unread(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> UnreadScope:
        version = max([int(step[0]) for step in steps])
        return UnreadScope(version, lambda: self._late(key, version, sorted(steps)))

    def _late(self, key: ScopeKey, version: int, steps: list[tuple[Any, ...]]) -> ScopeValue:
        """The value that somebody reads now. Its keys may be gone since it was loaded."""
        try:
            value: ScopeValue | None = None
            for step in steps:
                value = self.after(key, value, step)
            assert value is not None
            return value
        except Unready as error:
            return ScopeValue(version, None, False, str(error))

    def newest(self, key: ScopeKey) -> tuple[ScopeValue, int, int] | None:
        """The newest version of a name, the version of its base, and the bytes of ops since (-1:
        the next version must be written whole). A value that cannot be read has `damage` set."""
        row = self._conn.execute(SQL["scope_newest"], key).fetchone()
        if row is None:
            return None
        try:
            steps = self._all(SQL["scope_since"], (*key, row[1]))
        except UnicodeDecodeError as error:
            return ScopeValue(row[0], None, False, str(error)), row[0], -1
        return self._read(key, steps)

    def at(self, key: ScopeKey, version: int) -> ScopeValue | None:
        """The value of a name at one version."""
        steps = self._all(SQL["scope_at"], (*key, version))
        return self._read(key, steps)[0] if steps else None

    def _read(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> tuple[ScopeValue, int, int]:
        """The value that a name's rows from its base on make, in order. As `newest` returns it."""
        name = ScopeNameReader(key, self._codec)
        for step in steps:
            name.add(_scope_row(step))
        assert name.value is not None
        return name.value, name.base, name.since_base

    def after(self, key: ScopeKey, before: ScopeValue | None, row: tuple[Any, ...]) -> ScopeValue:
        """The value after one more row of a name. One that cannot be read has `damage` set."""
        version, base, form, flags, body, crc, uid, seq = row
        try:
            place = bodies.scope_place(key, version, base, form, rows.unpack_id(uid), seq)
            raw = self._codec.unpack(flags, body, crc, lambda: place, bound=True)
            return scope_after(key, before, version, form, raw)
        except UNREADABLE as error:
            return unreadable_scope(before, version, error)

    def _all(self, sql: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, args).fetchall()


def _scope_row(row: tuple[Any, ...]) -> ScopeRow:
    """A row of scopes. A uid of another kind, by a flipped bit, is nobody's: its checksum fails."""
    version, base, form, flags, body, crc, uid, seq = row
    uid = rows.unpack_id(uid) if isinstance(uid, (bytes, str)) else ""
    return ScopeRow(version, base, form, flags, body, crc, uid, seq)


def _is_dense(page: list[tuple[Event, int]]) -> bool:
    """True if events follow one another, in either direction."""
    return abs(page[-1][0].seq - page[0][0].seq) == len(page) - 1
