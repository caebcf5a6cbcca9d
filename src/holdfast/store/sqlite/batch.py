"""One write transaction: the view its planner sees, and the rows it writes.

Commits are planned one after the other on what the ones before left, in memory; what was planned
is written in a few executemany calls. A commit that is refused raises while it is planned and
leaves no trace here. Nothing reaches the cache before the database has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from holdfast.model.events import Commit, Event
from holdfast.model.fold import Fold, Record, ScopeKey, ScopeValue, ScopeWrite
from holdfast.model.head import PROCESSED, Head
from holdfast.model.keys import Key
from holdfast.model.limits import EVENT_OVERHEAD_BYTES
from holdfast.store.plan import Plan
from holdfast.store.protocol import Committed
from holdfast.store.sqlite import rows
from holdfast.store.sqlite.cache import Cache, Live, LiveScope
from holdfast.store.sqlite.reader import Reader
from holdfast.store.sqlite.sql import SQL


class Batch:
    """A transaction under way. Implements the planner's View."""

    def __init__(
        self, reader: Reader, cache: Cache, now_us: int, salt: Callable[[], bytes]
    ) -> None:
        self._reader, self._cache = reader, cache
        self._conn: apsw.Connection = reader.conn
        self._now_us, self._salt = now_us, salt
        self._lives: dict[Key, Live] = {}  # as of the beginning, or made here
        self._written: dict[Key, Head] = {}  # heads as the tables have them now
        self._folds: dict[Key, Fold] = {}
        self._records: list[tuple[Key, Record]] = []
        self._given: dict[tuple[Key, str], Event] = {}
        self._scopes: dict[ScopeKey, LiveScope] = {}
        self._scope_rows: list[tuple[Any, ...]] = []
        self.deltas: dict[Key, int] = {}

    # --- planning ------------------------------------------------------------------------------

    def plan(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Plan one caller's commits on top of the batch. Raises, and takes nothing, if refused."""
        plan = Plan(self, self._now_us, self._salt)
        plan.add(commits)
        self._folds.update(plan.folds)
        self._records += plan.records
        for key, rec in plan.records:
            self.deltas[key] = self.deltas.get(key, 0) + len(rec.raw) + EVENT_OVERHEAD_BYTES
        self._given.update(plan.given)
        for key, write in plan.writes:
            self._take_scope(self._folds[key].head.uid, write)
        return plan.answers

    def fold(self, key: Key) -> Fold | None:
        planned = self._folds.get(key)
        if planned is not None:
            return planned
        live = self._live(key)
        return None if live is None else live.fold

    def recorded(self, key: Key, id: str) -> Event | None:
        planned = self._given.get((key, id))
        if planned is not None:
            return planned
        live = self._lives.get(key)
        if live is None:  # created in this batch: nothing of it is in the tables yet
            return None
        return self._reader.recorded(live.sid, live.fold.head.uid, id)

    def pending(self, key: Key, seq: int) -> bool:
        self.write()  # what earlier commits of this batch processed must be in the table
        sid = self._lives[key].sid
        return self._conn.execute(SQL["is_pending"], (sid, seq)).fetchone() is not None

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self._scopes.get(key) or self._stored_scope(key)
        return None if live is None else live.value

    def scopes(self, app: str, user: str) -> dict[str, ScopeValue]:
        found = self._reader.scopes(app, user)
        for key, live in self._scopes.items():
            if key[0] == app and key[1] in ("", user):
                found[key[2]] = live.value
        return found

    # --- writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Put what was planned since the last call into the tables."""
        for key, fold in self._folds.items():
            if key not in self._lives:
                self._add_session(key, fold)
        self._write_events()
        self._write_heads()
        if self._scope_rows:
            self._conn.executemany(SQL["add_scope"], self._scope_rows)
            self._scope_rows = []

    def settle(self) -> list[tuple[Key, Live]]:
        """After the database has committed: bring the cache up to date; the sessions touched."""
        touched = []
        for key, fold in self._folds.items():
            live = self._lives[key]
            live.fold, live.era = fold, self._cache.era
            live.delta_bytes += self.deltas.get(key, 0)
            self._cache.keep(key, live)
            touched.append((key, live))
        for scope_key, scope in self._scopes.items():
            self._cache.keep_scope(scope_key, scope)
        return touched

    # --- private -------------------------------------------------------------------------------

    def _live(self, key: Key) -> Live | None:
        """The session as the tables have it: from the cache if that is true, else read."""
        live = self._lives.get(key) or self._cache.session(key)
        if live is None or live.era != self._cache.era:
            live = self._checked(key, live)
        if live is not None:
            self._lives[key] = live
            self._written.setdefault(key, live.fold.head)
        return live

    def _checked(self, key: Key, live: Live | None) -> Live | None:
        try:
            found = self._reader.head(key)
        except BaseException:
            self._cache.forget(key)
            raise
        if found is None:
            self._cache.forget(key)
            return None
        sid, head = found
        if live is not None and live.fold.head == head:
            live.era = self._cache.era
            return live
        read = self._reader.found(sid, head)
        sizes = (read.snapshot_bytes, read.delta_bytes)
        live = Live(sid, read.fold, *sizes, bool(read.damaged), self._cache.era)
        self._cache.keep(key, live)
        return live

    def _stored_scope(self, key: ScopeKey) -> LiveScope | None:
        live = self._cache.scope(key)
        if live is None:
            found = self._reader.scope(key)
            if found is None:
                return None
            live = LiveScope(*found, self._cache.era)
            self._cache.keep_scope(key, live)
        return live

    def _take_scope(self, uid: str, write: ScopeWrite) -> None:
        before = self._scopes.get(write.key) or self._stored_scope(write.key)
        since_base = -1 if before is None else before.since_base
        form, raw, since_base = rows.scope_body(write.at, write.op, since_base)
        if form == rows.DELETED:
            since_base = -1
        version = write.at.version
        base = version if form != rows.BY_OP or before is None else before.base
        self._scopes[write.key] = LiveScope(write.at, base, since_base, self._cache.era)
        packed = self._reader.codec.pack(raw, lambda: rows.scope_place(write.key, version))
        self._scope_rows.append(
            (*write.key, version, base, form, *packed, rows.pack_id(uid), write.seq)
        )

    def _add_session(self, key: Key, fold: Fold) -> None:
        head = fold.head
        self._conn.execute(
            SQL["add_session"],
            (
                key.app,
                key.user,
                key.id,
                rows.pack_id(head.uid),
                head.version,
                head.link,
                head.created_us,
                head.updated_us,
                head.pending,
                *rows.head_cold(head),
            ),
        )
        sid = self._conn.last_insert_rowid()
        self._conn.executemany(SQL["add_label"], rows.label_rows(head, sid))
        self._lives[key] = Live(sid, fold, 0, 0, False, self._cache.era)
        self._written[key] = head

    def _write_events(self) -> None:
        if not self._records:
            return
        codec, lives, folds = self._reader.codec, self._lives, self._folds
        self._conn.executemany(
            SQL["add_event"],
            [
                rows.event_row(lives[key].sid, folds[key].head.uid, rec, codec)
                for key, rec in self._records
            ],
        )
        for key, rec in self._records:
            if rec.event.type == PROCESSED and rec.event.data is not None:
                at_us, sid = rec.event.at_us, lives[key].sid
                self._conn.executemany(
                    SQL["set_processed"], [(at_us, sid, seq) for seq in rec.event.data["seqs"]]
                )
        self._records = []

    def _write_heads(self) -> None:
        hot: list[tuple[Any, ...]] = []
        for key, fold in self._folds.items():
            before, after, sid = self._written[key], fold.head, self._lives[key].sid
            if before is after:
                continue
            hot.append(rows.head_hot(after, sid))
            if (
                before.pending_us != after.pending_us
                or before.labels is not after.labels
                or before.timers is not after.timers
            ):
                self._write_cold(before, after, sid)
            self._written[key] = after
        if hot:
            self._conn.executemany(SQL["set_hot"], hot)

    def _write_cold(self, before: Head, after: Head, sid: int) -> None:
        self._conn.execute(SQL["set_cold"], (*rows.head_cold(after), sid))
        if before.labels != after.labels:
            self._conn.executemany(SQL["drop_label"], rows.label_rows(before, sid))
            self._conn.executemany(SQL["add_label"], rows.label_rows(after, sid))
