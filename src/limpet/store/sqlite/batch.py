"""One write transaction: the view its planner sees, and the rows it writes.

Commits are planned one after the other on what the ones before left, in memory; then the whole
plan is written in a few executemany calls. Nothing reaches the cache before the database has
committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from limpet.model.events import Event
from limpet.model.facts.inputs import PROCESSED
from limpet.model.fold import Fold, ScopeKey, ScopeValue, ScopeWrite
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store import bodies
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX, Cache, Live, LiveScope
from limpet.store.plan import Plan
from limpet.store.room import Sizes
from limpet.store.scopes import Scopes
from limpet.store.sqlite import rows
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL


class Batch:
    """A transaction under way: `plan.add` for each caller, then write, commit, settle."""

    def __init__(
        self, reader: Reader, cache: Cache, now_us: int, salt: Callable[[], bytes]
    ) -> None:
        self.plan = Plan(self, now_us, salt)
        self._reader, self._cache = reader, cache
        self._conn: apsw.Connection = reader.conn
        self._lives: dict[Key, Live] = {}  # the sessions of this batch, as the tables have them
        self._scopes: dict[ScopeKey, LiveScope] = {}

    # --- the planner's view --------------------------------------------------------------------

    def fold(self, key: Key) -> Fold | None:
        live = self._lives.get(key) or self._cache.session(key)
        if live is None or live.era != self._cache.era:
            live = self._checked(key, live)
            if live is None:
                return None
        self._lives[key] = live
        return live.fold

    def recorded(self, key: Key, id: str) -> Event | None:
        live = self._lives.get(key)
        return None if live is None else self._reader.recorded(live.sid, live.fold.head.uid, id)

    def pending(self, key: Key, seq: int) -> bool:
        live = self._lives.get(key)
        if live is None:  # being created by this very commit
            return False
        return self._conn.execute(SQL["is_pending"], (live.sid, seq)).fetchone() is not None

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self._stored_scope(key)
        return None if live is None else live.value

    def scope_version(self, key: ScopeKey) -> int:
        live = self._cache.scope(key)
        return self._reader.scope_version(key) if live is None else live.value.version

    def scopes(self, app: str, user: str) -> Scopes:
        return self._reader.scopes(app, user)

    def names(self, app: str, user: str) -> Sizes:
        found = self._cache.names((app, user))
        if found is None:
            found = self._reader.names(app, user)
            self._cache.keep_names((app, user), found)
        return found

    # --- writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Put the plan into the tables."""
        for key, fold in self.plan.folds.items():
            if key not in self._lives:
                self._add_session(key, fold)
            else:
                self._write_cold(self._lives[key].fold.head, fold.head, self._lives[key].sid)
        self._write_events()
        hot = [rows.head_hot(f.head, self._lives[key].sid) for key, f in self.plan.folds.items()]
        self._conn.executemany(SQL["set_hot"], hot)
        if self.plan.writes:
            values = [self._scope_row(key, write) for key, write in self.plan.writes]
            self._conn.executemany(SQL["add_scope"], values)

    def settle(self) -> list[tuple[Key, Live]]:
        """After the database has committed: bring the cache up to date; the sessions touched."""
        lives, era = self._lives, self._cache.era
        for key, rec in self.plan.records:
            live = lives[key]
            live.delta_bytes += len(rec.raw) + EVENT_OVERHEAD_BYTES
            if len(rec.raw) > TAIL_BYTES_MAX:
                live.tail = ()  # too large to keep: it is read when asked for
            elif rec.event.type == PROCESSED:  # events in the tail have changed
                live.tail = (rec.event,)
            else:
                live.tail = (*live.tail[1 - TAIL_MAX :], rec.event)
        touched = []
        for key, fold in self.plan.folds.items():
            live = lives[key]
            live.fold, live.era = fold, era
            self._cache.keep(key, live)
            touched.append((key, live))
        for scope_key, scope in self._scopes.items():
            self._cache.keep_scope(scope_key, scope)
        for owner, sizes in self.plan.room.planned().items():
            self._cache.add_names(owner, sizes)
        return touched

    # --- private -------------------------------------------------------------------------------

    def _checked(self, key: Key, live: Live | None) -> Live | None:
        """The session as its tables have it; what the cache has, if that is still true."""
        try:
            found = self._reader.head(key)
        except BaseException:
            self._cache.forget(key)
            raise
        if found is None:
            self._cache.forget(key)
            return None
        sid, head = found
        if live is not None and live.lease(head.fence, head.lease_us, head.worker) == head:
            live.era = self._cache.era
            return live
        read = self._reader.found(sid, head)
        sizes = (read.snapshot_bytes, read.delta_bytes)
        live = Live(sid, read.fold, *sizes, self._cache.era)
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

    def _scope_row(self, key: Key, write: ScopeWrite) -> tuple[Any, ...]:
        before = self._scopes.get(write.key) or self._stored_scope(write.key)
        form, raw, since_base = bodies.scope_body(
            write, -1 if before is None else before.since_base
        )
        version = write.at.version
        base = version if form != bodies.BY_OP or before is None else before.base
        self._scopes[write.key] = LiveScope(write.at, base, since_base, self._cache.era)
        uid = self.plan.folds[key].head.uid
        place = bodies.scope_place(write.key, version, base, form, uid, write.seq)
        packed = self._reader.codec.pack(raw, place, bound=True)
        return (*write.key, version, base, form, *packed, rows.pack_id(uid), write.seq)

    def _add_session(self, key: Key, fold: Fold) -> None:
        head = fold.head
        self._conn.execute(SQL["add_session"], rows.session_row(head))
        sid = self._conn.last_insert_rowid()
        self._conn.executemany(SQL["add_label"], rows.label_rows(head, sid))
        self._lives[key] = Live(sid, fold, 0, 0, self._cache.era)

    def _write_events(self) -> None:
        codec, lives, folds = self._reader.codec, self._lives, self.plan.folds
        self._conn.executemany(
            SQL["add_event"],
            [
                rows.event_row(lives[key].sid, folds[key].head.uid, rec, codec)
                for key, rec in self.plan.records
            ],
        )
        for key, rec in self.plan.records:
            if rec.event.type == PROCESSED and rec.event.data is not None:
                at_us, sid = rec.event.at_us, lives[key].sid
                done = [(at_us, sid, seq) for seq in rec.event.data["seqs"]]
                self._conn.executemany(SQL["set_processed"], done)

    def _write_cold(self, before: Head, after: Head, sid: int) -> None:
        """What few events change, so that its indexes rest."""
        if (
            before.labels is after.labels
            and before.timers is after.timers
            and before.pending_us == after.pending_us
            and before.priority == after.priority
            and before.schema_version == after.schema_version
        ):
            return
        self._conn.execute(SQL["set_cold"], (*rows.head_cold(after), sid))
        if before.labels != after.labels:
            self._conn.executemany(SQL["drop_label"], rows.label_rows(before, sid))
            self._conn.executemany(SQL["add_label"], rows.label_rows(after, sid))
