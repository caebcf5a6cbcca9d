"""A batch: the commits of one write transaction, planned together and written as rows.

Commits are planned in memory, each on what the ones before it left; then the whole plan is written
in a few executemany calls. Nothing reaches the cache before the database has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.model.fold import Fold, ScopeKey, ScopeWrite
from limpet.model.keys import Key
from limpet.store import bodies
from limpet.store.cache import Cache, Live, LiveScope
from limpet.store.plan import Plan
from limpet.store.sqlite import rows
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.view import View


class Batch:
    """A transaction under way: `plan.add` for each caller, then write, commit, settle."""

    def __init__(
        self, reader: Reader, cache: Cache, now_us: int, salt: Callable[[], bytes]
    ) -> None:
        self._view = View(reader, cache)
        self.plan = Plan(self._view, now_us, salt)
        self._conn, self._codec, self._cache = reader.conn, reader.codec, cache
        self._lives = self._view.lives
        self._scopes: dict[ScopeKey, LiveScope] = {}

    # --- writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Put the plan into the tables."""
        for key, fold in self.plan.folds.items():
            if key not in self._lives:
                self._add_session(key, fold)
            else:
                self._write_cold(self._lives[key].fold, fold, self._lives[key].sid)
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
            lives[key].add(rec)
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

    def _scope_row(self, key: Key, write: ScopeWrite) -> tuple[Any, ...]:
        before = self._scopes.get(write.key) or self._view.live_scope(write.key)
        form, raw, since_base = bodies.scope_body(
            write, -1 if before is None else before.since_base
        )
        base = write.at.version if form != bodies.BY_OP or before is None else before.base
        self._scopes[write.key] = LiveScope(write.at, base, since_base, self._cache.era)
        uid = self.plan.folds[key].head.uid
        return rows.scope_row(write, base, form, raw, uid, self._codec)

    def _add_session(self, key: Key, fold: Fold) -> None:
        head = fold.head
        self._conn.execute(SQL["add_session"], rows.session_row(head))
        sid = self._conn.last_insert_rowid()
        self._conn.executemany(SQL["add_label"], rows.label_rows(head, sid))
        self._lives[key] = Live(sid, fold, 0, 0, self._cache.era)

    def _write_events(self) -> None:
        codec, lives, folds = self._codec, self._lives, self.plan.folds
        self._conn.executemany(
            SQL["add_event"],
            [
                rows.event_row(lives[key].sid, folds[key].head.uid, rec, codec)
                for key, rec in self.plan.records
            ],
        )
        for key, rec in self.plan.records:
            done = rows.processed_rows(lives[key].sid, rec)
            if done:
                self._conn.executemany(SQL["set_processed"], done)

    def _write_cold(self, fold_before: Fold, fold_after: Fold, sid: int) -> None:
        """What few events change: not written by others, so that its indexes rest."""
        before, after = fold_before.head, fold_after.head
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
