"""The memory store: dicts and the fold. Lost on exit, by definition.

This is the executable specification: what it does is what every store must do, and the others are
driven beside it and compared. It favours the obvious over the fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from limpet.errors import (
    InvalidInput,
    LimpetError,
    PositionUnknown,
    SessionCorrupt,
    SessionError,
    SessionFenced,
    SessionHasForks,
    StoreFailed,
    UploadLost,
)
from limpet.model import (
    NO_CHECKPOINT,
    SALT_BYTES,
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    ScopeKey,
    ScopeValue,
    buried,
    canonical,
    checkpoints_of,
    forgotten_with,
    is_reserved,
    last_checkpoint,
    owner_of,
    scope_of,
)
from limpet.model.facts.isolation import is_lent
from limpet.model.facts.phases import is_stub
from limpet.model.lease import admits
from limpet.model.limits import BLOB_UPLOAD_SECONDS_MAX, MARKS_SWEPT
from limpet.store import cursor as cursors
from limpet.store.blobs import Blob, Blobs, check_open
from limpet.store.clock import Clock
from limpet.store.coding.seal import Sealer, scope_owner
from limpet.store.live import MemoryChannel
from limpet.store.marks import Mark, Marks, added
from limpet.store.memory.tables import Leasing, MemoryLog, key_hash
from limpet.store.pages import PageBytes, bare, newest, newest_since, page, walk, wanted
from limpet.store.plan import Plan
from limpet.store.protocol import (
    ChainedEvent,
    Check,
    Committed,
    Compacted,
    Ending,
    Erasure,
    Erasures,
    Exchange,
    FeedEntry,
    Finding,
    Forks,
    KeyOwner,
    Loaded,
    NameSince,
    Owner,
    Page,
    Progress,
    Query,
    Report,
    Seal,
    Standing,
    Touched,
    scope_fields,
)
from limpet.store.scopes import Scopes
from limpet.store.verify import verify_session

_Row: TypeAlias = tuple[int, Head]  # the number of its row
_Place: TypeAlias = tuple[int, int, Head]  # time and row by which it is ordered


class MemoryStore(Leasing):
    """Everything happens between two awaits, so every call is atomic.

    There are no bytes to seal. A seal is for the files outside: its keys are forgotten as in every
    store.
    """

    def __init__(self, clock: Clock | None = None, *, seal: Seal | None = None) -> None:
        super().__init__(clock)
        self.sealer = Sealer(seal)
        self._ring: str | None = None
        self._identity = os.urandom(16).hex()
        self.now_us: Callable[[], int] = self._clock
        self.blobs: Blobs = MemoryBlobs(self._living, self._present, self._logs, self._clock)
        self.marks: Marks = MemoryMarks(self._check_open, self._clock)

    def _logs(self) -> list[MemoryLog]:
        self._check_open()
        return list(self._kept.values())

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self._check_open()
        plan = Plan(self, self._clock(), lambda: os.urandom(SALT_BYTES))
        try:
            answers = plan.add(commits)
        except LimpetError:
            raise
        except Exception as error:
            raise StoreFailed("memory://", repr(error)) from error
        for key, fold in plan.folds.items():
            if key not in self._kept:
                self._begin(key, fold, plan.bases.get(key))
            self._kept[key].fold = fold
        for key, rec in plan.records:
            self._kept[key].add(rec)
            self._feed.append((self._kept[key].row, key, rec.event.seq))
        for key, write in plan.writes:
            self._scopes.setdefault(write.key, []).append(write.at)
            made_by = (plan.folds[key].head.uid, write.seq, self._kept[key].event(write.seq).at_us)
            self._made_by.setdefault(write.key, []).append(made_by)
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
        checkpoint = self._checkpoint(key) if scopes else None
        state = (fold.head, fold.fields, fold.versions, names)
        return Loaded(*state, events, checkpoint=checkpoint, texts=fold.texts)

    async def head(self, key: Key) -> Head:
        return self._living(key).fold.head

    def _checkpoint(self, key: Key) -> LastCheckpoint:
        log = self._kept.get(checkpoints_of(key))
        return NO_CHECKPOINT if log is None else last_checkpoint(log.fold.head.facts)

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        self._check_open()
        return tuple([await self.load(k, tail=tail) if k in self._kept else None for k in keys])

    async def fold_at(self, key: Key, seq: int) -> Fold:
        kept = self._present(key)
        if not kept.has(seq):
            raise InvalidInput(f"session {key} has no event {seq}.")
        if kept.event(seq).removed:
            raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
        return kept.fold_at(seq)

    async def rung(self, key: Key, seq: int) -> Fold:
        return await self.fold_at(key, seq)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        kept = self._present(key)
        version = kept.fold.head.version
        seqs = range(min(after - 1 if after else version, version), 0, -1)
        if not reverse:
            seqs = range(after + 1, version + 1)
        matching = (seq for seq in seqs if wanted(kept.type(seq), types))
        return page(kept.sized(seq) for seq in islice(matching, limit))

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        kept = self._present(key)
        return tuple([kept.event(kept.ids[id]) for id in ids if id in kept.ids])

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        kept = self._present(key)
        seqs = range(kept.floor + 1, kept.fold.head.version + 1)
        waiting = (seq for seq in seqs if kept.is_pending(seq))
        return page(kept.sized(seq) for seq in islice(waiting, limit))

    async def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        kept = self._living(key)
        room = PageBytes()
        events: list[ChainedEvent] = []
        for seq in range(max(after, kept.floor) + 1, kept.fold.head.version + 1):
            rec = kept.own(seq)
            events.append(ChainedEvent(kept.event(seq), rec.raw, rec.salt, rec.digest).undecoded)
            room.used += len(rec.raw)
            if len(events) == limit or room.full:
                break
        return tuple(events)

    async def base(self, key: Key) -> Base | None:
        return self._living(key).base

    async def keys_with(self, uid: str) -> tuple[Key, ...]:
        self._check_open()
        return tuple([key for key, log in self._kept.items() if log.fold.head.uid == uid])

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        self._check_open()
        owners = {of[:2] for of in self._scopes if app in (None, of[0])}
        return tuple(sorted(owner for owner in owners if after is None or owner > after)[:limit])

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        self._check_open()
        return {of[2]: v[-1] for of, v in self._scopes.items() if of[:2] == (app, user)}

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        kept = self._present(key)
        seqs = range(min(before - 1, kept.fold.head.version), after, -1)
        naming = (seq for seq in seqs if _names(kept, seq, name))
        return page(kept.sized(seq) for seq in islice(naming, limit))

    async def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        kept, last = self._present(key), self._last_us()
        by_name = {name: self._since(kept, key, seq, name, last) for name in names}
        return {name: since for name, since in by_name.items() if since is not None}

    def _last_us(self) -> dict[str, int | None]:
        """Return the last update of deleted sessions by uid; None for living ones. Erased ones
        are missing."""
        ended = [log.fold.head for logs in self._deleted.values() for log in logs]
        uids: dict[str, int | None] = {head.uid: head.updated_us for head in ended}
        return uids | {log.fold.head.uid: None for log in self._kept.values()}

    def _since(
        self, kept: MemoryLog, key: Key, seq: int, name: str, last: Mapping[str, int | None]
    ) -> NameSince | None:
        of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
        values, at_us = self._scopes.get(of, []), kept.event(seq).at_us
        first, others = 0, False
        for version, (uid, by, when_us) in reversed([*enumerate(self._made_by.get(of, []), 1)]):
            if uid == kept.fold.head.uid:
                if by <= seq:
                    break
                first = version
            elif uid in last and (last[uid] or when_us) < at_us:
                break
            else:
                others = True
        if not first:
            return None
        return NameSince(values[first - 2] if first > 1 else None, len(values), others)

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        self._check_open()
        cursors.check(query)
        logs = list(self._kept.values())
        if query.deleted:
            logs = [log for logs in self._deleted.values() for log in logs]
        rows = [(log.row, log.fold.head) for log in logs]
        heads, more = _page_of_heads(rows, query, cursor, limit, self.now_us())
        shown = {head.key: self._values(head.key) for head in heads} if states else {}
        return Page(heads, more, shown)

    def _values(self, key: Key) -> FrozenDict:
        """Return the session's own fields and the shared names together."""
        fields = self._kept[key].fold.fields
        return FrozenDict({**fields, **scope_fields(self.scopes(key.app, key.user))})

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        self._check_open()
        start = 0 if after is None else cursors.read_position(after, 1)[0]
        if after is not None and start > len(self._feed):
            raise PositionUnknown(after)
        entries: list[FeedEntry] = []
        room = PageBytes()
        place = start
        for place, (row, of, seq) in enumerate(self._feed[start:], start + 1):
            wanted_ = not is_reserved(of.app) if app is None else of.app == app
            wanted_ = of == key if key is not None else wanted_
            kept = self._kept.get(of)
            if wanted_ and kept is not None and kept.row == row and kept.is_hot(seq):
                event, size = kept.sized(seq)
                entries.append(FeedEntry(cursors.write_position(place), of, event))
                room.used += size
                if len(entries) == limit or room.full:
                    break
        return tuple(entries), cursors.write_position(place)

    async def touched(self, after: str) -> Touched:
        self._check_open()
        start = cursors.read_position(after, 1)[0]
        if start > len(self._feed):
            raise PositionUnknown(after)
        sessions: dict[Key, int] = {}
        for row, of, seq in self._feed[start:]:
            kept = self._kept.get(of)
            if kept is not None and kept.row == row and kept.is_hot(seq):
                sessions[of] = max(seq, sessions.get(of, 0))
        end = cursors.write_position(len(self._feed))
        return Touched(sessions, end, more=False, whole=True, ended=str(self._ended))

    async def position(self) -> str:
        self._check_open()
        return cursors.write_position(len(self._feed))

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        self._check_open()
        if at is not None and not self._stands(key, at):
            return False
        kept = self._kept.pop(key, None)
        self._forget_partials(key)
        if kept is None:
            return False
        self._ended += 1
        kept.fold = Fold(buried(kept.fold.head, self._clock(), ending))
        self._deleted.setdefault(key, []).append(kept)
        if not is_reserved(key.app):
            await self.delete(checkpoints_of(key), ending=ending)
        return True

    def _stands(self, key: Key, at: Standing) -> bool:
        session, log = self._kept.get(key), self._kept.get(checkpoints_of(key))
        checkpoints = 0 if log is None else log.fold.head.version
        if session is None:
            return False
        return at.holds(session.fold.head.uid, session.fold.head.version, checkpoints)

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        self._check_open()
        before = (dict(self._kept), {key: [*logs] for key, logs in self._deleted.items()})
        folds = {key: log.fold for key, log in self._kept.items()}
        for each in exchanges:
            if not await self._exchange(each):
                self._kept, self._deleted = before
                for key, fold in folds.items():
                    self._kept[key].fold = fold
                return False
        moved = {each.by: each.key for each in exchanges if each.by is not None}
        self._feed = [(row, moved.get(key, key), seq) for row, key, seq in self._feed]
        self._ended += 1
        return True

    async def _exchange(self, each: Exchange) -> bool:
        fence, log = 0, self._kept.get(each.key)
        if each.at is not None:
            if log is None or not self._stands(each.key, each.at):
                return False
            fence = log.fold.head.fence
            await self.delete(each.key, ending="moved")
        elif log is not None:
            return False
        if each.by is None:
            return True
        if each.by_at is not None and not self._stands(each.by, each.by_at):
            return False
        log = self._kept.pop(each.by, None)
        if log is None or key_hash(each.key) in self._erased:
            return False
        head = log.fold.head
        taken = structs.replace(head, key=each.key, fence=max(head.fence, fence))
        log.fold = structs.replace(log.fold, head=taken)
        self._kept[each.key] = log
        return True

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        kept = self._living(key)
        if is_stub(kept.fold.head.facts):  # it stays where every load reads it
            return Compacted()
        last, before = min(upto, kept.fold.head.version - 1), max(kept.floor, kept.cold)
        while last > before and kept.is_pending(last):
            last -= 1
        seqs = {*kept.hot, *range(before + 1, last + 1)}
        hot = frozenset(filter(kept.is_pending, seqs))
        kept.cold, kept.hot = max(kept.cold, last if last > before else 0), hot
        return Compacted(len(seqs) - len(hot))

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        kept = self._living(key)
        pins = kept.pins.items()
        kept.pins = {number: fold for number, fold in pins if fold.head.version not in seqs}

    async def forks(self, key: Key) -> tuple[Key, ...]:
        logs = self._deleted.get(key, [])
        if key in self._kept:  # and what was archived and came back, or did not
            moved = [log for log in logs if log.fold.head.ending == "moved"]
            logs = [*moved, self._living(key)]
        return tuple([fork.fold.head.key for fork in self._forks(logs)])

    async def ring(self) -> str | None:
        return self._ring

    async def bind_ring(self, id: str) -> str:
        self._ring = self._ring or id
        return self._ring

    async def accept_head(self, key: Key) -> bool:
        self._living(key)
        return False  # nobody else can write it

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        return await self.sealer.erasing(lambda gone: self._erase(key, forks, gone))

    async def _erase(self, key: Key, forks: Forks, gone: frozenset[KeyOwner]) -> Erasure | None:
        self._check_open()
        forked = [fork.fold.head.key for fork in self._forks(self._ends(key))]
        children = [fork for fork in forked if fork != key]
        if children and forks == "refuse":
            raise SessionHasForks(key, tuple(children))
        ending = self._descent(key) if forks == "erase" else [key]
        self.sealer.require_forgotten(self._uids(ending), gone)
        for each in ending:
            self._forget(each, len(children) if forks == "keep" else 0)
        return self._erased.get(key_hash(key))

    def _uids(self, keys: Sequence[Key]) -> list[KeyOwner]:
        """Return the uids of all that have these keys, and of the logs that are forgotten with
        them."""
        logs = [log for key in keys for log in forgotten_with(key)]
        return [end.fold.head.uid for key in (*keys, *logs) for end in self._ends(key)]

    async def erase_user(self, app: str, user: str) -> Erasures:
        return await self.sealer.erasing(lambda gone: self._erase_user(app, user, gone))

    async def _erase_user(self, app: str, user: str, gone: frozenset[KeyOwner]) -> Erasures:
        self._check_open()
        owner = owner_of(app, user)
        everything = [*self._deleted, *self._kept]
        mine = [
            key
            for key in dict.fromkeys(everything)
            if (key.app, key.user) == (app, user) or (is_reserved(key.app) and key.user == owner)
        ]
        logs = [log for k in mine for log in self._ends(k)]
        left = [f.fold.head.key for f in self._forks(logs) if f.fold.head.key not in mine]
        self.sealer.require_forgotten([*self._uids(mine), scope_owner(app, user)], gone)
        certificates = [await self._erase(key, "keep", gone) for key in mine]
        names = [of for of in self._scopes if of[:2] == (app, user)]
        for of in names:
            del self._scopes[of], self._made_by[of]
        done = [each for each in certificates if each is not None]
        mark, own = _user_hash(app, user), {key_hash(k) for k in mine if not is_reserved(k.app)}
        erased = Erasures.of(mark, done, own, at_us=self._clock(), names=len(names), forks=left)
        if not done and not names and mark in self._erased:
            return structs.replace(erased, user=self._erased[mark])
        self._erased[mark] = erased.user
        return erased

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
        internal = sum([is_reserved(each.app) for each in keys])
        return Report(len(keys) - internal, events, tuple(findings), internal)

    def channel(self) -> MemoryChannel:
        return MemoryChannel(self._channels)

    async def identity(self) -> str:
        self._check_open()
        return self._identity

    def pulse(self) -> int:
        return len(self._feed) + self._ended  # several Limpets may share it

    async def close(self) -> None:
        self._open = False

    def _forget_partials(self, key: Key) -> None:
        for end in self._channels:
            end.forget(key)

    def _forget(self, key: Key, forks_kept: int) -> None:
        logs = self._ends(key)
        if not logs:
            return
        self._kept.pop(key, None)
        self._deleted.pop(key, None)
        self._forget_partials(key)
        self._ended += 1
        for log in logs:
            for fork in log.forks:
                fork.parent = None
        head, mark = logs[-1].fold.head, key_hash(key)
        self._erased[mark] = Erasure(mark, head.version, head.link, self._clock(), forks_kept)
        for beside in forgotten_with(key):
            self._forget(beside, 0)


def _user_hash(app: str, user: str) -> bytes:
    return sha256(canonical(["user", app, user])).digest()


def _names(kept: MemoryLog, seq: int, name: str) -> bool:
    return any([op.path[0] == name for op in kept.event(seq).ops])


# --- pages of heads: everything is sorted, then cut -----------------------------------------------


def _page_of_heads(
    rows: Iterable[_Row], query: Query, cursor: str | None, limit: int, now_us: int
) -> tuple[tuple[Head, ...], str | None]:
    """The heads of one page, and where the next begins."""
    by_key = query.order == "key" or query.deleted
    places = _by_key(rows, query, cursor) if by_key else _by_time(rows, query, cursor)
    met, last = walk(places, lambda place: _passes(place[2], query, now_us), limit)
    heads = tuple([head for _, _, head in met])
    if last is None:
        return heads, None
    more = cursors.write_key(query, last[2].key, last[1]) if by_key else None
    return heads, more or cursors.write(query, *last[:2])


def _by_time(rows: Iterable[_Row], query: Query, cursor: str | None) -> list[_Place]:
    """The range of the order's index that a page begins in."""
    by_row = cursors.by_phase(query)
    places = sorted(
        (0 if by_row else _mark(head, query), row, head)
        for row, head in rows
        if _ranges(head, query) and (not by_row or head.phase == query.phase)
    )
    if query.reverse:
        places.reverse()
    if cursor is not None:
        at = cursors.read(cursor, query)
        places = [f for f in places if (f[:2] < at if query.reverse else f[:2] > at)]
    return places


def _by_key(rows: Iterable[_Row], query: Query, cursor: str | None) -> list[_Place]:
    """Return heads in the order of their keys; those deleted under one key in the order of their
    rows."""
    owned = [(head.key, row, head) for row, head in rows if _matches_owner(head, query)]
    places = sorted(owned, reverse=query.reverse, key=lambda place: place[:2])
    if cursor is not None:
        at: tuple[Key, int] = cursors.read_key(cursor, query)
        places = [f for f in places if (f[:2] < at if query.reverse else f[:2] > at)]
    return [(0, row, head) for _, row, head in places]


def _matches_owner(head: Head, query: Query) -> bool:
    key = head.key
    if query.app is None and is_reserved(key.app) and not query.reserved:
        return False
    owned = query.app in (None, key.app) and query.user in (None, key.user)
    if not owned and query.user is not None and cursors.has_lent(query):
        owned = query.app == key.app and is_lent(head.indexed_labels, query.user)
    return owned and key.id.startswith(query.prefix)


def _ranges(head: Head, query: Query) -> bool:
    """True if the range that is read has it. What else is asked for is looked at on the way."""
    own_us = query.updated_after_us if query.order == "updated" else query.created_after_us
    labeled = query.labels.items() <= head.indexed_labels.items()
    within = own_us is None or cursors.by_phase(query) or _mark(head, query) > own_us
    return _matches_owner(head, query) and labeled and within


def _passes(head: Head, query: Query, now_us: int) -> bool:
    times = (head.created_us, head.updated_us)
    kept = cursors.passes(query, *times, head.schema_version, head.phase)
    return kept and cursors.works(query, head, now_us)


def _mark(head: Head, query: Query) -> int:
    return head.updated_us if query.order == "updated" else head.created_us


# --- marks ---------------------------------------------------------------------------------------


class MemoryMarks:
    """`check_open` raises StoreClosed."""

    def __init__(self, check_open: Callable[[], None], clock: Callable[[], int]) -> None:
        self._check_open, self._clock = check_open, clock
        self._marks: dict[tuple[str, str], Mark] = {}

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        now_us = self._begin()
        if until_us <= now_us or self._living(space, name, now_us) is not None:
            return False
        self._marks[space, name] = Mark(space, name, value, until_us)
        return True

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        self._begin()
        self._marks[space, name] = Mark(space, name, value, until_us)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        before = self._living(space, name, self._begin())
        mark = Mark(space, name, added(0, by), until_us)
        if before is not None:
            mark = Mark(space, name, added(before.value, by), before.until_us)
        self._marks[space, name] = mark
        return mark.value

    async def get(self, space: str, name: str) -> Mark | None:
        self._check_open()
        return self._living(space, name, self._clock())

    async def sweep(self, limit: int) -> int:
        self._check_open()
        now_us = self._clock()
        ended = [of for of, mark in self._marks.items() if mark.until_us <= now_us]
        ended.sort(key=lambda of: self._marks[of].until_us)
        for of in ended[:limit]:
            del self._marks[of]
        return len(ended[:limit])

    def _begin(self) -> int:
        self._check_open()
        now_us = self._clock()
        for of in [of for of, m in self._marks.items() if m.until_us <= now_us][:MARKS_SWEPT]:
            del self._marks[of]
        return now_us

    def _living(self, space: str, name: str, now_us: int) -> Mark | None:
        mark = self._marks.get((space, name))
        return None if mark is None or mark.until_us <= now_us else mark


# --- blobs ---------------------------------------------------------------------------------------


_PAUSE_US = BLOB_UPLOAD_SECONDS_MAX * 1_000_000


class _Upload(NamedTuple):
    log: MemoryLog
    chunks: list[bytes]
    touched_us: int


class MemoryBlobs:
    """`living` gives the log of a session, or raises what a load would; `all` gives all of them."""

    def __init__(
        self,
        living: Callable[[Key], MemoryLog],
        present: Callable[[Key], MemoryLog],
        all: Callable[[], list[MemoryLog]],
        clock: Callable[[], int],
    ) -> None:
        self._living, self._present, self._all, self._clock = living, present, all, clock
        self._uploads: dict[str, _Upload] = {}

    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        log = self._living(key)
        self._sweep()
        chunks = self._chunks(key, log, upload, number)
        self._uploads[upload] = _Upload(log, [*chunks, bytes(data)], self._clock())

    async def finish(
        self,
        key: Key,
        upload: str,
        blob: Blob,
        last: bytes,
        *,
        fence: int | None = None,
        at: int | None = None,
    ) -> Blob:
        log = self._living(key)
        head = log.fold.head
        if at is None:
            check_open(head)
        if fence is not None and not admits(head, fence, self._clock()):
            raise SessionFenced(key, fence, head.fence)
        self._sweep()
        if blob.hash in log.blobs:
            self._uploads.pop(upload, None)
            return log.blobs[blob.hash][0]
        chunks = self._chunks(key, log, upload, blob.chunks - 1)
        self._uploads.pop(upload, None)
        made = msgspec.structs.replace(blob, version=head.version if at is None else at)
        log.blobs[blob.hash] = (made, [*chunks, bytes(last)])
        return made

    async def drop(self, key: Key, upload: str) -> None:
        with suppress(SessionError):
            self._living(key)
        self._uploads.pop(upload, None)

    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        if own:
            blob = self._present(key).blobs.get(hash)
            return None if blob is None else blob[0]
        return next((blob for blob, _ in self._seen(key, hash)), None)

    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        chunks = next((chunks for _, chunks in self._seen(key, hash)), [])
        return chunks[number] if 0 <= number < len(chunks) else None

    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        own = self._living(key).blobs
        return tuple([own[hash][0] for hash in sorted(own) if hash > after][:limit])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        keys = sorted([log.fold.head.key for log in self._all() if log.blobs])
        wanted = [key for key in keys if app in (None, key.app) and (after is None or key > after)]
        return tuple(wanted[:limit])

    def _seen(self, key: Key, hash: str) -> Iterator[tuple[Blob, list[bytes]]]:
        """Return what the session, then its parents up to where it goes on from, have of it."""
        log: MemoryLog | None = self._present(key)
        ceiling: int | None = None
        while log is not None:
            blob = log.blobs.get(hash)
            if blob is not None and (ceiling is None or blob[0].version < ceiling):
                yield blob
            ceiling = log.floor if ceiling is None else min(ceiling, log.floor)
            log = log.parent

    def _chunks(self, key: Key, log: MemoryLog, upload: str, number: int) -> list[bytes]:
        """The chunks before this one."""
        begun = self._uploads.get(upload)
        chunks = [] if begun is None else begun.chunks
        if len(chunks) != number or (begun is not None and begun.log is not log):
            raise UploadLost(key)
        return chunks

    def _sweep(self) -> None:
        before_us = self._clock() - _PAUSE_US
        for upload, begun in list(self._uploads.items()):
            if begun.touched_us < before_us:
                del self._uploads[upload]
