"""Reading sessions of a log store: events from their places, folds from snapshots, shared names.

Used inline on the event loop and by the writer, always under the store's lock. An event that
cannot be read never makes its session unreadable: it is returned with `damage` set.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec

from limpet.errors import SessionArchived, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import (
    NO_CHECKPOINT,
    SALT_BYTES,
    Base,
    Event,
    Fold,
    Head,
    Key,
    LastCheckpoint,
    ScopeKey,
    ScopeValue,
    checkpoints_of,
    decode_body,
    genesis,
    is_input,
    last_checkpoint,
    removed_event,
)
from limpet.model.chain import body_digest, header_digest
from limpet.model.facts.phases import is_stub
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.cache import Cache, CachedScope, CachedSession
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
from limpet.store.oldfiles.index import FilesIndex, IndexedName, IndexedSession, Places
from limpet.store.oldfiles.lines import (
    AnyLine,
    BaseLine,
    EventLine,
    NameLine,
    SnapshotLine,
    decode_any,
    decode_event,
)
from limpet.store.oldfiles.log import RootLog, is_frame
from limpet.store.protocol import ChainedEvent, Place
from limpet.store.scopes import Kept, Scopes, Sizes, UnreadScope
from limpet.store.sqlite.rows import lost_event

_RUNGS: Final = 8  # snapshots that are tried before the whole log is read
_UNREAD: Final = (Damaged, msgspec.MsgspecError, AttributeError, TypeError, ValueError)


class FilesReader:
    """Sessions, events and names, as the files have them."""

    def __init__(self, log: RootLog, index: FilesIndex, codec: Codec, secret: bytes) -> None:
        self.log, self.index, self.codec, self.cache = log, index, codec, Cache()
        self._secret = secret
        self._ids: dict[int, dict[str, int]] = {}  # by row: the seq of each id
        self._link: tuple[int, int, bytes] = (0, 0, b"")  # row and seq of the last line, its link

    # --- sessions ------------------------------------------------------------------------------

    def find(self, key: Key, *, reuse: bool = False) -> IndexedSession | None:
        """The living session, None if there never was one; `reuse`: also if it was deleted."""
        entry = self.index.living.get(key)
        if entry is not None:
            return entry
        if not reuse and key in self.index.deleted:
            raise SessionDeleted(key)
        if self.index.erased and self.key_hash(key) in self.index.erased:
            raise SessionErased(key)
        return None

    def living(self, key: Key) -> IndexedSession:
        entry = self.find(key)
        if entry is None:
            raise SessionNotFound(key)
        return entry

    def present(self, key: Key) -> IndexedSession:
        """The same, of a session whose log is here. Raises SessionArchived."""
        entry = self.living(key)
        if is_stub(entry.head.facts):
            raise SessionArchived(key)
        return entry

    def key_hash(self, key: Key | tuple[str, str, str]) -> bytes:
        """The hash that is kept of an erased key, by which it is recognised."""
        return bodies.key_hash(self._secret, key)

    def user_hash(self, app: str, user: str) -> bytes:
        return self.key_hash(("user", app, user))

    def checkpoint(self, key: Key) -> LastCheckpoint:
        """The newest checkpoint of a session, from the head of their log."""
        log = self.index.living.get(checkpoints_of(key))
        return NO_CHECKPOINT if log is None else last_checkpoint(log.head.facts)

    def holds(self, entry: IndexedSession) -> bool:
        """True if the keys of the session vouch for where its head stands."""
        return self.codec.head_holds(entry.head, entry.mac)

    # --- folds ---------------------------------------------------------------------------------

    def cached(self, entry: IndexedSession) -> CachedSession | None:
        live = self.cache.peek(entry.key)
        return live if live is not None and live.sid == entry.row else None

    def fold(self, entry: IndexedSession) -> Fold:
        """The session as it is now: from memory, or from its log."""
        live = self.cached(entry)
        if live is not None:
            return live.fold
        head = entry.head
        fold, size = self.fold_upto(entry, head, head.version)
        damaged = fold.damaged
        if self.codec.checks and fold.head.link != head.link and head.version not in damaged:
            damaged = (*damaged, head.version)  # the head knows another last event
        if head.version not in damaged and not self.holds(entry):
            damaged = (*damaged, head.version)  # somebody without the keys put it there
        fold = Fold(head, fold.fields, fold.versions, damaged, fold.texts)
        self.cache.keep(entry.key, CachedSession(entry.row, fold, entry.snapshot_bytes, size, 0))
        return fold

    def fold_upto(self, entry: IndexedSession, head: Head, seq: int) -> tuple[Fold, int]:
        """The fold after the own event `seq`, and the bytes that were read since a snapshot."""
        fold = self.rung(entry, head, seq)
        size = 0
        events: list[Event] = []
        for number in range(fold.head.version + 1, seq + 1):
            with suppress(Damaged):  # not there at all: a gap
                event, bytes_ = self._own(entry, number)
                events.append(event)
                size += bytes_ + EVENT_OVERHEAD_BYTES
        if not events and fold.head.version == seq:
            return fold, 0
        return replay_events(fold, events, seq), size

    def rung(self, entry: IndexedSession, head: Head, seq: int) -> Fold:
        """The fold at the newest snapshot up to there, or before the first own event."""
        for tried, (at, place) in enumerate(entry.snapshots_upto(seq)):
            if tried == _RUNGS:
                break
            with suppress(*_UNREAD):
                line = self.single(place)
                if isinstance(line, SnapshotLine) and line.seq == at:
                    packed = (line.flags, line.stored, line.sum)
                    snapshot = snapshot_in(self.codec, head, at, self.link_at(entry, at), packed)
                    if snapshot is not None:
                        return snapshot[0]
        base = None
        if head.floor:
            with suppress(Damaged):
                base = self.base(entry)
        return start_fold(head, base)

    def base(self, entry: IndexedSession) -> Base:
        """The state that a log begins on. Raises Damaged."""
        if not entry.base:
            raise Damaged("the state that its log begins on is not there")
        line = self.single(entry.base)
        if not isinstance(line, BaseLine):
            raise Damaged("the state that its log begins on is not there")
        packed = (line.flags, line.stored, line.sum)
        return base_in(self.codec, entry.head, packed, self._own(entry, entry.first)[0])

    def fold_at(self, entry: IndexedSession, seq: int) -> Fold | None:
        """The fold after an event of this history; None if it was removed with a parent."""
        of: IndexedSession | None = entry
        while of is not None and seq <= of.floor:
            of = of.parent
        return None if of is None else self.fold_upto(of, of.head, seq)[0]

    # --- events --------------------------------------------------------------------------------

    def event(self, entry: IndexedSession, seq: int) -> Event:
        return self.sized(entry, seq)[0]

    def sized(self, entry: IndexedSession, seq: int) -> tuple[Event, int]:
        """An event of this history, and the bytes of its encoded body. What the parent had pending,
        the fork itself has ended."""
        if seq > entry.floor:
            try:
                return self._own(entry, seq)
            except Damaged as error:
                return lost_event(seq, str(error)), 0
        if entry.parent is None:
            return removed_event(seq), 0
        event, size = self.sized(entry.parent, seq)
        if event.processed is None or 0 < event.processed <= entry.floor:
            return event, size
        began = self.event(entry, entry.first)
        return msgspec.structs.replace(event, processed=began.seq, processed_us=began.at_us), size

    def type_of(self, entry: IndexedSession, seq: int) -> str:
        of: IndexedSession | None = entry
        while of is not None and seq <= of.floor:
            of = of.parent
        if of is None:
            return removed_event(seq).type
        try:
            return self.event_line(of, seq).type
        except Damaged:
            return ""

    def event_line(self, entry: IndexedSession, seq: int) -> EventLine:
        """The line of an own event. Raises Damaged."""
        text = self.text(entry, seq)
        try:
            line = decode_event(text)
        except msgspec.MsgspecError as error:
            raise Damaged(f"cannot be read: {error}") from error
        if line.seq != seq or line.row != entry.row:
            raise Damaged("is another event than the index says")
        return line

    def record(self, entry: IndexedSession, seq: int) -> tuple[ChainedEvent, bool]:
        """An own event as it was recorded, and whether it was adopted. Raises Damaged."""
        line = self.event_line(entry, seq)
        event, _, raw, salt = self._opened(entry, line)
        digest = bytes.fromhex(line.digest)
        if not digest and raw is not None:
            digest = body_digest(salt, raw)
        return ChainedEvent(event, raw, salt, digest), line.adopted

    def link_at(self, entry: IndexedSession, seq: int) -> bytes | None:
        """The link of an event of this history."""
        of: IndexedSession | None = entry
        while of is not None and seq <= of.floor:
            of = of.parent
        if of is None:
            return None
        live = self.cached(of)
        if live is not None and live.fold.head.version == seq:
            return live.fold.head.link
        try:
            return bytes.fromhex(self.event_line(of, seq).link)
        except (Damaged, ValueError):
            return None

    def seq_of(self, entry: IndexedSession, id: str) -> int | None:
        """The seq that the session recorded an id under."""
        return self.ids(entry).get(id)

    def ids(self, entry: IndexedSession) -> dict[str, int]:
        seqs = self._ids.get(entry.row)
        if seqs is None:
            seqs = {}
            for seq in range(entry.first, entry.last + 1):
                with suppress(Damaged):
                    seqs[self.event_line(entry, seq).id] = seq
            self.keep_ids(entry.row).update(seqs)
        return seqs

    def keep_ids(self, row: int) -> dict[str, int]:
        """Remember the ids of a session from now on: the caller puts them in."""
        if len(self._ids) >= 1_024:
            self._ids.clear()
        ids = self._ids[row] = {}
        return ids

    def known_ids(self, row: int) -> dict[str, int] | None:
        return self._ids.get(row)

    def forget(self, entry: IndexedSession) -> None:
        """Drop everything that is cached of a session."""
        self.cache.forget(entry.key)
        self._ids.pop(entry.row, None)

    def _own(self, entry: IndexedSession, seq: int) -> tuple[Event, int]:
        line = self.event_line(entry, seq)
        event, size, raw, salt = self._opened(entry, line)
        if self.codec.checks:
            before = self._link
            previous: bytes | None = before[2]
            if before[:2] != (entry.row, seq - 1):
                previous = self._link_before(entry, seq)
            self._link = (entry.row, seq, event.link)
            event = checked(event, salt, raw, previous)
        return event, size

    def _link_before(self, entry: IndexedSession, seq: int) -> bytes | None:
        if seq > entry.first:
            try:
                return bytes.fromhex(self.event_line(entry, seq - 1).link)
            except (Damaged, ValueError):
                return None
        if not entry.floor:
            return genesis(entry.head.uid)
        try:
            line = self.single(entry.base) if entry.base else None
            if isinstance(line, BaseLine):
                place = bodies.base_place(entry.head.uid, entry.floor)
                packed = (line.flags, line.stored, line.sum)
                raw = self.codec.unpack(*packed, lambda: place, bound=True)
                return bodies.base_from(raw).link
        except _UNREAD:
            pass
        return None

    def _opened(
        self, entry: IndexedSession, line: EventLine
    ) -> tuple[Event, int, bytes | None, bytes]:
        """The event of a line, the size of its body, the body if it can be read, and the salt."""
        data = damage = raw = None
        ops: tuple[object, ...] = ()
        salt, size = b"", 0
        processed = processed_us = None
        try:
            link, salt = bytes.fromhex(line.link), bytes.fromhex(line.salt)
        except ValueError:
            link, damage = b"", "has a link that is not one"
        if line.input:
            processed, processed_us = self._processing(entry, line)
        if not line.removed and damage is None:
            try:
                raw, salt = self.body(entry, line, link, salt)
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
            ops,  # type: ignore[arg-type]  # of a body
            *names,
            processed,
            processed_us,
            link,
            damage=damage,
            removed=line.removed and damage is None,
        )
        return event, size, raw, salt

    def body(
        self, entry: IndexedSession, line: EventLine, link: bytes, salt: bytes
    ) -> tuple[bytes, bytes]:
        """The encoded body of an event and its salt. Raises Damaged."""
        if line.body is not msgspec.UNSET and not self.codec.marks:
            return bytes(line.body), salt
        stored, uid = line.stored, entry.head.uid

        def place() -> Place:
            if not self.codec.marks:
                return Place("event", uid, line.id, line.type)
            names = (line.id, line.type, line.actor, line.cause, line.invocation_id)
            marked = line.input and not is_input(line.type)
            header = header_digest((*names, line.correlation_id, line.wake_id), marked=marked)
            bound = (line.seq, line.time, header, link)
            return self.codec.event_place(uid, line.id, line.type, *bound)

        raw = self.codec.unpack(line.flags, stored, crc32(stored), place)
        if line.flags & SEALED:
            salt, raw = raw[:SALT_BYTES], raw[SALT_BYTES:]
            raw = raw.partition(b"\n")[0]  # the changes follow it
        return raw, salt

    def _processing(self, entry: IndexedSession, line: EventLine) -> tuple[int, int | None]:
        """The seq and the time of what processed an input; 0 if it is pending."""
        if line.done is not None:
            return line.done
        by = entry.processed_by(line.seq)
        if not by:
            return 0, None
        try:
            return by, self.event_line(entry, by).time
        except Damaged:
            return by, None

    def text(self, places: Places, number: int) -> bytes:
        """The line of something numbered. Raises Damaged."""
        file_place = places.find(number)
        if file_place is None:
            raise Damaged("is missing from the log")
        place, at = file_place
        if at < 0:
            return self.log.line(place)
        lines = self.log.frame(place)
        if at >= len(lines):
            raise Damaged("is missing from its frame")
        return lines[at]

    def single(self, place: int) -> AnyLine:
        """The line at a place, or the only one of a frame. Raises Damaged."""
        try:
            text = self.log.frame(place)[0] if is_frame(place) else self.log.line(place)
            line: AnyLine = decode_any(text)
            return line
        except (msgspec.MsgspecError, LookupError) as error:
            raise Damaged(f"cannot be read: {error}") from error

    # --- shared names --------------------------------------------------------------------------

    def name(self, key: ScopeKey) -> IndexedName | None:
        return self.index.names.get(key[:2], {}).get(key[2])

    def scope(self, key: ScopeKey) -> CachedScope | None:
        """The newest version of a name."""
        live = self.cache.scope(key)
        if live is None:
            entry = self.name(key)
            if entry is None:
                return None
            live = self._scope_upto(key, entry, entry.last)
            self.cache.keep_scope(key, live)
        return live

    def scope_at(self, key: ScopeKey, version: int) -> ScopeValue:
        entry = self.name(key)
        assert entry is not None
        return self._scope_upto(key, entry, version).value

    def scopes(self, app: str, user: str) -> Scopes:
        """Every name that this user's sessions see, the values unread."""
        kept: dict[str, Kept] = {}
        for owner in ((app, ""), (app, user)):
            names = self.index.names.get(owner)
            if not names:
                continue
            if self.codec.seals:
                self.codec.sealer.require([scope_owner(*owner)])
            for name, entry in names.items():
                live = self.cache.scope((*owner, name))
                kept[name] = live.value if live is not None else self._unread((*owner, name), entry)
        return Scopes(kept)

    def names(self, app: str, user: str) -> Sizes:
        return {name: each.size for name, each in self.index.names.get((app, user), {}).items()}

    def name_line(self, entry: IndexedName, version: int) -> NameLine:
        """Return the line of a name. Raises Damaged."""
        try:
            line = decode_any(self.text(entry, version))
        except msgspec.MsgspecError as error:
            raise Damaged(f"cannot be read: {error}") from error
        if not isinstance(line, NameLine) or line.version != version:
            raise Damaged("is another version than the index says")
        return line

    def _unread(self, key: ScopeKey, entry: IndexedName) -> UnreadScope:
        version = entry.last

        def read() -> ScopeValue:
            try:
                return self._scope_upto(key, entry, version).value
            except Awaited as error:  # its keys were destroyed since
                return unreadable_scope(None, version, error)

        return UnreadScope(version, read)

    def _scope_upto(self, key: ScopeKey, entry: IndexedName, version: int) -> CachedScope:
        reading = ScopeNameReader(key, self.codec)
        try:
            first = self.name_line(entry, version).base
            lines = [self.name_line(entry, each) for each in range(first, version + 1)]
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
