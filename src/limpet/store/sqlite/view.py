"""The planner's view of a database: the sessions and shared names that a batch touches.

Answers come from the writer's cache as long as no other process has committed; then they are read
again. What was read stays in the view for the whole batch.
"""

from __future__ import annotations

from limpet.model import Event, Fold, Key, ScopeKey, ScopeValue
from limpet.store.cache import Cache, Live, LiveScope
from limpet.store.planning.room import Sizes
from limpet.store.scopes import Scopes
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL


class SQLiteView:
    """What `limpet.store.planning.plan.View` asks for, inside one write transaction."""

    def __init__(self, reader: SQLiteReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache
        self.lives: dict[Key, Live] = {}  # the sessions of this batch, as the tables have them

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        live = self.lives.get(key) or self._cache.peek(key)
        if live is None or live.era != self._cache.era:
            live = self._checked(key, live, reuse=reuse)
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
        return None if live is None else self._reader.recorded(live.sid, live.fold.head.uid, id)

    def pending(self, key: Key, seq: int) -> bool:
        live = self.lives.get(key)
        if live is None:  # being created by this very commit
            return False
        row = self._reader.conn.execute(SQL["is_pending"], (live.sid, seq)).fetchone()
        return row is not None

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self.live_scope(key)
        return None if live is None else live.value

    def live_scope(self, key: ScopeKey) -> LiveScope | None:
        """The newest version of a name, with its base."""
        live = self._cache.scope(key)
        if live is None:
            found = self._reader.scopes.newest(key)
            if found is None:
                return None
            live = LiveScope(*found, self._cache.era)
            self._cache.keep_scope(key, live)
        return live

    def scope_version(self, key: ScopeKey) -> int:
        live = self._cache.scope(key)
        return self._reader.scopes.version(key) if live is None else live.value.version

    def scopes(self, app: str, user: str) -> Scopes:
        return self._reader.scopes.all(app, user)

    def names(self, app: str, user: str) -> Sizes:
        found = self._cache.names((app, user))
        if found is None:
            found = self._reader.scopes.sizes(app, user)
            self._cache.keep_names((app, user), found)
        return found

    def _checked(self, key: Key, live: Live | None, *, reuse: bool) -> Live | None:
        """The session as its tables have it: what the cache has, if that still holds."""
        try:
            found = self._reader.head(key, reuse=reuse)
        except BaseException:
            self._cache.forget(key)
            raise
        if found is None:
            self._cache.forget(key)
            return None
        sid, head = found
        lease = (head.fence, head.lease_us, head.worker, head.leased_us)
        # The same head may be that of other rows: a session that went to the archive and came back.
        if live is not None and live.sid == sid and live.lease(*lease) == head:
            live.era = self._cache.era
            return live
        read = self._reader.found(sid, head)
        sizes = (read.snapshot_bytes, read.delta_bytes)
        live = Live(sid, read.fold, *sizes, self._cache.era)
        self._cache.keep(key, live)
        return live
