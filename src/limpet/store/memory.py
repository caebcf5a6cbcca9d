"""The memory store: dicts and the fold. Lost on exit, by definition.

This is the executable specification: what it does is what every store must do, and the others are
driven beside it and compared. It favours the obvious over the fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import TypeAlias
from weakref import WeakSet

import msgspec

from limpet.errors import (
    PositionUnknown,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreClosed,
)
from limpet.model.canonical import canonical
from limpet.model.chain import SALT_BYTES
from limpet.model.due import runnable_us
from limpet.model.events import Commit, Event
from limpet.model.facts.inputs import PROCESSED, is_input
from limpet.model.fold import Fold, Recorded, ScopeKey, ScopeValue
from limpet.model.head import Head, buried
from limpet.model.keys import Key
from limpet.model.lease import Lease, acquired, given_back, lasting, lease_of, renewed, taken
from limpet.model.values import FrozenDict, encode
from limpet.store import cursor as cursors
from limpet.store.clock import Clock
from limpet.store.leases import span_us
from limpet.store.live import MemoryChannel
from limpet.store.pages import Room, bare, newest, page, walk
from limpet.store.plan import Plan
from limpet.store.protocol import (
    Check,
    Committed,
    Erasure,
    FeedEntry,
    Finding,
    Loaded,
    Page,
    Progress,
    Query,
    Report,
    Touched,
    scope_fields,
)
from limpet.store.room import DELETED, Sizes
from limpet.store.scopes import Scopes
from limpet.store.select import newest_since, wanted
from limpet.store.verify import verify_session

_Place: TypeAlias = tuple[int, int, Head]  # time and row by which it is ordered


class _Kept:
    """One session: its fold, its records in order, and where each id stands."""

    __slots__ = ("fold", "ids", "processed", "records", "row")

    def __init__(self, row: int, fold: Fold) -> None:
        self.row, self.fold = row, fold
        self.records: list[Recorded] = []
        self.ids: dict[str, int] = {}
        self.processed: dict[int, int] = {}

    def event(self, place: int) -> Event:
        event = self.records[place].event
        done_us = self.processed.get(event.seq)
        return event if done_us is None else msgspec.structs.replace(event, processed_us=done_us)

    def sized(self, place: int) -> tuple[Event, int]:
        """The event, and the bytes of its encoded body."""
        return self.event(place), len(self.records[place].raw)


class MemoryStore:
    """Everything happens between two awaits, so every call is atomic."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._kept: dict[Key, _Kept] = {}
        self._scopes: dict[ScopeKey, list[ScopeValue]] = {}
        self._deleted: dict[Key, Head] = {}
        self._erased: dict[bytes, Erasure] = {}
        self._rows = 0
        self._feed: list[tuple[Key, int]] = []
        self._ends: WeakSet[MemoryChannel] = WeakSet()  # of the live channel
        self._ended = 0  # how often a session was deleted or erased
        self._open = True

    # the planner's view

    def fold(self, key: Key) -> Fold | None:
        kept = self._kept.get(key)
        if kept is not None:
            return kept.fold
        if key in self._deleted:
            raise SessionDeleted(key)
        if _hash(key) in self._erased:
            raise SessionErased(key)
        return None

    def recorded(self, key: Key, id: str) -> Event | None:
        kept = self._kept.get(key)
        place = None if kept is None else kept.ids.get(id)
        return None if kept is None or place is None else kept.event(place)

    def pending(self, key: Key, seq: int) -> bool:
        kept = self._kept.get(key)
        if kept is None:  # being created by this very commit
            return False
        known = 1 <= seq <= len(kept.records) and seq not in kept.processed
        return known and is_input(kept.records[seq - 1].event.type)

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        versions = self._scopes.get(key)
        return versions[-1] if versions else None

    def scope_version(self, key: ScopeKey) -> int:
        return len(self._scopes.get(key, ()))

    def scopes(self, app: str, user: str) -> Scopes:
        return Scopes(
            {
                name: versions[-1]
                for (of_app, of_user, name), versions in self._scopes.items()
                if of_app == app and of_user in ("", user)
            }
        )

    def names(self, app: str, user: str) -> Sizes:
        newest = {of[2]: v[-1] for of, v in self._scopes.items() if of[:2] == (app, user)}
        return {n: DELETED if v.deleted else len(encode(v.value)) for n, v in newest.items()}

    # the protocol

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self._check_open()
        plan = Plan(self, self._clock(), lambda: os.urandom(SALT_BYTES))
        answers = plan.add(commits)
        for key, fold in plan.folds.items():
            if key not in self._kept:
                self._rows += 1
                self._kept[key] = _Kept(self._rows, fold)
            self._kept[key].fold = fold
        for key, rec in plan.records:
            self._keep(self._kept[key], rec)
            self._feed.append((key, rec.event.seq))
        for _, write in plan.writes:
            self._scopes.setdefault(write.key, []).append(write.at)
        return answers

    async def load(
        self, key: Key, *, tail: int, since_us: int | None = None, scopes: bool = True
    ) -> Loaded:
        kept = self._living(key)
        first = max(0, len(kept.records) - tail)
        sized = [kept.sized(place) for place in range(first, len(kept.records))]
        events = newest_since(bare(newest(sized, tail)), since_us)
        fold, names = kept.fold, self.scopes(key.app, key.user) if scopes else Scopes()
        return Loaded(fold.head, fold.fields, fold.versions, names, events)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        kept = self._living(key)
        count = len(kept.records)
        places = range(min(after - 1 if after else count, count) - 1, -1, -1)
        if not reverse:
            places = range(after, count)
        matching = (p for p in places if wanted(kept.records[p].event.type, types))
        return page(kept.sized(place) for place in islice(matching, limit))

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        kept = self._living(key)
        newest_first = range(len(kept.records) - 1, -1, -1)
        waiting = (place for place in newest_first if self.pending(key, place + 1))
        found = list(islice(waiting, kept.fold.head.pending))  # looks no further than the oldest
        return page(kept.sized(place) for place in islice(reversed(found), limit))

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page:
        self._check_open()
        cursors.check(query)
        found = self._tombs(query, cursor) if query.deleted else self._ranged(query, cursor)
        met, last = walk(found, lambda place: _passes(place[2], query), limit)
        heads = tuple([head for _, _, head in met])
        shown = {head.key: self._values(head.key) for head in heads} if states else {}
        if last is None:
            return Page(heads, None, shown)
        key = last[2].key
        more = cursors.write_key(query, key) if query.deleted else cursors.write(query, *last[:2])
        return Page(heads, more, shown)

    def _ranged(self, query: Query, cursor: str | None) -> list[_Place]:
        """The range of the order's index that a page begins in."""
        found = sorted(
            (_mark(kept, query), kept.row, kept.fold.head)
            for kept in self._kept.values()
            if _matches(kept.fold.head, query)
        )
        if query.reverse:
            found.reverse()
        if cursor is not None:
            at = cursors.read(cursor, query)
            found = [f for f in found if (f[:2] < at if query.reverse else f[:2] > at)]
        return found

    def _tombs(self, query: Query, cursor: str | None) -> list[_Place]:
        """Living and dead in the order of their keys: only the index of keys has the dead."""
        heads = [*self._deleted.values(), *(kept.fold.head for kept in self._kept.values())]
        heads = sorted((h for h in heads if _owned(h, query)), key=lambda head: head.key)
        if query.reverse:
            heads.reverse()
        if cursor is not None:
            at = cursors.read_key(cursor, query)
            heads = [h for h in heads if (h.key < at if query.reverse else h.key > at)]
        return [(0, 0, head) for head in heads]

    def _values(self, key: Key) -> FrozenDict:
        """What the session's own fields and the shared names are, in one."""
        fields = self._kept[key].fold.fields
        return FrozenDict({**fields, **scope_fields(self.scopes(key.app, key.user))})

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        self._check_open()
        start = 0 if after is None else cursors.read_position(after, 1)[0]
        if after is not None and start > len(self._feed):
            raise PositionUnknown(after)
        found: list[FeedEntry] = []
        room = Room()
        place = start
        for place, (of, seq) in enumerate(self._feed[start:], start + 1):
            wanted_ = (app is None or of.app == app) and (key is None or of == key)
            if wanted_ and of in self._kept:
                event, size = self._kept[of].sized(seq - 1)
                found.append(FeedEntry(cursors.write_position(place), of, event))
                room.used += size
                if len(found) == limit or room.full:
                    break
        return tuple(found), cursors.write_position(place)

    async def touched(self, after: str) -> Touched:
        self._check_open()
        start = cursors.read_position(after, 1)[0]
        if start > len(self._feed):
            raise PositionUnknown(after)
        found: dict[Key, int] = {}
        for of, seq in self._feed[start:]:
            if of in self._kept:
                found[of] = max(seq, found.get(of, 0))
        end = cursors.write_position(len(self._feed))
        return Touched(found, end, more=False, whole=True, ended=str(self._ended))

    async def position(self) -> str:
        self._check_open()
        return cursors.write_position(len(self._feed))

    def channel(self) -> MemoryChannel:
        return MemoryChannel(self._ends)

    async def delete(self, key: Key) -> bool:
        self._check_open()
        kept = self._kept.pop(key, None)
        for end in self._ends:
            end.forget(key)
        if kept is not None:
            self._deleted[key] = buried(kept.fold.head, self._clock())
            self._ended += 1
        return kept is not None

    async def erase(self, key: Key) -> Erasure | None:
        await self.delete(key)
        head = self._deleted.pop(key, None)
        if head is not None:
            mark = _hash(key)
            self._erased[mark] = Erasure(mark, head.version, head.link, self._clock())
            self._ended += 1
        return self._erased.get(_hash(key))

    async def examine(self) -> tuple[Check, ...]:
        self._check_open()
        advice = "For what has to outlive the process open sqlite:///file.db instead."
        return (Check("durability", "kept in memory, gone with this process", "warning", advice),)

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        self._check_open()
        keys = list(self._kept) if key is None else [key]
        findings: list[Finding] = []
        events = 0
        for done, each in enumerate(keys, 1):
            kept = self._living(each)
            events += len(kept.records)
            stored = (
                (kept.event(place), rec.raw, rec.salt, rec.digest)
                for place, rec in enumerate(kept.records)
            )
            findings += verify_session(kept.fold, stored)
            if progress is not None:
                progress(done, len(keys))
        return Report(len(keys), events, tuple(findings))

    # work

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        self._check_open()
        now_us = self._clock()
        until_us = now_us + span_us(lease_seconds)
        due = sorted(
            (-head.priority, due_us, kept.row, head.key)
            for kept in self._kept.values()
            if app in (None, (head := kept.fold.head).key.app)
            and (due_us := runnable_us(head)) is not None
            and due_us <= now_us
        )
        keys = [key for *_, key in due[:limit]]
        heads = [taken(self._head(key), worker, until_us) for key in keys]
        return tuple(self._lease(head, lease_seconds, now_us) for head in heads)

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        now_us = self._clock()
        until_us = now_us + span_us(lease_seconds)
        self._set_head(renewed(self._head(lease.key), lease.fence, now_us, until_us))
        return lasting(lease, until_us, lease_seconds)

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        self._check_open()
        if lease.key not in self._kept:
            return False
        now_us = self._clock()
        retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
        after = given_back(self._head(lease.key), lease, now_us, retry_us)
        if after is not None:
            self._set_head(after)
        return after is not None

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        now_us = self._clock()
        until_us = now_us + span_us(lease_seconds)
        head = acquired(self._head(key), worker, now_us, until_us)
        return self._lease(head, lease_seconds, now_us, lock=True)

    def pulse(self) -> int:
        return len(self._feed) + self._ended  # several Limpets may share it

    async def close(self) -> None:
        self._open = False

    # private

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    def _living(self, key: Key) -> _Kept:
        self._check_open()
        if self.fold(key) is None:
            raise SessionNotFound(key)
        return self._kept[key]

    def _head(self, key: Key) -> Head:
        return self._living(key).fold.head

    def _set_head(self, head: Head) -> None:
        kept = self._kept[head.key]
        kept.fold = msgspec.structs.replace(kept.fold, head=head)

    def _lease(self, head: Head, lease_seconds: float, now_us: int, *, lock: bool = False) -> Lease:
        self._set_head(head)
        return lease_of(head, lease_seconds, now_us, lock=lock)

    def _keep(self, kept: _Kept, rec: Recorded) -> None:
        kept.records.append(rec)
        kept.ids[rec.event.id] = len(kept.records) - 1
        if rec.event.type == PROCESSED and rec.event.data is not None:
            kept.processed.update(dict.fromkeys(rec.event.data["seqs"], rec.event.at_us))


def _owned(head: Head, query: Query) -> bool:
    return query.app in (None, head.key.app) and query.user in (None, head.key.user)


def _matches(head: Head, query: Query) -> bool:
    """Whether the range that is read has it. What else is asked for is looked at on the way."""
    own_us = query.updated_after_us if query.order == "updated" else query.created_after_us
    mark = head.updated_us if query.order == "updated" else head.created_us
    labeled = query.labels.items() <= head.labels.items()
    return _owned(head, query) and labeled and (own_us is None or mark > own_us)


def _passes(head: Head, query: Query) -> bool:
    if query.deleted and head.deleted_us is None:
        return False
    return cursors.passes(query, head.created_us, head.updated_us, head.schema_version)


def _mark(kept: _Kept, query: Query) -> int:
    head = kept.fold.head
    return head.updated_us if query.order == "updated" else head.created_us


def _hash(key: Key) -> bytes:
    return sha256(canonical(key)).digest()
