"""The tables of the memory store, and the planner's view of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from weakref import WeakSet

import msgspec

from limpet.errors import (
    LimpetError,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionNotFound,
    StoreClosed,
)
from limpet.model import (
    Base,
    Event,
    Fold,
    Head,
    Key,
    Lease,
    Recorded,
    ScopeKey,
    ScopeValue,
    based,
    blank,
    canonical,
    deadline_us,
    encode,
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
    withdrawn,
)
from limpet.store.blobs import Blob
from limpet.store.clock import Clock
from limpet.store.leases import Place, span_us
from limpet.store.live import MemoryChannel
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery, is_asked
from limpet.store.protocol import Erasure
from limpet.store.scopes import DELETED, Scopes, Sizes


class MemoryTables:
    """Dicts. Implements what `limpet.store.plan.View` asks for."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._kept: dict[Key, MemoryLog] = {}
        self._scopes: dict[ScopeKey, list[ScopeValue]] = {}
        # The event that made each version of a name: uid, seq and time.
        self._made_by: dict[ScopeKey, list[tuple[str, int, int]]] = {}
        self._deleted: dict[Key, list[MemoryLog]] = {}  # tombstones: the head of each is buried
        self._erased: dict[bytes, Erasure] = {}
        self._rows = 0
        self._feed: list[tuple[int, Key, int]] = []  # row, key and seq
        self._channels: WeakSet[MemoryChannel] = WeakSet()  # of the live channel
        self._ended = 0  # how often a session was deleted or erased
        self._open = True

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        kept = self._kept.get(key)
        if kept is not None:
            return kept.fold
        if key in self._deleted and not reuse:
            raise SessionDeleted(key)
        if key_hash(key) in self._erased:
            raise SessionErased(key)
        return None

    def ended(self, key: Key, uid: str) -> bool:
        return any([log.fold.head.uid == uid for log in self._deleted.get(key, ())])

    def link_at(self, key: Key, seq: int) -> bytes | None:
        kept = self._kept.get(key)
        link = kept.event(seq).link if kept is not None and kept.has(seq) else b""
        return link or None  # what was removed has none

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

    # what is there

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    def _living(self, key: Key) -> MemoryLog:
        self._check_open()
        if self.fold(key) is None:
            raise SessionNotFound(key)
        return self._kept[key]

    def _present(self, key: Key) -> MemoryLog:
        """The same, of a session whose log is here. Raises SessionArchived."""
        kept = self._living(key)
        if is_stub(kept.fold.head.facts):
            raise SessionArchived(key)
        return kept

    def _begin(self, key: Key, fold: Fold, base: Base | None) -> None:
        self._rows += 1
        parent = None if base is None else self._kept.get(base.parent)
        if base is not None and parent is not None and parent.fold.head.uid != base.uid:
            parent = None
        self._kept[key] = MemoryLog(self._rows, fold, base, parent)
        if parent is not None:
            parent.forks.append(self._kept[key])

    def _ends(self, key: Key) -> list[MemoryLog]:
        """Every session that has this key, the living one last."""
        return [*self._deleted.get(key, []), *([self._kept[key]] if key in self._kept else [])]

    def _forks(self, logs: Sequence[MemoryLog]) -> list[MemoryLog]:
        """The living ones, the oldest first; where one was deleted, its own in its place."""
        forks: list[MemoryLog] = []
        for log in logs:
            below: list[MemoryLog] = []
            for fork in log.forks:
                key = fork.fold.head.key
                if self._kept.get(key) is fork:
                    below.append(fork)
                elif fork in self._deleted.get(key, []):
                    below += self._forks([fork])
            forks += sorted(below, key=lambda fork: (fork.fold.head.created_us, fork.row))
        return forks

    def _descent(self, key: Key) -> list[Key]:
        """The key, and those of all forks of what has it, of their forks, and so on."""
        descent = [key]
        for each in descent:  # grows as it is walked
            forks = [fork.fold.head.key for fork in self._forks(self._ends(each))]
            descent += [of for of in dict.fromkeys(forks) if of not in descent]
        return descent

    def _head(self, key: Key) -> Head:
        return self._living(key).fold.head

    def _set_head(self, head: Head) -> None:
        kept = self._kept[head.key]
        kept.fold = msgspec.structs.replace(kept.fold, head=head)


def key_hash(key: Key) -> bytes:
    return sha256(canonical(key)).digest()


class MemoryLog:
    """A session's fold and own records. What is below its floor is read from its parent's log."""

    __slots__ = (
        "base",
        "blobs",
        "cold",
        "fold",
        "forks",
        "hot",
        "ids",
        "parent",
        "pins",
        "processed",
        "records",
        "row",
    )

    def __init__(self, row: int, fold: Fold, base: Base | None, parent: MemoryLog | None) -> None:
        self.row, self.fold, self.base, self.parent = row, fold, base, parent
        self.records: list[Recorded] = []
        self.ids: dict[str, int] = {}  # the seq of each id
        self.processed: dict[int, Event] = {}  # by seq of the input: the event that processed it
        self.blobs: dict[str, tuple[Blob, list[bytes]]] = {}  # by hash: what it is, and its chunks
        self.pins: dict[int, Fold] = {}
        self.cold = 0  # up to here the feed no longer has its events
        self.hot: frozenset[int] = frozenset()  # but these, which were pending
        self.forks: list[MemoryLog] = []  # logs that begin on a state of this one, living ones

    @property
    def floor(self) -> int:
        return self.fold.head.floor

    @property
    def first(self) -> Recorded:
        return self.records[0]

    def add(self, rec: Recorded) -> None:
        rec = whole(rec)  # what is adopted comes undecoded
        event = rec.event
        self.records.append(rec)
        self.ids[event.id] = event.seq
        self.processed.update(dict.fromkeys(processed_by(event.type, event.data), event))

    def has(self, seq: int) -> bool:
        return 1 <= seq <= self.fold.head.version

    def is_hot(self, seq: int) -> bool:
        """True if the feed has it."""
        return seq > self.cold or seq in self.hot

    def is_pending(self, seq: int) -> bool:
        """True if it is an own input that no later event has processed."""
        own = self.floor < seq and self.has(seq)
        return own and seq not in self.processed and self.own(seq).event.processed is not None

    def own(self, seq: int) -> Recorded:
        return self.records[seq - self.floor - 1]

    def event(self, seq: int) -> Event:
        """An event of this history. What the parent had pending, the fork itself has ended."""
        if seq <= self.floor:
            if self.parent is None:
                return removed_event(seq)
            event = self.parent.event(seq)
            if event.processed is None or 0 < event.processed <= self.floor:
                return event
            began = self.first.event
            return msgspec.structs.replace(event, processed=began.seq, processed_us=began.at_us)
        event, by = self.own(seq).event, self.processed.get(seq)
        if by is None:
            return event
        return msgspec.structs.replace(event, processed=by.seq, processed_us=by.at_us)

    def sized(self, seq: int) -> tuple[Event, int]:
        """The event, and the bytes of its encoded body."""
        log: MemoryLog | None = self
        while log is not None and seq <= log.floor:
            log = log.parent
        return self.event(seq), 0 if log is None else len(log.own(seq).raw)

    def type(self, seq: int) -> str:
        return self.event(seq).type if seq <= self.floor else self.own(seq).event.type

    def fold_at(self, seq: int) -> Fold:
        """The fold as it was after this event."""
        if seq <= self.floor:
            assert self.parent is not None
            return self.parent.fold_at(seq)
        fold = self.start()
        for event in self.history(self.floor + 1, seq):
            fold = replay(fold, event)
        return fold

    def start(self) -> Fold:
        """Return the fold before its first own event."""
        head, base = self.fold.head, self.base
        if base is None:
            return Fold(blank(head.key, head.uid, head.created_us))
        begun = based(head.key, head.uid, head.created_us, base.floor, base.link)
        return Fold(begun, base.fields, base.versions)

    def history(self, first: int, last: int) -> Iterator[Event]:
        return (self.event(seq) for seq in range(first, last + 1))


# --- leases --------------------------------------------------------------------------------------


class Leasing(MemoryTables):
    """Implements `limpet.store.leases.Leases` and `limpet.store.overview.Overview`."""

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
        leases = []
        for *_, key in due[:limit]:
            before = self._head(key)
            head = taken(before, worker, now_us, until_us)
            leases.append(self._lease(head, before, lease_seconds, now_us))
        return tuple(leases)

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
        head = self._head(lease.key)
        given = given_back(head, lease, now_us, retry_us)
        after = given or withdrawn(head, lease, now_us)
        if after is not None:
            self._set_head(after)
        return given is not None

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        now_us = self._clock()
        until_us = now_us + span_us(lease_seconds)
        try:
            head = acquired(self._head(key), worker, now_us, until_us)
        except SessionError:
            self._measure_again(now_us)
            head = acquired(self._head(key), worker, now_us, until_us)
        return self._lease(head, self._head(key), lease_seconds, now_us, lock=True)

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        self._check_open()
        now_us = self._clock()
        leased = sorted(
            (at_us, kept.row, head.key)
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, None)
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
        self._check_open()
        requests = sorted(
            ((request.label, kept.row), AskedBy(head.key, request))
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, query.app)
            and is_asked(query, head)
            and departure(head.facts) is None
            for request in open_in(head.facts)
            if query.kind in (None, request.kind)
        )
        page = [each for each in requests if after is None or each[0] > after]
        more = page[limit - 1][0] if len(page) > limit else None
        return tuple([asked for _, asked in page[:limit]]), more

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        self._check_open()
        now_us = self._clock()
        heads = [kept.fold.head for kept in self._kept.values()]
        heads = [head for head in heads if _in_app(head.key, app) and not departure(head.facts)]
        counted: Counter[tuple[Phase, str, Readiness, bool]] = Counter()
        for head in heads[:limit]:
            stop, ready = run_in(head.facts).get("stop", ""), readiness(head, now_us)
            counted[head.phase, stop, ready, head.pending > 0] += 1
        return tuple([Tally(*kind, sessions=count) for kind, count in counted.items()])

    def _lease(
        self, head: Head, before: Head, lease_seconds: float, now_us: int, *, lock: bool = False
    ) -> Lease:
        self._set_head(head)
        return lease_of(head, lease_seconds, now_us, lock=lock, before=before)

    def _renew(self, lease: Lease, lease_seconds: float | None) -> Lease | LimpetError:
        now_us = self._clock()
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            self._set_head(renewed(self._head(lease.key), lease, now_us, until_us))
        except LimpetError as error:
            return error
        return lasting(lease, until_us, seconds)

    def _measure_again(self, now_us: int) -> None:
        for kept in self._kept.values():
            if is_ahead(kept.fold.head, now_us):
                self._set_head(measured_again(kept.fold.head, now_us))


def _in_app(key: Key, app: str | None) -> bool:
    return not is_reserved(key.app) if app is None else key.app == app
