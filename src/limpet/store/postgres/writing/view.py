"""The planner's view of the database, fetched before it asks.

The committer remembers sessions and scope names between calls (its cache). The rest is read for one
attempt and forgotten after it: keys that are gone, ids that were recorded, inputs still pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from limpet.errors import LimpetError, SessionCorrupt, SessionDeleted, SessionNotFound
from limpet.model import (
    Commit,
    Event,
    Fold,
    Key,
    ScopeKey,
    ScopeValue,
    processed_by,
)
from limpet.model.limits import SCOPE_SMALL_BYTES
from limpet.store.cache import Cache, CachedScope, CachedSession
from limpet.store.coding.codec import UNHELD
from limpet.store.postgres.reading.lineage import link_at
from limpet.store.postgres.reading.reader import LoadRequest, PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.writing.jobs import PostgresJob, keys_of
from limpet.store.scopes import Scopes, Sizes

_LOADED_MAX: Final = 32  # sessions in one round trip


class PostgresView:
    """One attempt's view: implements the planner's protocol of the same name."""

    __slots__ = (
        "_cache",
        "_ended",
        "_gone",
        "_links",
        "_pending",
        "_reader",
        "_recorded",
        "_seen",
        "_sizes",
        "_versions",
        "known",
        "lives",
    )

    def __init__(
        self, cache: Cache, reader: PostgresReader, left: Mapping[Key, CachedSession]
    ) -> None:
        """`left`: sessions as a batch that is on its way leaves them."""
        self._cache, self._reader = cache, reader
        # Held here too: the cache may let go of one to make room for another.
        self.lives: dict[Key, CachedSession] = dict(left)
        self.known: dict[ScopeKey, CachedScope] = {}  # the scope names that are written
        self._versions: dict[ScopeKey, int] = {}  # of those that are only guarded
        self._sizes: dict[tuple[str, str], dict[str, int]] = {}
        self._gone: dict[Key, LimpetError | None] = {}
        self._ended: set[tuple[Key, str]] = set()  # creations whose sessions were deleted
        self._links: dict[tuple[Key, int], bytes] = {}  # of events that new logs go on from
        self._recorded: dict[tuple[Key, str], Event] = {}
        self._pending: set[tuple[Key, int]] = set()
        self._seen: dict[tuple[str, str], Scopes] = {}

    @property
    def era(self) -> int:
        return self._cache.era

    async def fetch(self, conn: Connection, jobs: Sequence[PostgresJob]) -> None:
        """Read what is not known yet; nothing, for sessions that are."""
        jobs = [job for job in jobs if not self._has_all(job)]
        if not jobs:
            return
        commits = [commit for job in jobs for commit in job.commits]
        unknown = [commit for commit in commits if not self._has(commit)]
        if unknown:
            await self._fetch_sessions(conn, unknown)
        for job in jobs:
            if job.search_ids:
                await self._fetch_recorded(conn, job)
        written = {name for job in jobs for name in job.written}
        if written:
            await self._fetch_names(conn, written)
            await self._fetch_sizes(conn, jobs)
        guarded = {n for job in jobs for n in job.names - job.written} - self.known.keys()
        if guarded:
            self._versions = await self._reader.versions(conn, list(guarded))

    def _has_all(self, job: PostgresJob) -> bool:
        """The common case, with nothing to wait for."""
        if not job.simple or job.search_ids:
            return False
        return all([self._knows(commit.key) for commit in job.commits])

    def _has(self, commit: Commit) -> bool:
        """True if nothing has to be read for a commit: the common case, without a coroutine."""
        if not self._knows(commit.key) or commit.base is not None:
            return False
        return not any([processed_by(draft.type, draft.data) for draft in commit.drafts])

    def _knows(self, key: Key) -> bool:
        """True if a session is known, from this attempt or one before."""
        if key in self.lives:
            return True
        live = self._cache.peek(key)  # whoever is written to is kept again, as used last
        if live is None:
            return False
        self.lives[key] = live
        return True

    async def _fetch_sessions(self, conn: Connection, commits: Sequence[Commit]) -> None:
        """Fetch the sessions that these commits need, all in one round trip."""
        keys = dict.fromkeys([key for commit in commits for key in keys_of(commit)])
        await self._fetch_lives(conn, [key for key in keys if not self._knows(key)])
        for commit in commits:
            key = commit.key
            if commit.base is not None:
                base = commit.base
                if base.parent in self.lives:
                    sid = self.lives[base.parent].sid
                    link = await link_at(self._reader, conn, sid, base.floor)
                    if link is not None:
                        self._links[base.parent, base.floor] = link
            if commit.reuse and self._gone.get(key) is not None:
                first = commit.drafts[0]
                if first.caller_chose_id:
                    of = (key.app, key.user, key.id, first.id)
                    if await conn.fetchrow(SQL["ended_as"], *of) is not None:
                        self._ended.add((key, first.id))
            if key not in self.lives and (key.app, key.user) not in self._seen:
                self._seen[key.app, key.user] = await self._reader.scopes(conn, key.app, key.user)
        await self._fetch_pending(conn, commits)

    async def _fetch_lives(self, conn: Connection, keys: Sequence[Key]) -> None:
        for start in range(0, len(keys), _LOADED_MAX):
            part = keys[start : start + _LOADED_MAX]
            for key, loaded in zip(
                part, await self._reader.load_many(conn, part, LoadRequest()), strict=True
            ):
                if loaded is None:
                    error = await self._reader.gone(conn, key)
                    self._gone[key] = None if isinstance(error, SessionNotFound) else error
                elif not loaded.holds:  # writing would make it look as if it did
                    self._gone[key] = SessionCorrupt(key, f"its head {UNHELD}")
                else:
                    self._cache.keep(key, loaded.live)
                    self.lives[key] = loaded.live

    async def _fetch_pending(self, conn: Connection, commits: Sequence[Commit]) -> None:
        """Fetch which of the inputs that these commits process are still pending."""
        asked = [
            (commit.key, seq)
            for commit in commits
            if commit.key in self.lives
            for draft in commit.drafts
            for seq in processed_by(draft.type, draft.data)
        ]
        if asked:
            sids, seqs = [self.lives[key].sid for key, _ in asked], [seq for _, seq in asked]
            rows = await conn.fetch(SQL["pending"], sids, seqs)
            self._pending |= {asked[row["i"] - 1] for row in rows}

    async def _fetch_names(self, conn: Connection, names: set[ScopeKey]) -> None:
        cached = {name: self._cache.scope(name) for name in names}
        self.known = {name: live for name, live in cached.items() if live is not None}
        unknown = [name for name in names if name not in self.known]
        if unknown:
            for key, name in (await self._reader.names(conn, unknown)).items():
                if name.value is not None:
                    made = (name.value, name.base, name.since_base, self._cache.era)
                    live = CachedScope(*made, name.size, name.made_by)
                    self._cache.keep_scope(key, live)
                    self.known[key] = live

    async def _fetch_sizes(self, conn: Connection, jobs: Sequence[PostgresJob]) -> None:
        """All names of those of whom one may become large, or of whom there may be too many.

        The server knows how many an owner has. Only if it said that there is no room for one more
        is it asked for all of them, to say how many there are.
        """
        for job in jobs:
            for name in job.written:
                live, owner = self.known.get(name), name[:2]
                new = job.fresh and (live is None or live.value.deleted)
                large = job.size + (0 if live is None else live.size) > SCOPE_SMALL_BYTES
                if (new or large) and owner not in self._sizes:
                    self._sizes[owner] = await self._reader.sizes(conn, *owner)

    async def _fetch_recorded(self, conn: Connection, job: PostgresJob) -> None:
        wanted = [
            (live, draft.id)
            for commit in job.commits
            if (live := self.lives.get(commit.key)) is not None
            for draft in commit.drafts
            if draft.caller_chose_id
        ]
        if wanted:
            self._recorded |= await self._reader.recorded(conn, wanted)

    # --- the planner asks ----------------------------------------------------------------------

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        live = self.lives.get(key)
        if live is not None:
            return live.fold
        error = self._gone[key]
        if error is None or (reuse and isinstance(error, SessionDeleted)):
            return None
        raise error

    def ended(self, key: Key, uid: str) -> bool:
        return (key, uid) in self._ended

    def link_at(self, key: Key, seq: int) -> bytes | None:
        return self._links.get((key, seq))

    def recorded(self, key: Key, id: str) -> Event | None:
        return self._recorded.get((key, id))

    def pending(self, key: Key, seq: int) -> bool:
        return (key, seq) in self._pending

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self.known.get(key)
        return None if live is None else live.value

    def scope_version(self, key: ScopeKey) -> int:
        live = self.known.get(key)
        return self._versions.get(key, 0) if live is None else live.value.version

    def scopes(self, app: str, user: str) -> Scopes:
        return self._seen.get((app, user), Scopes())

    def names(self, app: str, user: str) -> Sizes | None:
        return self._sizes.get((app, user))
