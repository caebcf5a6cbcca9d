"""Sessions and shared names as a journal has them: what is not in memory is read from its place.

Used inline on the event loop and by the writer, always under the store's lock. An event that
cannot be read never makes its session unreadable: it is returned with `damage` set.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET, structs

from limpet.errors import SessionCorrupt
from limpet.model import (
    SALT_BYTES,
    Base,
    Event,
    Fold,
    Head,
    Recorded,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    decode_body,
    genesis,
    is_input,
)
from limpet.model.chain import body_digest, header_digest
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX, Cache, CachedScope, CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.bodies import (
    ScopeNameReader,
    ScopeRow,
    base_in,
    checked,
    replay_events,
    snapshot_in,
    start_fold,
    unreadable_scope,
)
from limpet.store.coding.codec import SEALED, Codec, Damaged
from limpet.store.coding.seal import Awaited, scope_owner
from limpet.store.files.journal import JournalFiles
from limpet.store.files.lines import (
    AnyLine,
    BaseLine,
    EventLine,
    NameLine,
    SnapshotLine,
    decode_any,
    decode_event,
)
from limpet.store.memory.tables import MemoryLog, MemoryName
from limpet.store.pages import bare
from limpet.store.protocol import ChainedEvent, Place
from limpet.store.scopes import Kept, UnreadScope
from limpet.store.sqlite.rows import lost_event

_RUNGS: Final = 8  # snapshots that are tried before the whole log is read
_UNREAD: Final = (Damaged, msgspec.MsgspecError, AttributeError, TypeError, ValueError)
_TAILS_MAX: Final = 256
MISSING: Final = 0  # the place of an event that is not there


class Reader:
    """The things that the logs of a store share: the journal, the codec, and what is remembered."""

    def __init__(self, journal: JournalFiles, codec: Codec) -> None:
        self.journal, self.codec, self.cache = journal, codec, Cache()
        self.ids: dict[int, dict[str, int]] = {}  # by row: the seq of each id
        self.tails: dict[int, tuple[Event, ...]] = {}  # by row: the last events that were read
        self.link: tuple[int, int, bytes] = (0, 0, b"")  # row and seq of the last line, its link

    def keep_ids(self, row: int) -> dict[str, int]:
        """Remember the ids of a session from now on: the caller puts them in."""
        if len(self.ids) >= 1_024:
            self.ids.clear()
        ids = self.ids[row] = {}
        return ids

    def line(self, place: int) -> AnyLine:
        """The line at a place. Raises Damaged."""
        try:
            line: AnyLine = decode_any(self.journal.line(place))
        except msgspec.MsgspecError as error:
            raise Damaged(f"cannot be read: {error}") from error
        return line


class JournaledLog(MemoryLog):
    """A session whose own events are in the journal: here are their places."""

    __slots__ = (
        "base_place",
        "delta_bytes",
        "lost",
        "mac",
        "names",
        "places",
        "reader",
        "snapshot_bytes",
        "snapshots",
    )

    def __init__(self, row: int, head: Head, reader: Reader) -> None:
        self.reader = reader
        super().__init__(row, head)

    def _begin(self) -> None:
        self.places = array("Q")  # of each own event
        self.base_place = 0  # of the state that it begins on
        self.snapshots = array("Q")  # seq and place of each, ascending
        self.snapshot_bytes = self.delta_bytes = 0
        self.mac: bytes | None = None
        self.lost = False  # lines of it cannot be read, and nobody has decided what now
        self.names: bytes | None = None  # how its lines name it

    # --- what is remembered --------------------------------------------------------------------

    @property
    def cached(self) -> CachedSession | None:
        live = self.reader.cache.peek(self.head.key)
        return live if live is not None and live.sid == self.row else None

    @property
    def fold(self) -> Fold:
        live = self.cached
        if live is None:
            return self._load()
        if live.fold.head is not self.head:
            live.fold = structs.replace(live.fold, head=self.head)
        return live.fold

    def keep(self, fold: Fold) -> None:
        live = self.cached
        if live is None:
            sizes = (self.snapshot_bytes, self.delta_bytes, 0)
            live = CachedSession(self.row, fold, *sizes)
        live.fold = fold
        self.reader.cache.keep(fold.head.key, live)

    def let_go(self, *, state: bool = True) -> None:
        self.reader.cache.forget(self.head.key)
        self.reader.ids.pop(self.row, None)
        self.reader.tails.pop(self.row, None)
        self.names = None

    def add(self, rec: Recorded) -> None:
        live, ids, seq = self.cached, self.reader.ids.get(self.row), rec.event.seq
        if live is not None:
            live.add(rec)
        if ids is None and seq == self.floor + 1:
            ids = self.reader.keep_ids(self.row)
        if ids is not None:
            ids[rec.event.id] = seq
        self.delta_bytes += len(rec.draft.raw) + EVENT_OVERHEAD_BYTES

    def place_event(self, seq: int, place: int) -> bool:
        """Note where an event is. What is left out between is missing. False if it is old."""
        between = seq - self.floor - 1 - len(self.places)
        if between < 0:
            return False
        if between:
            self.places.extend([MISSING] * between)
        self.places.append(place)
        return True

    @property
    def state_bytes(self) -> int:
        return self.snapshot_bytes + self.delta_bytes

    def newest(self, tail: int, since_us: int | None = None) -> tuple[Event, ...]:
        live, tails, head = self.cached, self.reader.tails, self.head
        count = min(tail, head.version)
        for kept in (() if live is None else tuple(live.tail), tails.get(self.row, ())):
            if kept and kept[-1].link == head.link and count <= len(kept):
                return kept[len(kept) - count :]
        sized = self.newest_sized(tail, since_us)
        events, small = bare(sized), sum([size for _, size in sized]) <= TAIL_MAX * TAIL_BYTES_MAX
        if since_us is None and small and not any([event.damage for event in events]):
            if len(tails) >= _TAILS_MAX:
                tails.clear()
            tails[self.row] = events  # the last ones are asked for again and again
        return events

    # --- folds ---------------------------------------------------------------------------------

    def _load(self) -> Fold:
        fold, size = self.loaded()
        if self.head.deleted_us is None:
            live = CachedSession(self.row, fold, self.snapshot_bytes, size, 0)
            self.reader.cache.keep(self.head.key, live)
        return fold

    def loaded(self) -> tuple[Fold, int]:
        """The fold as the journal has it, and the bytes that were read since a snapshot."""
        head, codec = self.head, self.reader.codec
        if head.deleted_us is not None:
            return Fold(head), 0
        fold, size = self._fold_upto(head.version)
        damaged = fold.damaged
        if codec.checks and fold.head.link != head.link and head.version not in damaged:
            damaged = (*damaged, head.version)  # the head knows another last event
        if head.version not in damaged and not self.holds:
            damaged = (*damaged, head.version)  # somebody without the keys put it there
        return Fold(head, fold.fields, fold.versions, damaged, fold.texts), size

    @property
    def holds(self) -> bool:
        """True if the keys of the session vouch for where its head stands."""
        return self.reader.codec.head_holds(self.head, self.mac)

    def own_fold(self, seq: int) -> Fold:
        return self._fold_upto(seq)[0]

    def rung(self, seq: int) -> Fold | None:
        log = self._of(seq)
        return None if log is None else log.own_rung(seq)  # type: ignore[attr-defined]  # one of ours

    def _fold_upto(self, seq: int) -> tuple[Fold, int]:
        """The fold after the own event `seq`, and the bytes that were read since a snapshot."""
        fold = self.own_rung(seq)
        size, events = 0, list[Event]()
        for number in range(fold.head.version + 1, seq + 1):
            with suppress(Damaged):  # not there at all: a gap
                event, bytes_ = self._own(number)
                events.append(self.processed_by(event))
                size += bytes_ + EVENT_OVERHEAD_BYTES
        if not events and fold.head.version == seq:
            return fold, 0
        return replay_events(fold, events, seq), size

    def own_rung(self, seq: int) -> Fold:
        """The fold at the newest snapshot up to there, or before the first own event."""
        reader, head = self.reader, self.head
        for tried, (at, place) in enumerate(self.snapshots_upto(seq)):
            if tried == _RUNGS:
                break
            with suppress(*_UNREAD):
                line = reader.line(place)
                if isinstance(line, SnapshotLine) and line.seq == at:
                    packed = (line.flags, line.stored, line.sum)
                    snapshot = snapshot_in(reader.codec, head, at, self.link_at(at), packed)
                    if snapshot is not None:
                        return snapshot[0]
        base = None
        if head.floor:
            with suppress(Damaged):
                base = self.read_base()
        return start_fold(head, base)

    def snapshots_upto(self, seq: int) -> Iterator[tuple[int, int]]:
        """seq and place of snapshots, the newest first."""
        kept = self.snapshots
        for at in range(len(kept) - 2, -1, -2):
            if kept[at] <= seq:
                yield kept[at], kept[at + 1]

    def note_snapshot(self, seq: int, place: int, size: int) -> None:
        if not len(self.snapshots) or self.snapshots[-2] < seq:
            self.snapshots.extend((seq, place))
        self.snapshot_bytes, self.delta_bytes = size, 0

    @property
    def base(self) -> Base | None:
        if not self.floor:
            return None
        try:
            return self.read_base()
        except Damaged as error:
            raise SessionCorrupt(self.head.key, str(error)) from error

    @base.setter
    def base(self, base: Base | None) -> None:
        pass  # it is in the journal

    def read_base(self) -> Base:
        """The state that the log begins on. Raises Damaged."""
        line = self.reader.line(self.base_place) if self.base_place else None
        if not isinstance(line, BaseLine):
            raise Damaged("the state that its log begins on is not there")
        packed = (line.flags, line.stored, line.sum)
        return base_in(self.reader.codec, self.head, packed, self._own(self.floor + 1)[0])

    # --- own events ----------------------------------------------------------------------------

    def own_sized(self, seq: int) -> tuple[Event, int]:
        try:
            return self._own(seq)
        except Damaged as error:
            return lost_event(seq, str(error)), 0

    def own_type(self, seq: int) -> str:
        try:
            return self.event_line(seq).type
        except Damaged:
            return ""

    def own_link(self, seq: int) -> bytes:
        if seq == self.head.version:
            return self.head.link
        try:
            return bytes.fromhex(self.event_line(seq).link)
        except (Damaged, ValueError):
            return b""

    def own_record(self, seq: int) -> ChainedEvent:
        try:
            return self.record(seq)[0]
        except Damaged as error:
            return ChainedEvent(lost_event(seq, str(error)), None, b"", b"")

    def seq_of(self, id: str) -> int | None:
        seqs = self.reader.ids.get(self.row)
        if seqs is None:
            seqs = {}
            for seq in range(self.floor + 1, self.head.version + 1):
                with suppress(Damaged):
                    seqs[self.event_line(seq).id] = seq
            self.reader.keep_ids(self.row).update(seqs)
        return seqs.get(id)

    def event_line(self, seq: int) -> EventLine:
        """The line of an own event. Raises Damaged."""
        at = seq - self.floor - 1
        place = self.places[at] if 0 <= at < len(self.places) else MISSING
        if place == MISSING:
            raise Damaged("is missing from the log")
        try:
            line = decode_event(self.reader.journal.line(place))
        except msgspec.MsgspecError as error:
            raise Damaged(f"cannot be read: {error}") from error
        if line.seq != seq or line.row != self.row:
            raise Damaged("is another event than it was")
        return line

    def record(self, seq: int) -> tuple[ChainedEvent, bool]:
        """An own event as it was recorded, and whether it was adopted. Raises Damaged."""
        line = self.event_line(seq)
        event, _, raw, salt = self._opened(line)
        digest = bytes.fromhex(line.digest)
        if not digest and raw is not None:
            digest = body_digest(salt, raw)
        return ChainedEvent(self.processed_by(event), raw, salt, digest), line.adopted

    def processed_by(self, event: Event) -> Event:
        """An own event with what processed it."""
        by = self.processed.get(event.seq)
        if by is None or event.processed is None:
            return event
        return structs.replace(event, processed=by[0], processed_us=by[1])

    def _own(self, seq: int) -> tuple[Event, int]:
        line = self.event_line(seq)
        event, size, raw, salt = self._opened(line)
        reader = self.reader
        if reader.codec.checks:
            before = reader.link
            previous: bytes | None = before[2]
            if before[:2] != (self.row, seq - 1):
                previous = self._link_before(seq)
            reader.link = (self.row, seq, event.link)
            event = checked(event, salt, raw, previous)
        return event, size

    def _link_before(self, seq: int) -> bytes | None:
        if seq > self.floor + 1:
            return self.own_link(seq - 1) or None
        if not self.floor:
            return genesis(self.head.uid)
        with suppress(*_UNREAD):
            line = self.reader.line(self.base_place) if self.base_place else None
            if isinstance(line, BaseLine):
                place = bodies.base_place(self.head.uid, self.floor)
                packed = (line.flags, line.stored, line.sum)
                raw = self.reader.codec.unpack(*packed, lambda: place, bound=True)
                return bodies.base_from(raw).link
        return None

    def _opened(self, line: EventLine) -> tuple[Event, int, bytes | None, bytes]:
        """The event of a line, the size of its body, the body if it can be read, and the salt."""
        data = damage = raw = None
        ops: tuple[Any, ...] = ()
        salt, size = b"", 0
        try:
            link, salt = bytes.fromhex(line.link), bytes.fromhex(line.salt)
        except ValueError:
            link, damage = b"", "has a link that is not one"
        if not line.removed and damage is None:
            try:
                raw, salt = self._body(line, link, salt)
                size = len(raw)
                content = decode_body(raw)
                data, ops = content.data, content.ops
            except _UNREAD as error:
                damage = str(error) if isinstance(error, Damaged) else repr(error)
                raw = None
        names = (line.cause, line.invocation_id, line.correlation_id, line.wake_id)
        event = Event(
            line.seq,
            line.id,
            line.type,
            line.actor,
            line.time,
            data,
            ops,
            *names,
            0 if line.input else None,
            None,
            link,
            damage=damage,
            removed=line.removed and damage is None,
        )
        return event, size, raw, salt

    def _body(self, line: EventLine, link: bytes, salt: bytes) -> tuple[bytes, bytes]:
        """The encoded body of an event and its salt. Raises Damaged."""
        codec, uid = self.reader.codec, self.head.uid
        if line.body is not UNSET and not codec.marks:
            return bytes(line.body), salt
        stored = line.stored

        def place() -> Place:
            if not codec.marks:
                return Place("event", uid, line.id, line.type)
            names = (line.id, line.type, line.actor, line.cause, line.invocation_id)
            marked = line.input and not is_input(line.type)
            header = header_digest((*names, line.correlation_id, line.wake_id), marked=marked)
            bound = (line.seq, line.time, header, link)
            return codec.event_place(uid, line.id, line.type, *bound)

        raw = codec.unpack(line.flags, stored, crc32(stored), place)
        if line.flags & SEALED:
            salt, raw = raw[:SALT_BYTES], raw[SALT_BYTES:]
            raw = raw.partition(b"\n")[0]  # the changes follow it
        return raw, salt


class JournaledName(MemoryName):
    """A shared name whose versions are in the journal: here are their places."""

    __slots__ = ("_key", "_reader", "places")

    def __init__(self, key: ScopeKey, reader: Reader) -> None:
        super().__init__()
        self._key, self._reader = key, reader
        self.places = array("Q")

    @property
    def last(self) -> int:
        return len(self.places)

    def add(self, write: ScopeWrite, row: int, uid: str, at_us: int) -> None:
        """It is in the journal: `place_version` says where."""

    def place_version(self, version: int, place: int, size: int) -> None:
        between = version - 1 - len(self.places)
        if between >= 0:
            self.places.extend([MISSING] * between)
            self.places.append(place)
            self.size = size

    def newest(self) -> Kept:
        live = self._reader.cache.scope(self._key)
        if live is not None:
            return live.value
        if self._reader.codec.seals:
            self._reader.codec.sealer.require([scope_owner(*self._key[:2])])
        version = self.last

        def read() -> ScopeValue:
            try:
                return self._upto(version).value
            except Awaited as error:  # its keys were destroyed since
                return unreadable_scope(None, version, error)

        return UnreadScope(version, read)

    def value(self, version: int) -> ScopeValue:
        return self.cached.value if version == self.last else self._upto(version).value

    @property
    def cached(self) -> CachedScope:
        """The newest version, with what is needed to write the next one."""
        live = self._reader.cache.scope(self._key)
        if live is None:
            live = self._upto(self.last)
            self._reader.cache.keep_scope(self._key, live)
        return live

    def made_by(self, version: int) -> tuple[int, str, int, int] | None:
        try:
            line = self.line(version)
        except Damaged:
            return None
        return line.row, line.uid, line.seq, line.time

    def line(self, version: int) -> NameLine:
        """The line of a version. Raises Damaged."""
        place = self.places[version - 1] if 0 < version <= len(self.places) else MISSING
        if place == MISSING:
            raise Damaged("is missing from the log")
        line = self._reader.line(place)
        if not isinstance(line, NameLine) or line.version != version:
            raise Damaged("is another version than it was")
        return line

    def _upto(self, version: int) -> CachedScope:
        reading = ScopeNameReader(self._key, self._reader.codec)
        try:
            first = self.line(version).base
            lines = [self.line(each) for each in range(first, version + 1)]
            for line in lines:
                reading.add(scope_row(line))
        except Damaged as error:
            return CachedScope(unreadable_scope(None, version, error), version, -1, 0)
        assert reading.value is not None, "a base is no later than what is based on it"
        return CachedScope(reading.value, reading.base, reading.since_base, 0)


def scope_row(line: NameLine) -> ScopeRow:
    """A version of a name, as the SQL stores have it in a row."""
    made = (line.flags, line.stored, line.sum, line.uid, line.seq)
    return ScopeRow(line.version, line.base, line.form, *made)
