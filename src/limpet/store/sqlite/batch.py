"""A batch: the commits of one write transaction, planned together and written as rows.

Commits are planned in memory, each on what the ones before it left; then the whole plan is written
in a few executemany calls. Nothing reaches the cache before the database has committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from limpet.errors import SessionCorrupt
from limpet.model import (
    PROCESSING,
    Base,
    Commit,
    Event,
    Fold,
    Head,
    Key,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    activity_moves,
)
from limpet.model.facts.inputs import is_one_more
from limpet.model.limits import UPDATE_SLOT_BITS
from limpet.store.cache import Cache, CachedScope, CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.codec import UNHELD, Codec
from limpet.store.plan import Plan
from limpet.store.scopes import Scopes, Sizes
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL, with_ids
from limpet.store.sqlite.write_connection import SQLiteWriteConnection

_IDS_FEW: Final = 16  # asked for in one statement
_IDS_MANY: Final = 256


class SQLiteBatch:
    """A transaction under way: `plan.add` for each caller, then write, commit, settle."""

    def __init__(self, writes: SQLiteWriteConnection, now_us: int) -> None:
        reader, self._cursor, self._cache = writes.reader, writes.cursor, writes.cache
        self._view = SQLiteView(reader, self._cache)
        self.plan = Plan(self._view, now_us, writes.salt)
        self._conn, self._codec = reader.conn, reader.codec
        self._lives = self._view.lives
        self._scopes: dict[ScopeKey, CachedScope] = {}
        self._last: tuple[int, str] | None = None  # the position and the id of its last event

    def look_up(self, commits: Iterable[Commit]) -> None:
        """Look up all ids that the callers of these commits chose, in one statement. A statement
        for each would hand the interpreter to other threads, and a batch is slow to get it back."""
        ids = [
            draft.id
            for commit in commits
            for draft in commit.drafts
            if draft.caller_chose_id and draft.origin is None
        ]
        if len(ids) > 1:
            self._view.look_up(ids)

    # --- writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Put the plan into the tables."""
        heads = _Heads(self._codec)
        for key, fold in self.plan.folds.items():
            live = self._lives.get(key)
            if live is None:
                self._add_session(key, fold)
            else:
                heads.add(live.sid, live.fold.head, fold.head)
        heads.write(self._cursor)
        self._write_events()
        if self.plan.writes:
            values = [self._scope_row(key, write) for key, write in self.plan.writes]
            self._conn.executemany(SQL["add_scope"], values)
        for key, number, fold in self.plan.pins:
            seq, packed, _ = bodies.packed_snapshot(fold, self._codec)
            self._conn.execute(SQL["put_snapshot"], (self._lives[key].sid, seq, *packed, number))

    def is_recorded(self) -> bool:
        """True if the database has it: for an interrupt that came out of COMMIT."""
        if self._last is None or self._conn.in_transaction:
            return False
        pos, id = self._last
        fetched = self._conn.execute(SQL["is_recorded"], (pos, rows.pack_id(id)))
        return fetched.fetchone() is not None

    def settle(self) -> list[tuple[Key, CachedSession]]:
        """Bring the cache up to date after the database has committed; return the sessions
        touched."""
        lives, keep = self._lives, self._cache.keep
        for key, rec in self.plan.records:
            lives[key].add(rec)
        if self._last is not None:
            self._cache.issued = self._last[0]
        touched = []
        for key, fold in self.plan.folds.items():
            live = lives[key]
            live.fold = fold
            keep(key, live)
            touched.append((key, live))
        for scope_key, scope in self._scopes.items():
            self._cache.keep_scope(scope_key, scope)
        for owner, sizes in self.plan.scope_limits.planned.items():
            self._cache.add_names(owner, sizes)
        return touched

    # --- private -------------------------------------------------------------------------------

    def _scope_row(self, key: Key, write: ScopeWrite) -> tuple[Any, ...]:
        before = self._scopes.get(write.key) or self._view.live_scope(write.key)
        form, raw, since_base = bodies.scope_body(
            write, -1 if before is None else before.since_base
        )
        base = write.at.version if form != bodies.BY_OP or before is None else before.base
        self._scopes[write.key] = CachedScope(write.at, base, since_base, self._cache.era)
        uid = self.plan.folds[key].head.uid
        return rows.scope_row(write, base, form, raw, uid, self._codec)

    def _add_session(self, key: Key, fold: Fold) -> None:
        head, base = fold.head, self.plan.bases.get(key)
        parent = None if base is None else self._parent(base)
        mac = self._codec.head_mac(head)
        self._conn.execute(SQL["add_session"], rows.session_row(head, parent, mac))
        sid = self._conn.last_insert_rowid()
        self._conn.executemany(SQL["add_label"], rows.label_rows(head, sid))
        if base is not None:
            place = bodies.base_place(head.uid, base.floor)
            packed = self._codec.pack(bodies.base_body(base), place, bound=True)
            self._conn.execute(SQL["add_base"], (sid, *packed))
        self._lives[key] = CachedSession(sid, fold, 0, 0, self._cache.era)

    def _parent(self, base: Base) -> int | None:
        """The sid of the parent, if it is there: what is adopted may come without."""
        live = self._lives.get(base.parent)
        return live.sid if live is not None and live.fold.head.uid == base.uid else None

    def _write_events(self) -> None:
        codec, lives, records = self._codec, self._lives, self.plan.records
        if not records:
            return
        # Under the write lock: nobody else is given these positions.
        issued = self._cache.issued
        first = 1 + (self._conn.execute(SQL["feed_issued"]).get if issued is None else issued)
        row = rows.event_row
        made = [row(pos, lives[key], rec, codec) for pos, (key, rec) in enumerate(records, first)]
        self._cursor.executemany(SQL["add_event"], made)
        self._last = (first + len(records) - 1, records[-1][1].event.id)
        done: list[tuple[Any, ...]] = []
        for key, rec in records:
            if not rec.draft.plain and rec.draft.type in PROCESSING:
                done += rows.processed_rows(lives[key].sid, rec)
        if done:
            self._cursor.executemany(SQL["set_processed"], done)


class _Heads:
    """Changes to rows of heads. A column that has not changed is not written: SQLite writes the
    indexes of every column that a statement names."""

    __slots__ = ("_codec", "_hot", "_moved", "_rare", "_whole")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._hot: list[tuple[Any, ...]] = []
        self._moved: list[tuple[Any, ...]] = []  # to another place in the order of updates, too
        self._whole: dict[str, list[tuple[Any, ...]]] = {}  # with its facts, by statement
        self._rare: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, sid: int, before: Head, after: Head) -> None:
        leased = before.lease_us != after.lease_us or before.worker != after.worker
        if leased or before.facts is not after.facts:
            self._change(sid, before, after, leased=leased)
            return
        updated_us, mac = after.updated_us, self._codec.head_mac(after)
        slot = updated_us >> UPDATE_SLOT_BITS
        times = (after.version, after.link, mac, updated_us, after.active_us)
        if before.updated_us >> UPDATE_SLOT_BITS == slot:
            self._hot.append((*times, sid))
        else:
            self._moved.append((*times, slot, sid))
        if after.facts and activity_moves(before, after):
            self._due(sid, before, after)

    def _change(self, sid: int, before: Head, after: Head, *, leased: bool) -> None:
        mac = self._codec.head_mac(after)
        times = (after.version, after.link, mac, after.updated_us, after.active_us)
        slot = after.updated_us >> UPDATE_SLOT_BITS
        stays = before.updated_us >> UPDATE_SLOT_BITS == slot
        same_due = not (leased or activity_moves(before, after))
        same_due = same_due and is_one_more(before.facts, after.facts)
        same_labels = same_due or before.indexed_labels == after.indexed_labels
        if before.facts is not after.facts and same_labels:
            facts, due = rows.facts_text(after), () if same_due else rows.due_columns(after)
            if leased:
                turned = (*times, slot, facts, *due, *rows.lease_row(sid, after))
                self._whole.setdefault("set_turned", []).append(turned)
                return
            if same_due or due == rows.due_columns(before):
                if stays:
                    self._whole.setdefault("set_folded", []).append((*times, facts, sid))
                else:
                    moved = (*times, slot, facts, sid)
                    self._whole.setdefault("set_moved_folded", []).append(moved)
                return
            if stays:
                self._whole.setdefault("set_awaited", []).append((*times, facts, *due, sid))
                return
        if stays:
            self._hot.append((*times, sid))
        else:
            self._moved.append((*times, slot, sid))
        if before.facts is not after.facts:
            self._facts(sid, before, after)
        elif after.facts and activity_moves(before, after):
            self._due(sid, before, after)
        if leased:
            self._rare.append(("set_lease", rows.lease_row(sid, after)))

    def _facts(self, sid: int, before: Head, after: Head) -> None:
        self._rare.append(("set_facts", (rows.facts_text(after), sid)))
        self._due(sid, before, after)
        if before.indexed_labels != after.indexed_labels:
            self._rare += [("drop_label", row) for row in rows.label_rows(before, sid)]
            self._rare += [("add_label", row) for row in rows.label_rows(after, sid)]

    def _due(self, sid: int, before: Head, after: Head) -> None:
        if rows.due_columns(before) != (due := rows.due_columns(after)):
            self._rare.append(("set_due", (*due, sid)))

    def write(self, cursor: apsw.Cursor) -> None:
        if self._hot:
            cursor.executemany(SQL["set_hot"], self._hot)
        if self._moved:
            cursor.executemany(SQL["set_moved"], self._moved)
        for name, values in self._whole.items():
            cursor.executemany(SQL[name], values)
        for name, row in self._rare:
            cursor.execute(SQL[name], row)


class SQLiteView:
    """The planner's view of the database, inside one write transaction.

    Answers come from the writer's cache as long as no other process has committed; then they are
    read again. What was read stays in the view for the whole batch.
    """

    def __init__(self, reader: SQLiteReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache
        self.lives: dict[
            Key, CachedSession
        ] = {}  # the sessions of this batch, as the tables have them
        self._unrecorded: frozenset[str] = frozenset()  # ids that no row has, and no segment

    def look_up(self, ids: Sequence[str]) -> None:
        """Remember which of these ids nobody has recorded: most are new."""
        if self._reader.conn.execute(SQL["has_segments"]).get:
            return
        recorded: set[str] = set()
        for first in range(0, len(ids), _IDS_MANY):
            some: list[Any] = [rows.pack_id(id) for id in ids[first : first + _IDS_MANY]]
            count = _IDS_FEW if len(some) <= _IDS_FEW else _IDS_MANY
            some += [None] * (count - len(some))
            fetched = self._reader.conn.execute(with_ids("ids_recorded", count), some)
            recorded |= {rows.unpack_id(id) for (id,) in fetched}
        self._unrecorded = frozenset(ids) - recorded

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        live = self.lives.get(key) or self._cache.peek(key)
        if live is None or live.era != self._cache.era:
            live = self._reload(key, live, reuse=reuse)
            if live is None:
                return None
        self.lives[key] = live
        return live.fold

    def ended(self, key: Key, uid: str) -> bool:
        asked = (key.app, key.user, key.id, uid)
        return self._reader.conn.execute(SQL["ended_as"], asked).fetchone() is not None

    def link_at(self, key: Key, seq: int) -> bytes | None:
        live = self.lives.get(key)
        if live is None or not 1 <= seq <= live.fold.head.version:
            return None
        from limpet.store.sqlite.reading import lineage

        part = lineage.segment_with(self._reader, live.sid, live.fold.head, seq)
        if part.sid is None:
            return None
        return self._reader.link_at(part.sid, part.head.uid, seq)

    def recorded(self, key: Key, id: str) -> Event | None:
        live = self.lives.get(key)
        if live is None or id in self._unrecorded:
            return None
        return self._reader.event_by_id(live.sid, live.fold.head.uid, id)

    def pending(self, key: Key, seq: int) -> bool:
        live = self.lives.get(key)
        if live is None:  # being created by this very commit
            return False
        row = self._reader.conn.execute(SQL["is_pending"], (live.sid, seq)).fetchone()
        return row is not None

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self.live_scope(key)
        return None if live is None else live.value

    def live_scope(self, key: ScopeKey) -> CachedScope | None:
        """The newest version of a name, with its base."""
        live = self._cache.scope(key)
        if live is None:
            newest = self._reader.scopes.newest(key)
            if newest is None:
                return None
            live = CachedScope(*newest, self._cache.era)
            self._cache.keep_scope(key, live)
        return live

    def scope_version(self, key: ScopeKey) -> int:
        live = self._cache.scope(key)
        return self._reader.scopes.version(key) if live is None else live.value.version

    def scopes(self, app: str, user: str) -> Scopes:
        return self._reader.scopes.all(app, user)

    def names(self, app: str, user: str) -> Sizes:
        sizes = self._cache.names((app, user))
        if sizes is None:
            sizes = self._reader.scopes.sizes(app, user)
            self._cache.keep_names((app, user), sizes)
        return sizes

    def _reload(self, key: Key, live: CachedSession | None, *, reuse: bool) -> CachedSession | None:
        """The session as its tables have it: what the cache has, if that still holds."""
        try:
            row = self._reader.head(key, reuse=reuse)
        except BaseException:
            self._cache.forget(key)
            raise
        if row is None:
            self._cache.forget(key)
            return None
        sid, head = row
        lease = (head.fence, head.lease_us, head.worker, head.leased_us)
        # The same head may be that of other rows: a session that went to the archive and came back.
        if live is not None and live.sid == sid and live.lease(*lease) == head:
            live.era = self._cache.era
            return live
        if not self._reader.holds(sid, head):
            raise SessionCorrupt(
                key, f"its head {UNHELD}"
            )  # writing would make it look as if it did
        read = self._reader.load_fold(sid, head)
        sizes = (read.snapshot_bytes, read.delta_bytes)
        live = CachedSession(sid, read.fold, *sizes, self._cache.era)
        self._cache.keep(key, live)
        return live
