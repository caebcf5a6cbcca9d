"""Reading: each call one round trip, each within one snapshot of the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec

from limpet.errors import (
    LimpetError,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import (
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
)
from limpet.model.limits import EVENT_OVERHEAD_BYTES, READ_PAGE_BYTES_MAX
from limpet.store.cache import CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.bodies import (
    PackedBody,
    ScopeNameReader,
    base_in,
    changed,
    checked,
    key_hash,
    replay_events,
    snapshot_in,
    start_fold,
)
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.coding.seal import Unready, scope_owner
from limpet.store.pages import bare
from limpet.store.postgres import cold, rows
from limpet.store.postgres.failures import SessionAppeared
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Erasure
from limpet.store.scopes import DELETED, Scopes, UnreadScope

LAST: Final = 2**62  # beyond every seq
RUNGS: Final = 8  # snapshots that are tried before the whole log is read


class LoadRequest(msgspec.Struct, frozen=True):
    """The parts that a load brings besides the state."""

    tail: int = 0
    scopes: bool = False
    since_us: int | None = None


class StoredSession(msgspec.Struct):
    """A session as one round trip brought it."""

    live: CachedSession
    events: tuple[tuple[Event, int], ...]  # each with the bytes of its encoded body
    scopes: Scopes
    checkpoint: LastCheckpoint | None = NO_CHECKPOINT
    holds: bool = True  # the session's keys vouch for where its head stands


_PLAIN: Final = LoadRequest()


class PostgresReader:
    """Reads sessions and names, on the connection that the caller holds."""

    def __init__(self, codec: Codec, secret: bytes) -> None:
        self.codec, self._secret = codec, secret

    async def load(self, conn: Connection, key: Key, asked: LoadRequest = _PLAIN) -> StoredSession:
        """Head, state, last events and scopes. Raises SessionNotFound, -Deleted, -Erased."""
        (session,) = await self.load_many(conn, [key], asked)
        if session is None:
            raise await self.gone(conn, key)
        return session

    async def load_many(
        self,
        conn: Connection,
        keys: Sequence[Key],
        asked: LoadRequest,
        below: int = LAST,
        tried: int = 0,
    ) -> list[StoredSession | None]:
        """Load many sessions in one round trip; None for a missing one.

        A snapshot that cannot be read only costs time: the one before it is taken, in one round
        trip more; after some of them none, so that bad ones do not cost more than the log.
        """
        columns = [list(column) for column in zip(*map(rows.key_names, keys), strict=True)]
        logs = [checkpoints_of(key) for key in keys] if asked.scopes else []
        columns += [[log.user for log in logs], [log.id for log in logs]]
        more = (asked.tail, asked.scopes, asked.since_us, READ_PAGE_BYTES_MAX, below)
        asking = (*columns[:3], *more, *columns[3:], self.codec.checks)
        kinds = rows.by_kind(await conn.fetch(SQL["load"], *asking))
        heads = {row["place"]: row for row in kinds["head"]}
        names = self._by_owner(kinds["name"])
        kept = {row["place"]: rows.checkpoint_from(row) for row in kinds["checkpoint"]}
        events, starts = _by_place(kinds["event"]), _by_place(kinds["snapshot"] + kinds["base"])
        done: list[StoredSession | None] = []
        for place, key in enumerate(keys, 1):
            row, of = heads.get(place), (events.get(place, []), starts.get(place, []))
            shared = Scopes({**names.get((key.app, ""), {}), **names.get((key.app, key.user), {})})
            session = None if row is None else self._session_in(row, key, *of, shared)
            if row is not None and session is None:
                lower = of[1][0]["seq"] if tried < RUNGS else 0
                (session,) = await self.load_many(conn, [key], asked, lower, tried + 1)
            if session is not None and session.live.fold.damaged:
                session = await self._with_cold(conn, session, *of)
            if session is not None:
                session.checkpoint = kept.get(place, NO_CHECKPOINT)
            done.append(session)
        return done

    async def _with_cold(
        self, conn: Connection, stored: StoredSession, events: list[Any], starts: list[Any]
    ) -> StoredSession:
        """The same with what is in cold segments: no snapshot from there on could be read."""
        head, sid = stored.live.fold.head, stored.live.sid
        of, top = (sid, head.uid), await cold.top(conn, sid)
        if not top:
            return stored
        sized = [rows.sized_event(each, head.uid, self.codec)[0] for each in events]
        first = sized[0] if sized else None
        if head.floor and head.floor < top:
            first = await cold.at(self.codec, conn, of, head.floor + 1)
        start = self.start(head, starts[0] if starts else None, first)
        if start is None:
            return stored
        at = start[0].head.version
        older = await cold.all_events(self.codec, conn, of, at, top)
        whole = [*older, *[event for event in sized if event.seq > max(at, top)]]
        fold = replay_events(start[0], whole, head.version)
        live = stored.live
        damaged = fold.damaged if stored.holds else (*fold.damaged, head.version)
        live.fold = Fold(head, fold.fields, fold.versions, damaged, fold.texts)
        return stored

    def _session_in(
        self, row: Any, key: Key, events: list[Any], starts: list[Any], scopes: Scopes
    ) -> StoredSession | None:
        """The session in these rows; None if its snapshot cannot be read."""
        head = rows.head_from(key, row)
        sized = [rows.sized_event(each, head.uid, self.codec) for each in events]
        start = self.start(head, starts[0] if starts else None, sized[0][0] if sized else None)
        if start is None:
            return None
        if self.codec.checks:
            sized = self._check_chain(head, events, sized, start[0])
        live = self._fold(row["sid"], head, events, bare(sized), *start)
        session = StoredSession(live, tuple(sized), scopes)
        if not self.codec.head_holds(head, row["mac"]):
            session.holds = False
            fold, damaged = live.fold, {*live.fold.damaged, head.version}
            live.fold = msgspec.structs.replace(fold, damaged=tuple(sorted(damaged)))
        return session

    def _check_chain(
        self, head: Head, recent: list[Any], sized: list[tuple[Event, int]], start: Fold
    ) -> list[tuple[Event, int]]:
        """Return the events, each compared with the chain, and the last with the head."""
        done: list[tuple[Event, int]] = []
        for row, (event, size) in zip(recent, sized, strict=True):
            previous, begins = row["previous"], event.seq == start.head.version + 1
            if previous is None and (event.seq == 1 or begins):
                previous = genesis(head.uid) if event.seq == 1 else start.head.link
            record = rows.record_from(row, head.uid, self.codec)[0]
            event = checked(event, record.salt, record.raw, previous)
            if event.seq == head.version and event.link != head.link:
                event = changed(event)
            done.append((event, size))
        return done

    def start(self, head: Head, row: Any, first: Event | None) -> tuple[Fold, int] | None:
        """The fold to replay on, and its size: a snapshot, the base of the log, or nothing.

        None if it is a snapshot that cannot be read, or is of another log. What a log begins on
        must be there: if it cannot be read, it is a hole.
        """
        if row is not None and row["seq"] is not None:
            return self.snapshot(head, row)
        base = None
        if head.floor:
            with suppress(Damaged):
                base = self.base_in(head, row, first)
        return start_fold(head, base), 0

    def _fold(
        self,
        sid: int,
        head: Head,
        recent: list[Any],
        events: tuple[Event, ...],
        start: Fold,
        snapshot_bytes: int,
    ) -> CachedSession:
        since = start.head.version
        delta = sum(len(r["body"]) + EVENT_OVERHEAD_BYTES for r in recent if r["seq"] > since)
        fold = replay_events(start, [event for event in events if event.seq > since], head.version)
        settled = Fold(head, fold.fields, fold.versions, fold.damaged, fold.texts)
        return CachedSession(sid, settled, snapshot_bytes, delta, 0)

    def snapshot(self, head: Head, row: Any) -> tuple[Fold, int] | None:
        """The fold that a snapshot's row keeps, and its size; None if it cannot be read, or if the
        log has another event where it stands."""
        return snapshot_in(self.codec, head, row["seq"], row["link"], _pack(row))

    def base_in(self, head: Head, row: Any, first: Event | None) -> Base:
        """The state that a log begins on, as its first own event names it. Raises Damaged."""
        return base_in(self.codec, head, None if row is None else _pack(row), first)

    async def gone(self, conn: Connection, key: Key) -> LimpetError:
        """The error for a key without a session."""
        return await self._gone(conn, key, archived=False)

    async def absent(self, conn: Connection, key: Key) -> LimpetError:
        """The error for a key without a log to read: it may be in the archive.

        Raises SessionAppeared if there is one by now.
        """
        return await self._gone(conn, key, archived=True)

    async def _gone(self, conn: Connection, key: Key, *, archived: bool) -> LimpetError:
        row = await conn.fetchrow(SQL["gone"], *rows.key_names(key), self.key_hash(key))
        if archived and row["archived"]:
            return SessionArchived(key)
        if archived and row["living"]:
            raise SessionAppeared
        if row["deleted"]:
            return SessionDeleted(key)
        return SessionErased(key) if row["erased"] else SessionNotFound(key)

    def _by_owner(self, stored: list[Any]) -> dict[tuple[str, str], dict[str, UnreadScope]]:
        """Names as their rows, whose values are made when somebody asks for them."""
        steps: dict[ScopeKey, list[Any]] = {}
        for row in stored:
            steps.setdefault((row["app"], row["owner"], row["name"]), []).append(row)
        # Values are opened when somebody reads them, and nobody can wait for keys then.
        sealed = {
            (row["app"], row["owner"]) for row in stored if self.codec.needs_keys(row["flags"])
        }
        self.codec.sealer.require([scope_owner(*owner) for owner in sealed])
        names: dict[tuple[str, str], dict[str, UnreadScope]] = {}
        for key, rows_ in steps.items():
            rows_.sort(key=itemgetter("version"))
            unread = UnreadScope(rows_[-1]["version"], partial(self._value, key, rows_))
            names.setdefault(key[:2], {})[key[2]] = unread
        return names

    def _value(self, key: ScopeKey, steps: list[Any]) -> ScopeValue:
        """The value that somebody reads now. Its keys may be gone since it was loaded."""
        name = ScopeNameReader(key, self.codec)
        try:
            for step in steps:
                name.add(rows.scope_row(step))
        except Unready as error:
            return ScopeValue(steps[-1]["version"], None, False, str(error))
        assert name.value is not None
        return name.value

    async def names(
        self, conn: Connection, keys: list[ScopeKey]
    ) -> dict[ScopeKey, ScopeNameReader]:
        """The newest versions of some scope names; those that never were are left out."""
        names: dict[ScopeKey, ScopeNameReader] = {}
        columns = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
        for row in await conn.fetch(SQL["names"], *columns):
            key = keys[row["i"] - 1]
            name = names.setdefault(key, ScopeNameReader(key, self.codec))
            name.add(rows.scope_row(row))
        return names

    async def versions(self, conn: Connection, keys: list[ScopeKey]) -> dict[ScopeKey, int]:
        """The numbers of the newest versions of some scope names; 0 for those that never were."""
        columns = [list(column) for column in zip(*keys, strict=True)]
        fetched = await conn.fetch(SQL["name_versions"], *columns)
        return {keys[row["i"] - 1]: row["version"] or 0 for row in fetched}

    async def sizes(self, conn: Connection, app: str, owner: str) -> dict[str, int]:
        """Every name of one owner and the bytes that it takes, for `ScopeLimits`."""
        fetched = await conn.fetch(SQL["name_sizes"], app, owner)
        return {n: DELETED if form == bodies.DELETED else size for n, form, size in fetched}

    async def scopes(self, conn: Connection, app: str, user: str) -> Scopes:
        """Every name that this user's sessions see, in one round trip, values unread."""
        names = self._by_owner(await conn.fetch(SQL["scopes"], app, user))
        return Scopes({**names.get((app, ""), {}), **names.get((app, user), {})})

    async def names_of(self, conn: Connection, app: str, owner: str) -> dict[str, ScopeValue]:
        """The newest version of every name of one owner."""
        names = self._by_owner(await conn.fetch(SQL["names_of"], app, owner))
        return dict(Scopes(names.get((app, owner), {})))

    async def recorded(
        self, conn: Connection, wanted: list[tuple[CachedSession, str]]
    ) -> dict[tuple[Key, str], Event]:
        """Events by the ids they were recorded under."""
        sids = [live.sid for live, _ in wanted]
        ids = [id for _, id in wanted]
        events: dict[tuple[Key, str], Event] = {}
        for row in await conn.fetch(SQL["recorded"], sids, ids):
            live, id = wanted[row["i"] - 1]
            head = live.fold.head
            events[head.key, id] = rows.event_from(row, head.uid, self.codec)
        for live, id in wanted:
            head = live.fold.head
            if (head.key, id) not in events:
                for event in await cold.by_ids(self.codec, conn, (live.sid, head.uid), [id]):
                    events[head.key, id] = event
        return events

    async def erasure(self, conn: Connection, key: Key) -> Erasure | None:
        return await self.certificate(conn, self.key_hash(key))

    async def certificate(self, conn: Connection, key_hash: bytes) -> Erasure | None:
        row = await conn.fetchrow(SQL["erased"], key_hash)
        return None if row is None else Erasure(*row)

    def key_hash(self, key: Key | tuple[str, str, str]) -> bytes:
        return key_hash(self._secret, key)

    def user_hash(self, app: str, user: str) -> bytes:
        """The hash that is kept of an erased user."""
        return self.key_hash(("user", app, user))


def _pack(row: Any) -> PackedBody:
    return row["flags"], row["body"], row["crc"]


def _by_place(stored: list[Any]) -> dict[int, list[Any]]:
    """Rows by the place of the key that they belong to, in their order."""
    placed: dict[int, list[Any]] = {}
    for row in stored:
        placed.setdefault(row["place"], []).append(row)
    return placed
