"""The memory store: dicts and the fold. Lost on exit, by definition.

This is the executable specification: what it does is what every store must do, and the others are
driven beside it and compared. It favours the obvious over the fast.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from msgspec import structs

from limpet.errors import (
    InvalidInput,
    LimpetError,
    PositionUnknown,
    SessionCorrupt,
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
    checkpoints_of,
    forgotten_with,
    is_reserved,
    last_checkpoint,
    limits,
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
from limpet.store.coding.bodies import is_naming
from limpet.store.coding.seal import Sealer, scope_owner
from limpet.store.live import MemoryChannel
from limpet.store.marks import Mark, Marks, added
from limpet.store.memory.changes import (
    AnyChange,
    BlobChange,
    ChunkChange,
    ColdChange,
    EndChange,
    EraseChange,
    MarkChange,
    PinChange,
    RingChange,
    TakeChange,
)
from limpet.store.memory.tables import Decision, Leasing, MemoryLog, in_app
from limpet.store.pages import PageBytes, newest_since, page, walk, wanted
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

_PAUSE_US: Final = BLOB_UPLOAD_SECONDS_MAX * 1_000_000
_BREATH: Final = 32  # sessions that are loaded before others may run
_FEED_STEP: Final = 4_096  # entries that are looked at before others may run
_TOUCHED_MAX: Final = 10_000  # entries that one page of `touched` goes through
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
        self._identity = os.urandom(16).hex()
        self.now_us: Callable[[], int] = self._clock
        self.blobs: Blobs = MemoryBlobs(self)
        self.marks: Marks = MemoryMarks(self)

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self.check_open()
        plan = Plan(self, self._clock(), lambda: os.urandom(SALT_BYTES))
        try:
            answers = plan.add(commits)
        except LimpetError:
            raise
        except Exception as error:
            raise StoreFailed("memory://", repr(error)) from error
        self._settle(plan)
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
        self.check_open()
        return self._load(key, tail, since_us, scopes=scopes)

    def _load(
        self, key: Key, tail: int, since_us: int | None = None, *, scopes: bool = True
    ) -> Loaded:
        kept = self.living(key)
        names = self.scopes(key.app, key.user) if scopes else Scopes()
        checkpoint = self._checkpoint(key) if scopes else None
        fold = kept.fold
        events = newest_since(kept.newest(tail, since_us), since_us)
        damaged = fold.damaged
        own = [event.seq for event in events if event.damage and event.seq > kept.floor]
        if own:
            damaged = tuple(sorted({*damaged, *own}))
        state = (fold.head, fold.fields, fold.versions, names)
        return Loaded(*state, events, damaged, checkpoint, fold.texts)

    async def head(self, key: Key) -> Head:
        return self.living(key).head

    def _checkpoint(self, key: Key) -> LastCheckpoint:
        log = self._kept.get(checkpoints_of(key))
        return NO_CHECKPOINT if log is None else last_checkpoint(log.head.facts)

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        sessions: list[Loaded | None] = []
        for start in range(0, len(keys), _BREATH):
            sessions += await self._load_some(keys[start : start + _BREATH], tail)
            await asyncio.sleep(0)  # they are read inline: let others run
        return tuple(sessions)

    async def _load_some(self, keys: Sequence[Key], tail: int) -> list[Loaded | None]:
        self.check_open()
        return [self._load(k, tail) if k in self._kept else None for k in keys]

    async def fold_at(self, key: Key, seq: int) -> Fold:
        return self._whole(key, seq, self.present(key).fold_at(self._at(key, seq)))

    async def rung(self, key: Key, seq: int) -> Fold:
        return self._whole(key, seq, self.present(key).rung(self._at(key, seq)))

    def _at(self, key: Key, seq: int) -> int:
        if not self.present(key).has(seq):
            raise InvalidInput(f"session {key} has no event {seq}.")
        return seq

    def _whole(self, key: Key, seq: int, fold: Fold | None) -> Fold:
        if fold is None:
            raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
        if fold.damaged:
            raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
        return fold

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        kept = self.present(key)
        version = kept.head.version
        if reverse and types is None and not after:
            return kept.newest(limit)[::-1]
        seqs = range(min(after - 1 if after else version, version), 0, -1)
        if not reverse:
            seqs = range(after + 1, version + 1)
        matching = (seq for seq in seqs if types is None or wanted(kept.type(seq), types))
        return page(kept.sized(seq) for seq in islice(matching, limit))

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        kept = self.present(key)
        seqs = [kept.seq_of(id) for id in ids]
        return tuple([kept.event(seq) for seq in seqs if seq is not None])

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        kept = self.present(key)
        return page(kept.sized(seq) for seq in sorted(kept.pending)[:limit])

    async def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        kept = self.living(key)
        room = PageBytes()
        events: list[ChainedEvent] = []
        for seq in range(max(after, kept.floor) + 1, kept.head.version + 1):
            record = kept.own_record(seq)
            events.append(record.undecoded)
            room.used += len(record.raw or b"")
            if len(events) == limit or room.full:
                break
        return tuple(events)

    async def base(self, key: Key) -> Base | None:
        return self.living(key).base

    async def keys_with(self, uid: str) -> tuple[Key, ...]:
        self.check_open()
        return tuple([key for key, log in self._kept.items() if log.head.uid == uid])

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        self.check_open()
        owners = [owner for owner in self._names if app in (None, owner[0])]
        return tuple(sorted(owner for owner in owners if after is None or owner > after)[:limit])

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        self.check_open()
        mine = self._names.get((app, user), {})
        return {name: each.value(each.last) for name, each in mine.items()}

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        kept = self.present(key)
        seqs = range(min(before - 1, kept.head.version), after, -1)
        sized = (kept.sized(seq) for seq in seqs)
        return page(islice((each for each in sized if is_naming(each[0], name)), limit))

    async def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        kept = self.present(key)
        by_name = {name: self._since(kept, key, seq, name) for name in names}
        return {name: since for name, since in by_name.items() if since is not None}

    def _since(self, kept: MemoryLog, key: Key, seq: int, name: str) -> NameSince | None:
        of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
        named, at_us = self.name_of(of), kept.event(seq).at_us
        if named is None:
            return None
        first, others = 0, False
        for version in range(named.last, 0, -1):
            made_by = named.made_by(version)
            if made_by is None:
                others = True
                continue
            row, uid, by, when_us = made_by
            if uid == kept.head.uid:
                if by <= seq:
                    break
                first = version
                continue
            writer = self._by_row.get(row)
            if writer is not None and writer.head.uid == uid:
                head = writer.head
                if (when_us if head.deleted_us is None else head.updated_us) < at_us:
                    break
            others = True
        if not first:
            return None
        return NameSince(named.value(first - 1) if first > 1 else None, named.last, others)

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        self.check_open()
        cursors.check(query)
        logs: Iterable[MemoryLog] = self._kept.values()
        if query.deleted:
            logs = [log for logs in self._deleted.values() for log in logs]
        rows = [(log.row, log.head) for log in logs]
        met, more = _page_of_heads(rows, query, cursor, limit, self.now_us())
        if not states:
            return Page(tuple([head for *_, head in met]), more)
        shown: dict[Key, FrozenDict] = {}
        damaged: list[Key] = []
        self._require_keys([head.uid for *_, head in met])
        total = 0
        for count, (_, _, head) in enumerate(met):
            if total > limits.STATES_BYTES_MAX:
                more = _cursor(query, met[count - 1])
                met = met[:count]
                break
            kept = self._kept[head.key]
            fold, names = kept.fold, self.scopes(head.key.app, head.key.user)
            total += kept.state_bytes
            if fold.damaged:
                damaged.append(head.key)
            else:
                shown[head.key] = FrozenDict({**fold.fields, **scope_fields(names)})
        return Page(tuple([head for *_, head in met]), more, shown, tuple(damaged))

    def _require_keys(self, owners: Sequence[KeyOwner]) -> None:
        """Ask for the keys of a whole page, not one by one. Nothing is sealed here."""

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        self.check_open()
        start = self._feed_start(after)
        room, entries = PageBytes(), list[FeedEntry]()
        while True:
            start, done = await self._feed_step(start, app, key, limit, entries, room)
            if done:
                return tuple(entries), cursors.write_position(start)
            await asyncio.sleep(0)  # a stretch of the feed was looked at: let others run

    async def _feed_step(
        self,
        start: int,
        app: str | None,
        key: Key | None,
        limit: int,
        entries: list[FeedEntry],
        room: PageBytes,
    ) -> tuple[int, bool]:
        """Look at some entries beyond a position: where it ended, and if the page is complete."""
        looked = self._feed.some(start, _FEED_STEP)
        for place, row, seq in looked:
            kept = self._hot(row, seq)
            if kept is None:
                continue
            of = kept.head.key
            if of != key if key is not None else not in_app(of, app):
                continue
            event, size = kept.sized(seq)
            entries.append(FeedEntry(cursors.write_position(place), of, event))
            room.used += size
            if len(entries) == limit or room.full:
                return place, True
        if len(looked) == _FEED_STEP:
            return looked[-1][0], False
        return max(start, self._feed.last), True

    def _feed_start(self, after: str | None) -> int:
        start = 0 if after is None else cursors.read_position(after, 1)[0]
        if after is not None and start > self._feed.last:
            raise PositionUnknown(after)
        return start

    def _hot(self, row: int, seq: int) -> MemoryLog | None:
        """The living session whose event the feed has."""
        kept = self._by_row.get(row)
        if kept is None or not kept.is_hot(seq) or self._kept.get(kept.head.key) is not kept:
            return None
        return kept

    async def touched(self, after: str) -> Touched:
        self.check_open()
        looked = self._feed.some(self._feed_start(after), _TOUCHED_MAX)
        sessions: dict[Key, int] = {}
        for _, row, seq in looked:
            kept = self._hot(row, seq)
            if kept is not None:
                of = kept.head.key
                sessions[of] = max(seq, sessions.get(of, 0))
        more = len(looked) == _TOUCHED_MAX
        end = cursors.write_position(looked[-1][0] if more else self._feed.last)
        return Touched(sessions, end, more=more, whole=True, ended=str(self._ended))

    async def position(self) -> str:
        self.check_open()
        return cursors.write_position(self._feed.last)

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        def decide() -> Decision[bool]:
            if at is not None and not self._stands(key, at):
                return False, ()
            changes = self._ending(key, ending)
            return bool(changes), changes

        return await self.change(decide)

    def _ending(self, key: Key, ending: Ending) -> list[AnyChange]:
        """The changes that end a session and the log of its checkpoints."""
        keys = [key] if is_reserved(key.app) else [key, checkpoints_of(key)]
        if key not in self._kept:
            return []
        now_us = self._clock()
        rows = [self._kept[each].row for each in keys if each in self._kept]
        return [EndChange(row, now_us, ending) for row in rows]

    def _stands(self, key: Key, at: Standing) -> bool:
        session, log = self._kept.get(key), self._kept.get(checkpoints_of(key))
        if session is None:
            return False
        head = session.head
        return at.holds(head.uid, head.version, 0 if log is None else log.head.version)

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        def decide() -> Decision[bool]:
            changes = self._exchanging(exchanges)
            return (False, ()) if changes is None else (True, changes)

        return await self.change(decide)

    def _exchanging(self, exchanges: Sequence[Exchange]) -> list[AnyChange] | None:
        """The changes that hand keys over; None if a step does not fit the keys as the earlier
        steps leave them."""
        changes: list[AnyChange] = []
        now: dict[Key, MemoryLog | None] = {}

        def holder(key: Key) -> MemoryLog | None:
            return now[key] if key in now else self._kept.get(key)

        for each in exchanges:
            current, fence = holder(each.key), 0
            if each.at is not None:
                if current is None or current is not self._kept.get(each.key):
                    return None
                if not self._stands(each.key, each.at):
                    return None
                fence = current.head.fence
                changes += self._ending(each.key, "moved")
                now[each.key] = now[checkpoints_of(each.key)] = None
            elif current is not None:
                return None
            if each.by is None:
                continue
            taking = holder(each.by)
            if taking is None or self._key_hash(each.key) in self._erased:
                return None
            if each.by_at is not None and not self._stands(each.by, each.by_at):
                return None
            changes += self._taking(taking, each.key, max(taking.head.fence, fence))
            now[each.by], now[each.key] = None, taking
        return changes

    def _taking(self, log: MemoryLog, key: Key, fence: int) -> list[AnyChange]:
        """The changes that give a session another key."""
        return [TakeChange(log.row, (key.app, key.user, key.id), fence)]

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        """Let the feed go of events: that is what cold means to readers. They stay where they are,
        and in a journal they are compacted with all others."""

        def decide() -> Decision[Compacted]:
            kept = self.living(key)
            if is_stub(kept.head.facts):  # it stays where every load reads it
                return Compacted(), ()
            last, before = min(upto, kept.head.version - 1), max(kept.floor, kept.cold)
            while last > before and last in kept.pending:
                last -= 1
            seqs = {*kept.hot, *range(before + 1, last + 1)}
            hot = tuple(sorted([seq for seq in seqs if seq in kept.pending]))
            if len(seqs) == len(hot):
                return Compacted(), ()
            cold = max(kept.cold, last if last > before else 0)
            return Compacted(len(seqs) - len(hot)), [ColdChange(kept.row, cold, hot)]

        return await self.change(decide)

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        def decide() -> Decision[None]:
            kept = self.living(key)
            pinned = {*kept.pins.values()}
            return None, [PinChange(kept.row, seq) for seq in seqs if seq in pinned]

        await self.change(decide)

    async def forks(self, key: Key) -> tuple[Key, ...]:
        logs = self._deleted.get(key, [])
        if key in self._kept:  # and what was archived and came back, or did not
            moved = [log for log in logs if log.head.ending == "moved"]
            logs = [*moved, self.living(key)]
        return tuple([fork.head.key for fork in self._forks(logs)])

    async def ring(self) -> str | None:
        return self._ring

    async def bind_ring(self, id: str) -> str:
        def decide() -> Decision[str]:
            return (id, [RingChange(id)]) if self._ring is None else (self._ring, ())

        return await self.change(decide)

    async def accept_head(self, key: Key) -> bool:
        self.living(key)
        return False  # nobody else can write it

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        return await self.sealer.erasing(
            lambda gone: self.change(lambda: self._erasing(key, forks, gone))
        )

    def _erasing(
        self, key: Key, forks: Forks, gone: frozenset[KeyOwner]
    ) -> Decision[Erasure | None]:
        ends, mark = self._ends(key), self._key_hash(key)
        if not ends:
            return self._erased.get(mark), ()
        children = [fork.head.key for fork in self._forks(ends) if fork.head.key != key]
        if children and forks == "refuse":
            raise SessionHasForks(key, tuple(children))
        below = self._descent(key)[1:] if forks == "erase" else []
        self.sealer.require_forgotten(self._uids([key, *below]), gone)
        change = EraseChange()
        for each in below:
            self._forget(change, each, 0)
        self._forget(change, key, len(children) if forks == "keep" else 0)
        return next(e for e in _erasures(change) if e.key_hash == mark), [change]

    def _uids(self, keys: Sequence[Key]) -> list[KeyOwner]:
        """Return the uids of all that have these keys, and of the logs that are forgotten with
        them."""
        logs = [log for key in keys for log in forgotten_with(key)]
        return [end.head.uid for key in (*keys, *logs) for end in self._ends(key)]

    def _forget(self, change: EraseChange, key: Key, forks_kept: int) -> None:
        """Put every session that has this key on the change, and its certificate."""
        ends = [end for end in self._ends(key) if end.row not in change.rows]
        if ends:
            change.rows = (*change.rows, *[end.row for end in ends])
            head, mark = ends[-1].head, self._key_hash(key)
            made = (mark.hex(), head.version, head.link.hex(), self._clock(), forks_kept)
            change.certificates = (*change.certificates, made)
            for beside in forgotten_with(key):
                self._forget(change, beside, 0)

    async def erase_user(self, app: str, user: str) -> Erasures:
        return await self.sealer.erasing(
            lambda gone: self.change(lambda: self._erasing_user(app, user, gone))
        )

    def _erasing_user(self, app: str, user: str, gone: frozenset[KeyOwner]) -> Decision[Erasures]:
        owner = owner_of(app, user)
        mine = [
            key
            for key in dict.fromkeys([*self._deleted, *self._kept])
            if (key.app, key.user) == (app, user) or (is_reserved(key.app) and key.user == owner)
        ]
        logs, own = [log for k in mine for log in self._ends(k)], {*mine}
        left = [fork.head.key for fork in self._forks(logs) if fork.head.key not in own]
        self.sealer.require_forgotten([*self._uids(mine), scope_owner(app, user)], gone)
        change, now_us = EraseChange(), self._clock()
        for key in mine:
            kept = [fork for fork in self._forks(self._ends(key)) if fork.head.key != key]
            self._forget(change, key, len(kept))
        names = len(self._names.get((app, user), {}))
        change.owner = self._owner_hash((app, user)) if names else ""
        mark = bytes.fromhex(self._owner_hash((app, user)))
        hashes = {self._key_hash(key) for key in mine if not is_reserved(key.app)}
        done = _erasures(change)
        erased = Erasures.of(mark, done, hashes, at_us=now_us, names=names, forks=left)
        if not done and not names and mark in self._erased:
            return structs.replace(erased, user=self._erased[mark]), ()
        all_ = erased.user
        made = (mark.hex(), all_.version, all_.link.hex(), all_.erased_us, all_.forks_kept)
        change.certificates = (*change.certificates, made)
        return erased, [change]

    async def examine(self) -> tuple[Check, ...]:
        self.check_open()
        advice = "For what has to outlive the process open sqlite:///file.db instead."
        return (Check("durability", "kept in memory, gone with this process", "warning", advice),)

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        self.check_open()
        keys = list(self._kept) if key is None else [key]
        findings: list[Finding] = []
        events = 0
        for done, each in enumerate(keys, 1):
            kept = self.living(each)
            seqs = range(kept.floor + 1, kept.head.version + 1)
            events += len(seqs)
            records = [kept.own_record(seq) for seq in seqs]
            stored = [(record.event, record.raw, record.salt, record.digest) for record in records]
            findings += verify_session(kept.fold, stored, base=kept.base)
            if progress is not None:
                progress(done, len(keys))
        internal = sum([is_reserved(each.app) for each in keys])
        return Report(len(keys) - internal, events, tuple(findings), internal)

    async def mark(self, space: str, name: str) -> Mark | None:
        self.check_open()
        mark = self.kept_marks.get((space, name))
        return None if mark is None or mark.until_us <= self._clock() else mark

    def channel(self) -> MemoryChannel:
        return MemoryChannel(self._channels)

    async def identity(self) -> str:
        self.check_open()
        return self._identity

    def pulse(self) -> int:
        return self._feed.last + self._ended  # several Limpets may share it

    async def close(self) -> None:
        self._open = False


def _erasures(change: EraseChange) -> list[Erasure]:
    """The erasures that the certificates of a change speak of."""
    return [
        Erasure(bytes.fromhex(mark), version, bytes.fromhex(link), at_us, kept)
        for mark, version, link, at_us, kept in change.certificates
    ]


# --- pages of heads: everything is sorted, then cut -----------------------------------------------


def _page_of_heads(
    rows: Iterable[_Row], query: Query, cursor: str | None, limit: int, now_us: int
) -> tuple[list[_Place], str | None]:
    """The heads of one page, and where the next begins."""
    by_key = query.order == "key" or query.deleted
    places = _by_key(rows, query, cursor) if by_key else _by_time(rows, query, cursor)
    met, last = walk(places, lambda place: _passes(place[2], query, now_us), limit)
    return met, None if last is None else _cursor(query, last)


def _cursor(query: Query, last: _Place) -> str:
    """The page that goes on behind this head."""
    if query.order == "key" or query.deleted:
        return cursors.write_key(query, last[2].key, last[1])
    return cursors.write(query, *last[:2])


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
    """The marks of a store, which it keeps in its tables."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        def decide() -> Decision[bool]:
            now_us = self._now_us()
            if until_us <= now_us or self.living(space, name, now_us) is not None:
                return False, ()
            return True, self._put(Mark(space, name, value, until_us), now_us)

        return await self._store.change(decide)

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        def decide() -> Decision[None]:
            return None, self._put(Mark(space, name, value, until_us), self._now_us())

        await self._store.change(decide)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        def decide() -> Decision[int]:
            now_us = self._now_us()
            before = self.living(space, name, now_us)
            mark = Mark(space, name, added(0, by), until_us)
            if before is not None:
                mark = Mark(space, name, added(before.value, by), before.until_us)
            return mark.value, self._put(mark, now_us)

        return await self._store.change(decide)

    async def get(self, space: str, name: str) -> Mark | None:
        return await self._store.mark(space, name)

    async def sweep(self, limit: int) -> int:
        def decide() -> Decision[int]:
            gone = self._ended(self._now_us(), limit)
            return len(gone), gone

        return await self._store.change(decide)

    def _now_us(self) -> int:
        return self._store.now_us()

    def _put(self, mark: Mark, now_us: int) -> list[MarkChange]:
        made = MarkChange(mark.space, mark.name, mark.value, mark.until_us)
        return [*self._ended(now_us, MARKS_SWEPT), made]

    def _ended(self, now_us: int, limit: int) -> list[MarkChange]:
        ended = [mark for mark in self._store.kept_marks.values() if mark.until_us <= now_us]
        ended.sort(key=lambda mark: mark.until_us)
        return [MarkChange(mark.space, mark.name) for mark in ended[:limit]]

    def living(self, space: str, name: str, now_us: int) -> Mark | None:
        mark = self._store.kept_marks.get((space, name))
        return None if mark is None or mark.until_us <= now_us else mark


# --- blobs ---------------------------------------------------------------------------------------


class MemoryBlobs:
    """The blobs of a store, which it keeps in its tables: of an upload and of a blob the chunks.

    A store with a journal overrides how both are written and read.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        def decide() -> Decision[None]:
            log = self._store.living(key)
            self._check_next(key, log, upload, number)
            return None, [self.chunk_change(log, upload, number, data)]

        await self._store.change(decide)

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
        def decide() -> Decision[Blob]:
            log = self._store.living(key)
            head, number = log.head, blob.chunks - 1
            if at is None:
                check_open(head)
            if fence is not None and not admits(head, fence, self._store.now_us()):
                raise SessionFenced(key, fence, head.fence)
            if blob.hash in log.blobs:  # the same content: these chunks are not needed
                self._store.begun_uploads.pop(upload, None)
                return self.read_blob(log, blob.hash), ()
            self._check_next(key, log, upload, number)
            made = structs.replace(blob, version=head.version if at is None else at)
            chunk = self.chunk_change(log, upload, number, last)
            return made, [chunk, self.blob_change(log, upload, made)]

        return await self._store.change(decide)

    async def drop(self, key: Key, upload: str) -> None:
        self._store.check_open()
        self._store.begun_uploads.pop(upload, None)

    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        log = self._seen(key, hash, own=own)
        return None if log is None else self.read_blob(log, hash)

    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        log = self._seen(key, hash)
        if log is None or not 0 <= number < len(log.blobs[hash].chunks):
            return None
        return self.read_chunk(log, hash, number)

    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        log = self._store.living(key)
        hashes = [hash for hash in sorted(log.blobs) if hash > after][:limit]
        return tuple([self.read_blob(log, hash) for hash in hashes])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        self._store.check_open()
        keys = sorted([key for key, log in self._store.living_logs() if log.blobs])
        wanted = [key for key in keys if app in (None, key.app) and (after is None or key > after)]
        return tuple(wanted[:limit])

    # --- how they are kept ---------------------------------------------------------------------

    def chunk_change(self, log: MemoryLog, upload: str, number: int, data: bytes) -> ChunkChange:
        return ChunkChange(log.row, upload, number, self._store.now_us(), bytes(data))

    def blob_change(self, log: MemoryLog, upload: str, blob: Blob) -> BlobChange:
        return BlobChange(log.row, blob.hash, upload, blob)

    def read_blob(self, log: MemoryLog, hash: str) -> Blob:
        blob: Blob = log.blobs[hash].blob
        return blob

    def read_chunk(self, log: MemoryLog, hash: str, number: int) -> bytes:
        data: bytes = log.blobs[hash].chunks[number]
        return data

    # --- private -------------------------------------------------------------------------------

    def _seen(self, key: Key, hash: str, *, own: bool = False) -> MemoryLog | None:
        """The log that has a blob: the session's, or a parent's up to where it goes on from."""
        log: MemoryLog | None = self._store.present(key)
        ceiling: int | None = None
        while log is not None:
            kept = log.blobs.get(hash)
            if kept is not None and (ceiling is None or kept.blob.version < ceiling):
                return log
            if own:
                return None
            ceiling = log.floor if ceiling is None else min(ceiling, log.floor)
            log = log.parent
        return None

    def _check_next(self, key: Key, log: MemoryLog, upload: str, number: int) -> None:
        uploads = self._store.begun_uploads
        before_us = self._store.now_us() - _PAUSE_US
        for each in [each for each, begun in uploads.items() if begun.touched_us < before_us]:
            del uploads[each]
        begun = uploads.get(upload)
        chunks, row = (0, log.row) if begun is None else (len(begun.chunks), begun.row)
        if chunks != number or row != log.row:
            raise UploadLost(key)
