"""Compaction: the journal is written again without what nobody needs any more.

Every event that retention or erasure has not removed stays, in its order; what goes are `changes`,
superseded leases, marks and snapshots, and what was erased or deleted. Behind them stand leases,
marks, certificates and the folds of sessions, which save reading their logs. The new segment is
written beside the old ones, synced and renamed: from then on it stands for all of them. A process
that dies at any step leaves the old or the new.

It runs on the writer's thread between two batches: when what was written since the last one is
large (and no smaller than what that one has left), or when that is long ago and it is worth it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import UNSET

from limpet.model import ScopeKey
from limpet.store.coding.seal import Awaited
from limpet.store.files.batch import lease_change, snapshot_line
from limpet.store.files.journal import SegmentWriter, place_of, read_line
from limpet.store.files.lines import (
    AnyLine,
    BaseLine,
    BlobLine,
    ChunkLine,
    EventLine,
    FeedLine,
    LostLine,
    MacLine,
    NameLine,
    SnapshotLine,
    TombLine,
)
from limpet.store.files.records import MISSING, JournaledLog
from limpet.store.files.state import DAMAGED, JournaledBlob, JournaledStore
from limpet.store.memory.changes import (
    ColdChange,
    EraseChange,
    MarkChange,
    PinChange,
    RingChange,
)
from limpet.store.memory.tables import MemoryLog
from limpet.store.protocol import Compacted

COMPACT_BYTES_MIN: Final = 2**20  # enough for one that is due by its age
_OLD_SHARE: Final = 4  # of what the last one has left: all of it is written again
RETRY_SECONDS: Final = 60  # after a compaction that failed


class Compaction:
    """Compacts the journal of a store, when it is due or when somebody asks."""

    def __init__(self, store: JournaledStore) -> None:
        self._store = store
        self._began_us, self._failed_us = store.now_us(), 0
        self._counted = self._earlier = 0  # the last segment, and the bytes since the compaction

    def is_due(self) -> bool:
        """True if it is. It is asked at every commit."""
        size, store = self._new_bytes(), self._store
        if size <= min(COMPACT_BYTES_MIN, store.compact_bytes):
            return False
        now_us = store.now_us()
        if now_us < self._failed_us + RETRY_SECONDS * 1_000_000:
            return False
        age = (now_us - (store.compacted_us or self._began_us)) / 1e6
        large = size > store.compact_bytes and size > store.compacted_bytes
        old = age > store.compact_seconds and size > store.compacted_bytes // _OLD_SHARE
        return large or old

    def when_due(self) -> None:
        """Compact if it is due. One that fails is not tried again at every commit."""
        if self.is_due():
            try:
                self.run()
            except BaseException:
                self._failed_us = self._store.now_us()
                raise

    def _new_bytes(self) -> int:
        """The bytes that were written since the last compaction."""
        store, end = self._store, self._store.journal.end
        if self._counted != end.segment:
            first = store.base_segment + (1 if store.compacted_bytes else 0)
            self._earlier = store.segment_bytes(first) - end.offset
            self._counted = end.segment
        return self._earlier + end.offset

    def run(self, *, keep: bool = True) -> Compacted:
        """Compact everything up to here. The caller is the only writer. `keep`: a copy of segments
        in which something cannot be read."""
        store, journal = self._store, self._store.journal
        before = store.segment_bytes(store.base_segment)
        end = journal.end
        journal.roll()
        old = [n for n in journal.segments() if n < journal.end.segment]
        with SegmentWriter(journal, end.segment, store.now_us(), store.endings) as writer:
            moved = _Moved(store, writer)
            for line, place in self._lines(old):
                moved.add(place, line)
            with store.lock:
                standing = list(self._standing())
            for made in standing:
                writer.add(made)
            writer.add(FeedLine(store.feed_end(moved.next)))
            for log in store.logs():
                moved.fold(log)
            writer.finish(end)
        with store.lock:
            if keep:
                self._set_aside(old)
            journal.replace(end.segment)
            moved.settle()  # at once: what is in memory and what is in the files belong together
            store.compacted(end.segment, writer.offset)
            self._counted = 0
            journal.remove([number for number in old if number != end.segment])
        return Compacted(rows_bytes=before, segment_bytes=writer.offset)

    def _lines(self, old: list[int]) -> Iterator[tuple[AnyLine, int]]:
        journal = self._store.journal
        for number in old:
            if number < self._store.base_segment:
                continue
            for at, text, _ in journal.texts(number):
                read = read_line(text)
                if read is not None:
                    yield read[1], place_of(number, at)

    def _set_aside(self, old: list[int]) -> None:
        """Keep a copy of segments in which something cannot be read, before they go."""
        journal, faulty = self._store.journal, {fault.file for fault in self._store.faults}
        for number in old:
            path = journal.path(number)
            if path.name in faulty and path.exists():
                content = journal.disk.read_file(path)
                journal.disk.put_file(path.with_name(f"{path.name}{DAMAGED}"), content)

    def _standing(self) -> Iterator[AnyLine]:
        """The lines that stand beside the events: of sessions, and of the store."""
        store = self._store
        for log in store.logs():
            head, row = log.head, log.row
            names = (head.key.app, head.key.user, head.key.id)
            if head.deleted_us is not None:
                times = (head.created_us, head.updated_us, head.active_us, head.deleted_us)
                link, ending = head.link.hex(), head.ending or "deleted"
                yield TombLine(row, names, head.uid, head.version, link, times, head.floor, ending)
                continue
            if head.fence:
                yield lease_change(row, head)
            yield from [PinChange(row, seq, number) for number, seq in log.pins.items()]
            if log.cold:
                yield ColdChange(row, log.cold, tuple(sorted(log.hot)))
            if log.mac is not None:
                yield MacLine(row, log.mac.hex())
            if store.is_refused(log):
                yield LostLine(row)
        for erasure in store.erasures():
            mark, link = erasure.key_hash.hex(), erasure.link.hex()
            made = (mark, erasure.version, link, erasure.erased_us, erasure.forks_kept)
            yield EraseChange(certificates=(made,))
        for mark_ in store.living_marks():
            yield MarkChange(mark_.space, mark_.name, mark_.value, mark_.until_us)
        if (ring := store.ring_id) is not None:
            yield RingChange(ring)
        if store.unknown:
            yield LostLine()


class _Moved:
    """The lines that were written again, and where each is now."""

    def __init__(self, store: JournaledStore, writer: SegmentWriter) -> None:
        self._store, self._writer = store, writer
        self._logs = {log.row: log for log in store.logs()}
        self._names = dict(store.name_logs())
        self._needed = {log.row: _needed(log, store) for log in store.logs()}
        self._events: dict[int, array[int]] = {row: array("Q") for row in self._logs}
        self._snapshots: dict[int, array[int]] = {}
        self._versions: dict[ScopeKey, array[int]] = {of: array("Q") for of in self._names}
        self._bases: dict[int, int] = {}
        self._chunks: dict[int, int] = {}  # the old place of each that is needed; 0, then the new
        self._blobs: dict[tuple[int, str], int] = {}
        for log in self._logs.values():
            for blob in log.blobs.values() if self._needed[log.row] else ():
                self._chunks.update(dict.fromkeys(blob.chunks, 0))
        for upload in store.uploads():
            self._chunks.update(dict.fromkeys(upload.chunks, 0))
        self._feed = store.feed_entries()
        self.next = 1  # the number that a reader would give the next event

    def add(self, place: int, line: AnyLine) -> None:
        """Write a line again, if anybody needs it."""
        log = self._logs.get(getattr(line, "row", 0))
        if isinstance(line, NameLine):
            of = (line.app, line.user, line.name)
            name, at = self._names.get(of), line.version - 1
            if name is not None and _at(name.places, at) == place:
                _put(self._versions[of], at, self._writer.add(line))
        elif isinstance(line, ChunkLine):
            if place in self._chunks:
                self._chunks[place] = self._writer.add(line)
        elif log is None or not self._needed[log.row]:
            return
        elif isinstance(line, EventLine):
            self._event(place, line, log)
        elif isinstance(line, BaseLine):
            if log.base_place == place:
                line.session = _names(log)
                self._bases[log.row] = self._writer.add(line)
        elif isinstance(line, BlobLine):
            blob = log.blobs.get(line.hash)
            if blob is not None and blob.place == place:
                self._blobs[log.row, line.hash] = self._writer.add(line)
        elif isinstance(line, SnapshotLine) and not line.fold:
            self._snapshot(line)

    def _event(self, place: int, line: EventLine, log: JournaledLog) -> None:
        at = line.seq - log.floor - 1
        if _at(log.places, at) != place or line.seq > self._needed[log.row]:
            return
        number = next((n for n, *of in self._feed if of == [line.row, line.seq]), self.next)
        if number != self.next:
            self._writer.add(FeedLine(number))
        self.next = number + 1
        line.changes, line.session = UNSET, _names(log)
        _put(self._events[log.row], at, self._writer.add(line))

    def _snapshot(self, line: SnapshotLine) -> None:
        kept = self._snapshots.setdefault(line.row, array("Q"))
        kept.extend((line.seq, self._writer.add(line)))

    def fold(self, log: JournaledLog) -> None:
        """Write the fold of a session, unless its keys are not at hand."""
        store, kept = self._store, self._snapshots.get(log.row)
        head = log.head
        if head.deleted_us is not None or (kept is not None and kept[-2] == head.version):
            return
        with store.lock, suppress(Awaited, RecursionError, ValueError, TypeError):
            live = log.cached
            fold = log.loaded()[0] if live is None else live.fold
            if not fold.damaged:
                line = snapshot_line(log.row, fold, store.codec)
                line.fold = True
                self._snapshot(line)

    def settle(self) -> None:
        """Look for everything in its new place."""
        for row, log in self._logs.items():
            log.places = self._events[row]
            log.snapshots = self._snapshots.get(row, array("Q"))
            log.base_place = self._bases.get(row, 0)
            log.lost = self._store.is_refused(log)
            log.blobs = {
                hash: JournaledBlob(
                    blob.blob,
                    [self._chunks.get(place, MISSING) for place in blob.chunks],
                    self._blobs.get((row, hash), MISSING),
                )
                for hash, blob in log.blobs.items()
                if self._needed[row]
            }
        for of, name in self._names.items():
            name.places = self._versions[of]
        for upload in self._store.uploads():
            upload.chunks[:] = [self._chunks[place] for place in upload.chunks]


def _names(log: JournaledLog) -> tuple[str, str, str]:
    key = log.head.key
    return key.app, key.user, key.id


def _needed(log: MemoryLog, store: JournaledStore) -> int:
    """The last event of a log that somebody can read: all of a living one, those of an ended one
    that forks go on from."""
    if log.head.deleted_us is None:
        return log.head.version
    forks = [fork for fork in log.forks if store.has_row(fork.row)]
    return max([min(fork.floor, _needed(fork, store)) for fork in forks], default=0)


def _at(places: array[int], at: int) -> int:
    return places[at] if 0 <= at < len(places) else MISSING


def _put(places: array[int], at: int, place: int) -> None:
    places.extend([MISSING] * (at - len(places)))
    places.append(place)
