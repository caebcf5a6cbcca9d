"""The memory store: dicts and the fold. Lost on exit, by definition.

This is the executable specification: what it does is what every store must do, and the others are
driven beside it and compared. It favours the obvious over the fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from limpet.errors import (
    InvalidInput,
    LimpetError,
    PositionUnknown,
    SessionDeleted,
    SessionErased,
    SessionHasForks,
    SessionNotFound,
    StoreClosed,
)
from limpet.model.canonical import canonical
from limpet.model.chain import SALT_BYTES
from limpet.model.commit import Base, Commit
from limpet.model.due import runnable_us
from limpet.model.events import Event
from limpet.model.fold import Fold, ScopeKey, ScopeValue
from limpet.model.head import Head, buried
from limpet.model.keys import Key, is_reserved, owner_of
from limpet.model.lease import (
    Lease,
    acquired,
    given_back,
    is_ahead,
    lasting,
    lease_of,
    measured_again,
    renewed,
    taken,
)
from limpet.model.values import FrozenDict, encode
from limpet.store import cursor as cursors
from limpet.store.clock import Clock
from limpet.store.leases import span_us
from limpet.store.memory import listing
from limpet.store.memory.log import Log
from limpet.store.pages import Room, bare, newest, page
from limpet.store.plan import Plan
from limpet.store.protocol import (
    Check,
    Committed,
    Ending,
    Erasure,
    Erasures,
    FeedEntry,
    Finding,
    Forks,
    Loaded,
    Owner,
    Page,
    Progress,
    Query,
    Record,
    Report,
    scope_fields,
)
from limpet.store.room import DELETED, Sizes
from limpet.store.scopes import Scopes
from limpet.store.select import newest_since, wanted
from limpet.store.verify import verify_session


class MemoryStore:
    """Everything happens between two awaits, so every call is atomic."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._kept: dict[Key, Log] = {}
        self._scopes: dict[ScopeKey, list[ScopeValue]] = {}
        self._deleted: dict[Key, list[Log]] = {}  # tombstones: the head of each is buried
        self._erased: dict[bytes, Erasure] = {}
        self._rows = 0
        self._feed: list[tuple[str, Key, int]] = []  # uid, key and seq
        self._open = True

    # the planner's view

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        kept = self._kept.get(key)
        if kept is not None:
            return kept.fold
        if key in self._deleted and not reuse:
            raise SessionDeleted(key)
        if _hash(key) in self._erased:
            raise SessionErased(key)
        return None

    def link_at(self, key: Key, seq: int) -> bytes | None:
        kept = self._kept.get(key)
        return kept.event(seq).link if kept is not None and kept.has(seq) else None

    def recorded(self, key: Key, id: str) -> Event | None:
        kept = self._kept.get(key)
        seq = None if kept is None else kept.ids.get(id)
        return None if kept is None or seq is None else kept.event(seq)

    def pending(self, key: Key, seq: int) -> bool:
        kept = self._kept.get(key)  # None: being created by this very commit
        return kept is not None and kept.is_pending(seq)

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
                self._begin(key, fold, plan.bases.get(key))
            self._kept[key].fold = fold
        for key, rec in plan.records:
            self._kept[key].add(rec)
            self._feed.append((self._kept[key].fold.head.uid, key, rec.event.seq))
        for _, write in plan.writes:
            self._scopes.setdefault(write.key, []).append(write.at)
        for key, number, fold in plan.pins:
            self._kept[key].pins[number] = fold
        return answers

    async def load(
        self,
        key: Key,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str = "",
    ) -> Loaded:
        kept = self._living(key)
        version = kept.fold.head.version
        sized = [kept.sized(seq) for seq in range(max(0, version - tail) + 1, version + 1)]
        events = newest_since(bare(newest(sized, tail)), since_us)
        fold, names = kept.fold, self.scopes(key.app, key.user) if scopes else Scopes()
        return Loaded(fold.head, fold.fields, fold.versions, names, events)

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        self._check_open()
        return tuple([await self.load(k, tail=tail) if k in self._kept else None for k in keys])

    async def fold_at(self, key: Key, seq: int) -> Fold:
        kept = self._living(key)
        if not kept.has(seq):
            raise InvalidInput(f"session {key} has no event {seq}")
        return kept.fold_at(seq)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        kept = self._living(key)
        version = kept.fold.head.version
        seqs = range(min(after - 1 if after else version, version), 0, -1)
        if not reverse:
            seqs = range(after + 1, version + 1)
        matching = (seq for seq in seqs if wanted(kept.type(seq), types))
        return page(kept.sized(seq) for seq in islice(matching, limit))

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        kept = self._living(key)
        return tuple([kept.event(kept.ids[id]) for id in ids if id in kept.ids])

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        kept = self._living(key)
        seqs = range(kept.floor + 1, kept.fold.head.version + 1)
        waiting = (seq for seq in seqs if kept.is_pending(seq))
        return page(kept.sized(seq) for seq in islice(waiting, limit))

    async def records(self, key: Key, *, after: int, limit: int) -> tuple[Record, ...]:
        kept = self._living(key)
        room = Room()
        found: list[Record] = []
        for seq in range(max(after, kept.floor) + 1, kept.fold.head.version + 1):
            rec = kept.own(seq)
            found.append(Record(kept.event(seq), rec.raw, rec.salt, rec.digest))
            room.used += len(rec.raw)
            if len(found) == limit or room.full:
                break
        return tuple(found)

    async def base(self, key: Key) -> Base | None:
        return self._living(key).base

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        self._check_open()
        found = {of[:2] for of in self._scopes if app in (None, of[0])}
        return tuple(sorted(owner for owner in found if after is None or owner > after)[:limit])

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        self._check_open()
        return {of[2]: v[-1] for of, v in self._scopes.items() if of[:2] == (app, user)}

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page:
        self._check_open()
        cursors.check(query)
        logs = list(self._kept.values())
        if query.deleted:
            logs = [log for logs in self._deleted.values() for log in logs]
        rows = [(log.row, log.fold.head) for log in logs]
        heads, more = listing.page(rows, query, cursor, limit)
        shown = {head.key: self._values(head.key) for head in heads} if states else {}
        return Page(heads, more, shown)

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
        for place, (uid, of, seq) in enumerate(self._feed[start:], start + 1):
            wanted_ = not is_reserved(of.app) if app is None else of.app == app
            wanted_ = of == key if key is not None else wanted_
            kept = self._kept.get(of)
            if wanted_ and kept is not None and kept.fold.head.uid == uid:
                event, size = kept.sized(seq)
                found.append(FeedEntry(cursors.write_position(place), of, event))
                room.used += size
                if len(found) == limit or room.full:
                    break
        return tuple(found), cursors.write_position(place)

    async def position(self) -> str:
        self._check_open()
        return cursors.write_position(len(self._feed))

    async def delete(self, key: Key, *, ending: Ending = "deleted") -> bool:
        self._check_open()
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        kept.fold = Fold(buried(kept.fold.head, self._clock(), ending))
        self._deleted.setdefault(key, []).append(kept)
        return True

    async def forks(self, key: Key) -> tuple[Key, ...]:
        logs = self._deleted.get(key, []) if key not in self._kept else [self._living(key)]
        return tuple([fork.fold.head.key for fork in self._forks(logs)])

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        self._check_open()
        logs = [*self._deleted.get(key, []), *([self._kept[key]] if key in self._kept else [])]
        children = self._forks(logs)
        if children and forks == "refuse":
            raise SessionHasForks(key, tuple([fork.fold.head.key for fork in children]))
        if forks == "erase":
            for fork in children:
                await self.erase(fork.fold.head.key, forks="erase")
        if logs:
            self._forget(key, logs, 0 if forks == "erase" else len(children))
        return self._erased.get(_hash(key))

    async def erase_user(self, app: str, user: str) -> Erasures:
        self._check_open()
        owner = owner_of(app, user)
        everything = [*self._deleted, *self._kept]
        mine = [
            key
            for key in dict.fromkeys(everything)
            if (key.app, key.user) == (app, user) or (is_reserved(key.app) and key.user == owner)
        ]
        logs = [log for k in mine for log in [*self._deleted.get(k, []), self._kept.get(k)] if log]
        left = [f.fold.head.key for f in self._forks(logs) if f.fold.head.key not in mine]
        certificates = [await self.erase(key, forks="keep") for key in mine]
        names = [of for of in self._scopes if of[:2] == (app, user)]
        for of in names:
            del self._scopes[of]
        done = tuple([each for each in certificates if each is not None])
        mark = _user_hash(app, user)
        link = sha256(b"".join(sorted(each.link for each in done))).digest()
        if done or names or mark not in self._erased:
            self._erased[mark] = Erasure(mark, len(done), link, self._clock(), len(left))
        return Erasures(self._erased[mark], done, len(names), tuple(left))

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
                (kept.event(rec.event.seq), rec.raw, rec.salt, rec.digest) for rec in kept.records
            )
            findings += verify_session(kept.fold, stored, base=kept.base)
            if progress is not None:
                progress(done, len(keys))
        return Report(len(keys), events, tuple(findings))

    # work

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        self._check_open()
        now_us = self._clock()
        self._measure_again(now_us)
        until_us = now_us + span_us(lease_seconds)
        due = sorted(
            (-head.priority, due_us, kept.row, head.key)
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, app)
            and (due_us := runnable_us(head)) is not None
            and due_us <= now_us
        )
        keys = [key for *_, key in due[:limit]]
        heads = [taken(self._head(key), worker, now_us, until_us) for key in keys]
        return tuple(self._lease(head, lease_seconds, now_us) for head in heads)

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        self._check_open()
        return tuple([self._renew(lease, lease_seconds) for lease in leases])

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
        self._measure_again(now_us)
        until_us = now_us + span_us(lease_seconds)
        head = acquired(self._head(key), worker, now_us, until_us)
        return self._lease(head, lease_seconds, now_us, lock=True)

    def pulse(self) -> int:
        return 0

    async def close(self) -> None:
        self._open = False

    # private

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    def _living(self, key: Key) -> Log:
        self._check_open()
        if self.fold(key) is None:
            raise SessionNotFound(key)
        return self._kept[key]

    def _begin(self, key: Key, fold: Fold, base: Base | None) -> None:
        self._rows += 1
        parent = None if base is None else self._kept.get(base.parent)
        if base is not None and parent is not None and parent.fold.head.uid != base.uid:
            parent = None
        self._kept[key] = Log(self._rows, fold, base, parent)
        if parent is not None:
            parent.forks.append(self._kept[key])

    def _forks(self, logs: Sequence[Log]) -> list[Log]:
        return [f for log in logs for f in log.forks if self._kept.get(f.fold.head.key) is f]

    def _forget(self, key: Key, logs: Sequence[Log], forks_kept: int) -> None:
        self._kept.pop(key, None)
        self._deleted.pop(key, None)
        for log in logs:
            for fork in log.forks:
                fork.parent = None
        head, mark = logs[-1].fold.head, _hash(key)
        self._erased[mark] = Erasure(mark, head.version, head.link, self._clock(), forks_kept)

    def _head(self, key: Key) -> Head:
        return self._living(key).fold.head

    def _set_head(self, head: Head) -> None:
        kept = self._kept[head.key]
        kept.fold = msgspec.structs.replace(kept.fold, head=head)

    def _lease(self, head: Head, lease_seconds: float, now_us: int, *, lock: bool = False) -> Lease:
        self._set_head(head)
        return lease_of(head, lease_seconds, now_us, lock=lock)

    def _renew(self, lease: Lease, lease_seconds: float | None) -> Lease | LimpetError:
        now_us = self._clock()
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            self._set_head(renewed(self._head(lease.key), lease.fence, now_us, until_us))
        except LimpetError as error:
            return error
        return lasting(lease, until_us, seconds)

    def _measure_again(self, now_us: int) -> None:
        for kept in self._kept.values():
            if is_ahead(kept.fold.head, now_us):
                self._set_head(measured_again(kept.fold.head, now_us))


def _in_app(key: Key, app: str | None) -> bool:
    return not is_reserved(key.app) if app is None else key.app == app


def _hash(key: Key) -> bytes:
    return sha256(canonical(key)).digest()


def _user_hash(app: str, user: str) -> bytes:
    return sha256(canonical(["user", app, user])).digest()
