"""The tables of the memory store, the planner's view of them, and how a change is applied.

What a store keeps of a session is a `MemoryLog`, of a shared name a `MemoryName`. A store with a
journal has its own kinds of both, which read from there what is not in memory; everything else is
the same for both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from msgspec import structs

from limpet.errors import (
    Asked,
    LimpetError,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionNotFound,
    StoreClosed,
)
from limpet.model import (
    EMPTY,
    PROCESSING,
    Base,
    Event,
    Fold,
    Head,
    Key,
    Lease,
    Recorded,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    based,
    blank,
    buried,
    canonical,
    deadline_us,
    is_reserved,
    processed_by,
    removed_event,
    replay,
    runnable_us,
)
from limpet.model.adopt import whole
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import Phase, is_stub
from limpet.model.facts.running.runs import run_in
from limpet.model.facts.running.waiting import open_in
from limpet.model.lease import (
    Readiness,
    acquired,
    given_back,
    is_ahead,
    is_leased,
    lasting,
    lease_of,
    measured_again,
    readiness,
    renewed,
    taken,
    with_lease,
    withdrawn,
)
from limpet.store.clock import Clock
from limpet.store.leases import Place, span_us
from limpet.store.live import MemoryChannel
from limpet.store.marks import Mark
from limpet.store.memory.changes import (
    AnyChange,
    BlobChange,
    ChunkChange,
    ColdChange,
    EndChange,
    EraseChange,
    LeaseChange,
    MarkChange,
    PinChange,
    RingChange,
    TakeChange,
)
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery, is_asked
from limpet.store.pages import PageBytes, bare, within
from limpet.store.plan import Plan
from limpet.store.protocol import ChainedEvent, Erasure, Owner
from limpet.store.scopes import DELETED, Kept, Scopes, Sizes

T = TypeVar("T")
Decision: TypeAlias = tuple[T, Sequence[AnyChange]]  # the answer, and what changes


class MemoryTables:
    """Dicts. Implements what `limpet.store.plan.View` asks for."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._forget_all()
        self._channels: WeakSet[MemoryChannel] = WeakSet()  # of the live channel
        self._open = True

    def _forget_all(self) -> None:
        """Begin with nothing."""
        self._kept: dict[Key, MemoryLog] = {}
        self._by_row: dict[int, MemoryLog] = {}  # tombstones, too
        self._deleted: dict[Key, list[MemoryLog]] = {}  # tombstones: the head of each is buried
        self._erased: dict[bytes, Erasure] = {}
        self._names: dict[Owner, dict[str, MemoryName]] = {}
        self.kept_marks: dict[tuple[str, str], Mark] = {}
        self.begun_uploads: dict[str, Upload] = {}
        self._busy: dict[int, MemoryLog] = {}  # those that may be due, leased or asking
        self._ring: str | None = None
        self._rows = 0
        self._feed = FeedEntries()
        self._ended = 0  # how often a session was deleted or erased

    # --- the planner's view --------------------------------------------------------------------

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        log = self._find(key, reuse=reuse)
        return None if log is None else log.fold

    def ended(self, key: Key, uid: str) -> bool:
        return any([log.head.uid == uid for log in self._deleted.get(key, ())])

    def link_at(self, key: Key, seq: int) -> bytes | None:
        kept = self._kept.get(key)
        link = kept.link_at(seq) if kept is not None and kept.has(seq) else b""
        return link or None  # what was removed has none

    def recorded(self, key: Key, id: str) -> Event | None:
        kept = self._kept.get(key)
        seq = None if kept is None else kept.seq_of(id)
        return None if kept is None or seq is None else kept.event(seq)

    def pending(self, key: Key, seq: int) -> bool:
        kept = self._kept.get(key)  # None: being created by this very commit
        return kept is not None and seq in kept.pending

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        name = self.name_of(key)
        return None if name is None else name.value(name.last)

    def scope_version(self, key: ScopeKey) -> int:
        name = self.name_of(key)
        return 0 if name is None else name.last

    def scopes(self, app: str, user: str) -> Scopes:
        seen: dict[str, Kept] = {}
        for owner in ((app, ""), (app, user)):
            seen |= {n: each.newest() for n, each in self._names.get(owner, {}).items()}
        return Scopes(seen)

    def names(self, app: str, user: str) -> Sizes:
        return {name: each.size for name, each in self._names.get((app, user), {}).items()}

    # --- what is there -------------------------------------------------------------------------

    def check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    def _find(self, key: Key, *, reuse: bool = False) -> MemoryLog | None:
        """The living session, None if there never was one; `reuse`: also if it was deleted."""
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        if key in self._deleted and not reuse:
            raise SessionDeleted(key)
        if self._erased and self._key_hash(key) in self._erased:
            raise SessionErased(key)
        return None

    def living(self, key: Key) -> MemoryLog:
        self.check_open()
        log = self._find(key)
        if log is None:
            raise SessionNotFound(key)
        return log

    def present(self, key: Key) -> MemoryLog:
        """The same, of a session whose log is here. Raises SessionArchived."""
        kept = self.living(key)
        if is_stub(kept.head.facts):
            raise SessionArchived(key)
        return kept

    def log_of(self, key: Key) -> MemoryLog | None:
        """The living session with this key."""
        return self._kept.get(key)

    def living_logs(self) -> list[tuple[Key, MemoryLog]]:
        """The living sessions by their keys."""
        return list(self._kept.items())

    @property
    def rows(self) -> int:
        """The last row that was given to a session."""
        return self._rows

    def name_of(self, key: ScopeKey) -> MemoryName | None:
        return self._names.get(key[:2], {}).get(key[2])

    def _key_hash(self, key: Key | tuple[str, str, str]) -> bytes:
        """The hash by which a key or a user is recognised that was erased."""
        return sha256(canonical(key)).digest()

    def _owner_hash(self, owner: Owner) -> str:
        return self._key_hash(("user", *owner)).hex()

    def _ends(self, key: Key) -> list[MemoryLog]:
        """Every session that has this key, the living one last."""
        return [*self._deleted.get(key, []), *([self._kept[key]] if key in self._kept else [])]

    def _forks(self, logs: Iterable[MemoryLog]) -> list[MemoryLog]:
        """The living ones, the oldest first; where one was deleted, its own in its place."""
        forks: list[MemoryLog] = []
        for log in logs:
            below: list[MemoryLog] = []
            for fork in log.forks:
                if self._kept.get(fork.head.key) is fork:
                    below.append(fork)
                elif fork.row in self._by_row:
                    below += self._forks([fork])
            forks += sorted(below, key=lambda fork: (fork.head.created_us, fork.row))
        return forks

    def _descent(self, key: Key) -> list[Key]:
        """The key, and those of all forks of what has it, of their forks, and so on."""
        descent = [key]
        for each in descent:  # grows as it is walked
            forks = [fork.head.key for fork in self._forks(self._ends(each))]
            descent += [of for of in dict.fromkeys(forks) if of not in descent]
        return descent

    # --- applying ------------------------------------------------------------------------------

    def _settle(self, plan: Plan, rows: Mapping[Key, int] = EMPTY) -> None:  # type: ignore[assignment]  # no keys
        """Apply what was planned. In a store with a journal it is durable by then, and has given
        new sessions these rows."""
        for key, fold in plan.folds.items():
            log = self._kept.get(key)
            if log is None:
                log = self._begin(rows.get(key, self._rows + 1), fold.head)
                self._attach(log, plan.bases.get(key))
            log.keep(fold)
            self._move(log, fold.head)
        for key, rec in plan.records:
            log, event = self._kept[key], rec.event
            log.add(rec)
            if not rec.draft.plain:
                done: Sequence[int] = ()
                if event.type in PROCESSING:
                    done = processed_by(event.type, whole(rec).event.data)
                log.note(event.seq, event.at_us, done, input=event.processed is not None)
            self._feed.add(log.row, event.seq)
        if plan.writes:
            times = {(key, rec.event.seq): rec.event.at_us for key, rec in plan.records}
            for key, write in plan.writes:
                log, at_us = self._kept[key], times[key, write.seq]
                self._name_at(write.key).add(write, log.row, log.head.uid, at_us)
        for key, number, fold in plan.pins:
            self._pin(self._kept[key], fold.head.version, number)

    def _begin(self, row: int, head: Head) -> MemoryLog:
        """A session that was not there before."""
        self._rows = max(self._rows, row)
        log = self._kept[head.key] = self._by_row[row] = self._new_log(row, head)
        self._watch(log)
        return log

    def _attach(self, log: MemoryLog, base: Base | None) -> None:
        """The state that a log begins on, and its parent, if that is here."""
        if base is not None:
            log.base = base
            parent = self._kept.get(base.parent)
            if parent is not None and parent.head.uid == base.uid:
                log.parent = parent
                parent.forks.append(log)

    def _new_log(self, row: int, head: Head) -> MemoryLog:
        return MemoryLog(row, head)

    def _name_at(self, key: ScopeKey) -> MemoryName:
        names = self._names.setdefault(key[:2], {})
        name = names.get(key[2])
        if name is None:
            name = names[key[2]] = self._new_name(key)
        return name

    def _new_name(self, key: ScopeKey) -> MemoryName:
        return MemoryName()

    def _apply(self, change: AnyChange) -> None:
        """Apply one change that is no commit."""
        if isinstance(change, MarkChange):
            of = (change.space, change.name)
            self.kept_marks.pop(of, None)
            if change.until:
                self.kept_marks[of] = Mark(*of, change.value, change.until)
        elif isinstance(change, EraseChange):
            self._erase_rows(change)
        elif isinstance(change, RingChange):
            self._ring = change.ring
        elif (log := self._by_row.get(change.row)) is not None:
            self._apply_to(log, change)

    def _apply_to(self, log: MemoryLog, change: AnyChange) -> None:
        if isinstance(change, LeaseChange):
            lease = (change.fence, change.lease_us, change.worker, change.leased_us)
            self._set_head(with_lease(log.head, *lease))
        elif isinstance(change, PinChange):
            self._pin(log, change.seq, change.number)
        elif isinstance(change, ColdChange):
            log.cold, log.hot = change.upto, frozenset(change.hot)
        elif isinstance(change, EndChange):
            self._end(log, change)
        elif isinstance(change, TakeChange):
            self._take(log, change)
        elif isinstance(change, ChunkChange):
            self._add_chunk(change.row, change.upload, change.time, change.data)
        elif isinstance(change, BlobChange):
            upload = self.begun_uploads.pop(change.upload)
            log.blobs[change.hash] = KeptBlob(change.blob, upload.chunks)

    def _add_chunk(self, row: int, upload: str, at_us: int, chunk: Any) -> None:
        begun = self.begun_uploads.get(upload)
        chunks = [] if begun is None else begun.chunks
        self.begun_uploads[upload] = Upload(row, [*chunks, chunk], at_us)

    def _pin(self, log: MemoryLog, seq: int, number: int) -> None:
        log.pins = {n: at for n, at in log.pins.items() if number or at != seq}
        if number:
            log.pins[number] = seq

    def _end(self, log: MemoryLog, change: EndChange) -> None:
        key = log.head.key
        if self._kept.get(key) is log:
            del self._kept[key]
            self._busy.pop(log.row, None)
            ending: Any = change.ending
            log.head = buried(log.head, change.time, ending)
            log.let_go()
            self._deleted.setdefault(key, []).append(log)
            self._ended += 1
            self._forget_partials(key)

    def _take(self, log: MemoryLog, change: TakeChange) -> None:
        del self._kept[log.head.key]
        log.let_go(state=False)
        head = structs.replace(log.head, key=Key(*change.session), fence=change.fence)
        self._kept[head.key] = log
        self._move(log, head)
        self._ended += 1

    def _erase_rows(self, change: EraseChange) -> None:
        for row in change.rows:
            self._rows = max(self._rows, row)
            log = self._by_row.pop(row, None)
            if log is None:
                continue
            key = log.head.key
            if self._kept.get(key) is log:
                del self._kept[key]
                self._busy.pop(row, None)
            else:
                self._deleted[key].remove(log)
                if not self._deleted[key]:
                    del self._deleted[key]
            for fork in log.forks:
                fork.parent = None
            if log.parent is not None:
                log.parent.forks.remove(log)
            self._ended += 1
            self._forget_partials(key)
        if change.owner:
            named = change.owner
            named = named if isinstance(named, str) else self._owner_hash(named)
            for owner in [each for each in self._names if self._owner_hash(each) == named]:
                del self._names[owner]
        for mark, version, link, at_us, kept in change.certificates:
            of = bytes.fromhex(mark)
            self._erased[of] = Erasure(of, version, bytes.fromhex(link), at_us, kept)

    def _set_head(self, head: Head) -> None:
        """A change of the head that no event records."""
        self._move(self._kept[head.key], head)

    def _move(self, log: MemoryLog, head: Head) -> None:
        before, log.head = log.head, head
        if before.facts is not head.facts or before.lease_us != head.lease_us:
            self._watch(log)

    def _watch(self, log: MemoryLog) -> None:
        """Note whether claims and sweeps have to look at it: most sessions wait for nothing."""
        head = log.head
        waits = head.lease_us is not None or (
            head.facts
            and (
                runnable_us(head) is not None
                or deadline_us(head) is not None
                or bool(open_in(head.facts))
            )
        )
        if waits:
            self._busy[log.row] = log
        else:
            self._busy.pop(log.row, None)

    def _forget_partials(self, key: Key) -> None:
        for end in self._channels:
            end.forget(key)


class Upload(NamedTuple):
    """The chunks of a blob that is not complete, or where they are."""

    row: int
    chunks: list[Any]
    touched_us: int


class KeptBlob(NamedTuple):
    """A blob, or how it is stored, and its chunks, or where they are."""

    blob: Any  # it has a version
    chunks: list[Any]


class FeedEntries:
    """The entries of the feed: row and seq of each event, in the order in which they were recorded.

    Each has a number, from 1 on without a gap, but where entries are gone or a restore has lifted
    them.
    """

    __slots__ = ("_entries", "_runs")

    def __init__(self) -> None:
        self._entries = array("Q")  # row << 32 | seq
        self._runs = [(0, 1)]  # the place of an entry, and its number; those after it count on

    @property
    def last(self) -> int:
        """The number of the last one."""
        place, number = self._runs[-1]
        return number + len(self._entries) - place - 1

    def add(self, row: int, seq: int) -> None:
        self._entries.append(row << 32 | seq)

    def lift(self, number: int) -> None:
        """Let the next entry have this number, which is beyond all others."""
        if number > self.last + 1:
            place = len(self._entries)
            if self._runs[-1][0] == place:
                self._runs.pop()
            self._runs.append((place, number))

    def some(self, number: int, most: int) -> list[tuple[int, int, int]]:
        """Number, row and seq of the first entries beyond a number, at most so many."""
        page: list[tuple[int, int, int]] = []
        at = max(bisect_right(self._runs, number, key=lambda run: run[1]) - 1, 0)
        ends = [place for place, _ in self._runs[at + 1 :]] + [len(self._entries)]
        for (place, first), end in zip(self._runs[at:], ends, strict=True):
            start = place + max(0, number + 1 - first)
            for each in range(start, min(end, start + most - len(page))):
                item = self._entries[each]
                page.append((first + each - place, item >> 32, item & 0xFFFF_FFFF))
        return page


class MemoryName:
    """Every version of an app: or user: name."""

    __slots__ = ("_made_by", "_versions", "size")

    def __init__(self) -> None:
        self._versions: list[ScopeValue] = []
        self._made_by: list[tuple[int, str, int, int]] = []
        self.size = 0  # of the newest value; DELETED

    @property
    def last(self) -> int:
        return len(self._versions)

    def add(self, write: ScopeWrite, row: int, uid: str, at_us: int) -> None:
        self._versions.append(write.at)
        self._made_by.append((row, uid, write.seq, at_us))
        self.size = DELETED if write.at.deleted else len(write.whole)

    def newest(self) -> Kept:
        return self._versions[-1]

    def value(self, version: int) -> ScopeValue:
        return self._versions[version - 1]

    def made_by(self, version: int) -> tuple[int, str, int, int] | None:
        """Row, uid, seq and time of the event that made a version; None if it cannot be read."""
        return self._made_by[version - 1]


class MemoryLog:
    """A session: its head, and its own events. What is below its floor is read from its parent's
    log.

    A store with a journal overrides what is under "its own": the rest asks for it.
    """

    __slots__ = (
        "_base",
        "_fold",
        "_ids",
        "_records",
        "blobs",
        "cold",
        "forks",
        "head",
        "hot",
        "parent",
        "pending",
        "pins",
        "processed",
        "row",
    )

    def __init__(self, row: int, head: Head) -> None:
        self.row, self.head = row, head
        self.parent: MemoryLog | None = None
        self.forks: list[MemoryLog] = []  # logs that begin on a state of this one, living ones
        self.pending: dict[int, None] = {}  # seqs of inputs that no event has processed
        self.processed: dict[int, tuple[int, int]] = {}  # by seq: what processed it, and when
        self.blobs: dict[str, Any] = {}  # by hash
        self.pins: dict[int, int] = {}  # by number of the checkpoint: the version
        self.cold = 0  # up to here the feed no longer has its events
        self.hot: frozenset[int] = frozenset()  # but these, which were pending
        self._begin()

    # --- its own -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._fold: Fold | None = None
        self._base: Base | None = None
        self._records: list[Recorded] = []
        self._ids: dict[str, int] = {}  # the seq of each id

    @property
    def base(self) -> Base | None:
        """The state that the log begins on."""
        return self._base

    @base.setter
    def base(self, base: Base | None) -> None:
        self._base = base

    @property
    def fold(self) -> Fold:
        """The session as it is now."""
        fold = self._fold
        if fold is None:  # of a tombstone
            return Fold(self.head)
        if fold.head is not self.head:
            fold = self._fold = structs.replace(fold, head=self.head)
        return fold

    def keep(self, fold: Fold) -> None:
        """Remember the fold that a commit leaves."""
        self._fold = fold

    def let_go(self, *, state: bool = True) -> None:
        """Forget what is remembered because somebody may ask for it again."""
        if state:
            self._fold = None

    def add(self, rec: Recorded) -> None:
        rec = whole(rec)  # what is adopted comes undecoded
        self._records.append(rec)
        self._ids[rec.event.id] = rec.event.seq

    def own_sized(self, seq: int) -> tuple[Event, int]:
        """An own event as it was recorded, an input as pending, and the bytes of its body."""
        rec = self._records[seq - self.floor - 1]
        return rec.event, len(rec.raw)

    def own_type(self, seq: int) -> str:
        return self.own_sized(seq)[0].type

    def own_link(self, seq: int) -> bytes:
        return self.own_sized(seq)[0].link

    def own_record(self, seq: int) -> ChainedEvent:
        rec = self._records[seq - self.floor - 1]
        return ChainedEvent(self.event(seq), rec.raw, rec.salt, rec.digest)

    def newest(self, tail: int, since_us: int | None = None) -> tuple[Event, ...]:
        """The last events, ascending: as many as fit a page, and few that are older than that."""
        return bare(self.newest_sized(tail, since_us))

    def newest_sized(self, tail: int, since_us: int | None) -> list[tuple[Event, int]]:
        """The same with the bytes of their bodies."""

        def back() -> Iterator[tuple[Event, int]]:
            version = self.head.version
            for seq in range(version, max(0, version - tail), -1):
                event, size = self.sized(seq)
                yield event, size
                if since_us is not None and 0 < event.at_us < since_us:
                    return

        return within(PageBytes(), back())[::-1]

    @property
    def state_bytes(self) -> int:
        """About how large the state is, encoded, if that has to be bounded."""
        return 0

    def own_fold(self, seq: int) -> Fold:
        """The fold after an own event."""
        fold = self.start()
        for each in range(self.floor + 1, seq + 1):
            fold = replay(fold, self.event(each))
        return fold

    def seq_of(self, id: str) -> int | None:
        """The seq that this session recorded an id under."""
        return self._ids.get(id)

    # --- its history ---------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        return self.head.floor

    def note(self, seq: int, at_us: int, done: Iterable[int], *, input: bool) -> None:
        """Note what a new event is, and which inputs it processed."""
        if input:
            self.pending[seq] = None
        for each in done:
            self.pending.pop(each, None)
            self.processed[each] = (seq, at_us)

    def has(self, seq: int) -> bool:
        return 1 <= seq <= self.head.version

    def is_hot(self, seq: int) -> bool:
        """True if the feed has it."""
        return seq > self.cold or seq in self.hot

    def event(self, seq: int) -> Event:
        return self.sized(seq)[0]

    def sized(self, seq: int) -> tuple[Event, int]:
        """An event of this history, and the bytes of its encoded body. What the parent had pending,
        the fork itself has ended."""
        if seq <= self.floor:
            if self.parent is None:
                return removed_event(seq), 0
            event, size = self.parent.sized(seq)
            if event.processed is None or 0 < event.processed <= self.floor:
                return event, size
            began = self.own_sized(self.floor + 1)[0]
            event = structs.replace(event, processed=began.seq, processed_us=began.at_us)
            return event, size
        event, size = self.own_sized(seq)
        by = self.processed.get(seq)
        if by is not None:
            event = structs.replace(event, processed=by[0], processed_us=by[1])
        return event, size

    def _of(self, seq: int) -> MemoryLog | None:
        """The log that has an event as its own; None if it was removed with a parent."""
        log: MemoryLog | None = self
        while log is not None and seq <= log.floor:
            log = log.parent
        return log

    def type(self, seq: int) -> str:
        log = self._of(seq)
        return "" if log is None else log.own_type(seq)

    def link_at(self, seq: int) -> bytes:
        """The link of an event; empty if it was removed."""
        log = self._of(seq)
        return b"" if log is None else log.own_link(seq)

    def fold_at(self, seq: int) -> Fold | None:
        """The fold as it was after this event; None if that was removed with a parent."""
        log = self._of(seq)
        return None if log is None else log.own_fold(seq)

    def rung(self, seq: int) -> Fold | None:
        """The fold after this event or an earlier one: where the least has to be read."""
        return self.fold_at(seq)

    def start(self) -> Fold:
        """Return the fold before its first own event."""
        head, base = self.head, self.base
        if base is None:
            return Fold(blank(head.key, head.uid, head.created_us))
        begun = based(head.key, head.uid, head.created_us, base.floor, base.link)
        return Fold(begun, base.fields, base.versions)


# --- leases --------------------------------------------------------------------------------------


class Leasing(MemoryTables):
    """Implements `limpet.store.leases.Leases` and `limpet.store.overview.Overview`."""

    async def change(self, decide: Callable[[], Decision[T]], asked: Asked = "change") -> T:
        """Decide on changes, and apply them; the answer. With a journal they are written down
        between the two. `asked` says what failed if that does."""
        self.check_open()
        answer, changes = decide()
        for change in changes:
            self._apply(change)
        return answer

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        def decide() -> Decision[tuple[Lease, ...]]:
            now_us = self._clock()
            self._measure_again(now_us)
            until_us = now_us + span_us(lease_seconds)
            due = sorted(
                (-head.priority, due_us, kept.row, head)
                for kept in self._busy.values()
                if in_app((head := kept.head).key, app)
                and (due_us := runnable_us(head)) is not None
                and due_us <= now_us
            )
            before = [head for *_, head in due[:limit]]
            heads = [taken(head, worker, now_us, until_us) for head in before]
            leases = [
                lease_of(head, lease_seconds, now_us, before=was)
                for head, was in zip(heads, before, strict=True)
            ]
            return tuple(leases), [self._leased(head) for head in heads]

        return await self.change(decide, "lease")

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        """In a journal only what it says of the holder is written: leases end with the process that
        writes."""

        def decide() -> Decision[tuple[Lease | LimpetError, ...]]:
            renamed: list[AnyChange] = []
            return tuple([self._renew(lease, lease_seconds, renamed) for lease in leases]), renamed

        return await self.change(decide)

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        def decide() -> Decision[bool]:
            kept = self._kept.get(lease.key)
            if kept is None:
                return False, ()
            now_us = self._clock()
            retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
            given = given_back(kept.head, lease, now_us, retry_us)
            after = given or withdrawn(kept.head, lease, now_us)
            return given is not None, [] if after is None else [self._leased(after)]

        return await self.change(decide)

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        def decide() -> Decision[Lease]:
            now_us = self._clock()
            until_us = now_us + span_us(lease_seconds)
            try:
                head = acquired(self.living(key).head, worker, now_us, until_us)
            except SessionError:
                self._measure_again(now_us)
                head = acquired(self.living(key).head, worker, now_us, until_us)
            before = self.living(key).head
            lease = lease_of(head, lease_seconds, now_us, lock=True, before=before)
            return lease, [self._leased(head)]

        return await self.change(decide, "lease")

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        self.check_open()
        now_us = self._clock()
        leased = sorted(
            (at_us, kept.row, head.key)
            for kept in self._busy.values()
            if in_app((head := kept.head).key, None)
            and not is_leased(head, now_us)
            and (at_us := deadline_us(head)) is not None
            and at_us <= now_us
        )
        page = [each for each in leased if after is None or each[:2] > after][:limit]
        keys = tuple([key for *_, key in page])
        return keys, page[-1][:2] if len(page) == limit else None

    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        self.check_open()
        requests = sorted(
            ((request.label, kept.row), AskedBy(head.key, request))
            for kept in self._busy.values()
            if in_app((head := kept.head).key, query.app)
            and is_asked(query, head)
            and departure(head.facts) is None
            for request in open_in(head.facts)
            if query.kind in (None, request.kind)
        )
        page = [each for each in requests if after is None or each[0] > after]
        more = page[limit - 1][0] if len(page) > limit else None
        return tuple([asked for _, asked in page[:limit]]), more

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        self.check_open()
        now_us = self._clock()
        heads = [kept.head for kept in self._kept.values()]
        heads = [head for head in heads if in_app(head.key, app) and not departure(head.facts)]
        counted: Counter[tuple[Phase, str, Readiness, bool]] = Counter()
        for head in heads[:limit]:
            stop, ready = run_in(head.facts).get("stop", ""), readiness(head, now_us)
            counted[head.phase, stop, ready, head.pending > 0] += 1
        return tuple([Tally(*kind, sessions=count) for kind, count in counted.items()])

    def _leased(self, head: Head) -> LeaseChange:
        lease = (head.fence, head.lease_us, head.worker, head.leased_us)
        return LeaseChange(self._kept[head.key].row, *lease)

    def _renew(
        self, lease: Lease, lease_seconds: float | None, renamed: list[AnyChange]
    ) -> Lease | LimpetError:
        now_us = self._clock()
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            before = self.living(lease.key).head
            head = renewed(before, lease, now_us, until_us)
        except LimpetError as error:
            return error
        if head.worker == before.worker:
            self._set_head(head)
        else:
            renamed.append(self._leased(head))
        return lasting(lease, until_us, seconds)

    def _measure_again(self, now_us: int) -> None:
        """Leases of a clock that was set back since: nobody waits for the time it was ahead."""
        for kept in list(self._busy.values()):
            if is_ahead(kept.head, now_us):
                self._set_head(measured_again(kept.head, now_us))


def in_app(key: Key, app: str | None) -> bool:
    return not is_reserved(key.app) if app is None else key.app == app
