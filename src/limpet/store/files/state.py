"""The state of a store with a journal: the tables of the memory store, made again from the journal.

A line is applied when it is durable, whether it was just appended or is read when the store is
opened. What compaction and erasure need of the tables is here, too.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, structs

from limpet.errors import (
    SessionCorrupt,
    StoreForeign,
    StoreNewer,
    StoreUnopened,
)
from limpet.model import EMPTY, Fold, Head, Key, ScopeKey, freeze
from limpet.model.lease import with_lease
from limpet.store.blobs import BlobRow
from limpet.store.clock import Clock
from limpet.store.coding import bodies
from limpet.store.coding.codec import UNHELD, Codec
from limpet.store.files.batch import JournalBatch
from limpet.store.files.disk import LogDisk
from limpet.store.files.journal import (
    CLOSED,
    Fault,
    JournalEnd,
    JournalFiles,
    Loss,
    place_of,
    stub_of,
)
from limpet.store.files.lines import (
    AcceptLine,
    AnyLine,
    BaseLine,
    BlobLine,
    ChunkLine,
    ErasedLine,
    EventLine,
    FeedLine,
    FoldedLine,
    LostLine,
    MacLine,
    NameLine,
    PlainLine,
    SegmentLine,
    SnapshotLine,
    TombLine,
    decode_any,
    is_whole,
)
from limpet.store.files.records import JournaledLog, JournaledName, Reader
from limpet.store.marks import Mark
from limpet.store.memory.changes import EraseChange, Names, StoreChange
from limpet.store.memory.store import MemoryStore
from limpet.store.memory.tables import MemoryLog, Upload
from limpet.store.protocol import Erasure

T = TypeVar("T")
FORMAT: Final = 3
META: Final = "limpet.json"
COMPACT_BYTES: Final = 16 * 2**20  # written since the last compaction, from which on one is due
COMPACT_SECONDS: Final = 3_600.0  # after which one is in any case, if there is enough
_FEED_STEP: Final = 4_096
DAMAGED: Final = ".damaged"  # ends the name of a copy that compaction keeps of a damaged segment
_READS_MAX: Final = 16  # of one thing, while another process compacts the journal
_DECIDE: Final = (
    "may have lost its newest events: lines of the log cannot be read. Restore a backup; or go on "
    "without them by opening the store once with ?damage=accept"
)
_UNKNOWN: Final = (
    "may be the session of lines of the log that cannot be read. Restore a backup; or go on "
    "without them by opening the store once with ?damage=accept"
)


class StoreMeta(msgspec.Struct, frozen=True):
    """The description that a directory keeps of itself."""

    limpet: str
    format: int
    store: str
    secret: str


class JournaledStore(MemoryStore):
    """The memory store with the tables of an open directory. Readers and writers hold `lock`."""

    def __init__(
        self, directory: Path, disk: LogDisk, codec: Codec, clock: Clock | None, *, write: bool
    ) -> None:
        self.directory, self.disk, self.codec, self.write = directory, disk, codec, write
        self.journal = JournalFiles(directory, disk, write=write)
        self.reader = Reader(self.journal, codec)
        self.lock = threading.RLock()
        self.faults: list[Fault] = []
        self.base_segment = 0  # the first segment that counts
        self.compacted_bytes = 0  # its size, if it is compacted
        self.compact_bytes, self.compact_seconds = COMPACT_BYTES, COMPACT_SECONDS
        self._inodes: dict[int, int] = {}  # of the segments that another process writes
        self._copy: TemporaryDirectory[str] | None = None  # of a store of an earlier format
        self._reads_on = False  # what is read was written after the store was opened
        super().__init__(clock)
        self.sealer = codec.sealer

    def _forget_all(self) -> None:
        super()._forget_all()
        self.reader.cache.clear()
        self.reader.ids.clear()
        self.reader.tails.clear()
        self.unknown = False  # lines are lost, and nobody knows whose they were
        self._doubt = 0  # sessions whose last event is before this place may have lost newer ones
        self._place = 0  # of the last line that was applied
        self._base = (0, 0)  # row and place of the base line that was read last
        self._unfinished: list[tuple[EraseChange, int]] = []  # still in the files, and up to where
        self.compacted_us = 0  # the time of the last compaction; 0: there was none

    # --- opening -------------------------------------------------------------------------------

    def open_directory(self) -> None:
        """Read the journal. Raises StoreError, OSError."""
        meta = self._meta()
        self.secret, self.format = bytes.fromhex(meta.secret), meta.format
        self._identity = bodies.store_identity(self.secret)
        self.journal.store = meta.store
        if meta.format < FORMAT:
            self._take_over(meta)
        self._steadily(self.replay)

    def _take_over(self, meta: StoreMeta) -> None:
        """Write a store of an earlier format again: in its place, or to be read beside it."""
        from limpet.store.files import earlier  # most stores are of this format

        if not self.write:
            self._copy = TemporaryDirectory(prefix="limpet-")
            copy = Path(self._copy.name)
            earlier.written_again(self.journal, copy, self._clock())
            self.journal.close()
            self.journal = self.reader.journal = JournalFiles(copy, self.disk, write=False)
            return
        earlier.written_again(self.journal, self.directory, self._clock())
        self.disk.unlink(self.directory / CLOSED)
        made = structs.replace(meta, format=FORMAT)
        self.disk.put_file(self.directory / META, msgspec.json.encode(made) + b"\n")
        self.format = FORMAT  # `_sweep` removes the rest

    def replay(self) -> None:
        """Forget what is in memory and read it from the journal."""
        self._forget_all()
        numbers = self.journal.segments()
        self._inodes.clear()
        self._note_inodes(numbers)
        self.base_segment = self._first_segment(numbers)
        start, self._reads_on = JournalEnd(self.base_segment, 0), False
        collects = gc.isenabled()
        gc.disable()  # none of what is made here is garbage: to look for some takes longer
        try:
            self._scan(start, numbers)
        finally:
            if collects:
                gc.enable()
        self._reads_on = True
        if self.write:
            self.finish_erasures()
            self._void_leases()
            self._sweep(numbers)

    def _scan(self, start: JournalEnd, numbers: Sequence[int]) -> None:
        if self.write and not numbers and not (self.directory / CLOSED).exists():
            self.journal.start()
            self.faults = []
        else:
            self.faults = self.journal.scan(start, self.apply, self.lose, repair=self.write)

    def _first_segment(self, numbers: Sequence[int]) -> int:
        """The newest compacted segment, which stands for those before it; else the first, whether
        it is there or not."""
        self.compacted_bytes = 0
        for number in reversed(numbers):
            text = next((text for _, text, _ in self.journal.texts(number)), b"")
            if is_whole(text) and b'"compacted":true' in text:
                self.compacted_bytes = self.disk.size(self.journal.handle(number))
                return number
        return 1

    def refresh(self) -> None:
        """Read what another process has written since."""
        if self._is_replaced():
            self.journal.close()
            self.replay()
            return
        self._note_inodes(self.journal.segments())
        read, end = (self.apply, self.lose), self.journal.end
        self.faults += self.journal.scan(end, *read, repair=False, beside=True)

    def look(self, query: Callable[[], T]) -> T:
        """Run a read: beside a process that writes, on what it has written since."""
        with self.lock:
            if self.write:
                return query()

            def read() -> T:
                self.refresh()
                return query()

            return self._steadily(read)

    def _steadily(self, read: Callable[[], T]) -> T:
        """Read files that another process may compact meanwhile, and remove: then it is run
        again."""
        for left in reversed(range(_READS_MAX)):
            try:
                answer = read()
            except Exception:
                if not left or not self._is_replaced():
                    raise
            else:
                if not left or not self._is_replaced():
                    return answer
        raise AssertionError("the last read returns or raises")

    def _note_inodes(self, numbers: Sequence[int]) -> None:
        if not self.write:
            for number in numbers:
                self._inodes.setdefault(number, self.journal.inode(number))

    def _is_replaced(self) -> bool:
        """True if another process has written segments again that were read here, or removed
        them."""
        if self.write:
            return False
        return any([self.journal.inode(n) != inode for n, inode in self._inodes.items()])

    def _meta(self) -> StoreMeta:
        path, where = self.directory / META, str(self.directory)
        if not path.exists():
            if not self.write:
                raise StoreUnopened(where, "there is no files:// store; check its path")
            self.disk.make_directory(self.directory)
            if any(each.name not in ("lock", f"{META}.part") for each in self.directory.iterdir()):
                advice = "Choose another directory: this one holds other files"
                raise StoreForeign(where, advice)
            made = StoreMeta("files", FORMAT, os.urandom(8).hex(), os.urandom(32).hex())
            self.disk.put_file(path, msgspec.json.encode(made) + b"\n")
            return made
        try:
            meta = msgspec.json.decode(self.disk.read_file(path), type=StoreMeta)
        except msgspec.MsgspecError as error:
            raise StoreForeign(where) from error
        if meta.limpet != "files":
            raise StoreForeign(where)
        if meta.format > FORMAT:
            raise StoreNewer(where, meta.format, FORMAT)
        return meta

    def _sweep(self, numbers: Sequence[int]) -> None:
        """Remove what processes that died have left, and what only earlier formats have."""
        self.journal.forget([n for n in numbers if n < self.base_segment])
        for folder in (self.directory, self.journal.directory):
            for each in folder.iterdir():
                if each.name.endswith((".part", ".zst")) or each.name == "current.json":
                    self.disk.unlink(each)
        shutil.rmtree(self.directory / "blobs", ignore_errors=True)

    def _void_leases(self) -> None:
        """End all leases: their holders were in the process that wrote before, or reached it.
        Fences stay, and so do their names, for the death that the next claim counts, and the time
        until which a session is held back."""
        for log in list(self._busy.values()):
            head = log.head
            if head.worker is not None:
                since_us = head.leased_us or head.created_us
                self._move(log, with_lease(head, head.fence, since_us, head.worker, since_us))

    def close_files(self) -> None:
        """Let go of the files."""
        self.journal.close()
        if self._copy is not None:
            self._copy.cleanup()

    # --- the tables ----------------------------------------------------------------------------

    def _new_log(self, row: int, head: Head) -> JournaledLog:
        return JournaledLog(row, head, self.reader)

    def _new_name(self, key: ScopeKey) -> JournaledName:
        return JournaledName(key, self.reader)

    def _key_hash(self, key: Key | tuple[str, str, str]) -> bytes:
        return bodies.key_hash(self.secret, key)

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        """As the planner asks for it, who is about to write."""
        log = self._find(key, reuse=reuse)
        if log is None:
            if self.unknown:
                raise SessionCorrupt(key, _UNKNOWN)
            return None
        assert isinstance(log, JournaledLog)
        self.check_whole(log)
        if self.codec.marks and log.cached is None and not log.holds:
            raise SessionCorrupt(key, f"its head {UNHELD}")
        return log.fold

    def check_whole(self, log: MemoryLog) -> None:
        """Raise SessionCorrupt if a session has lost lines, or may have, until somebody decides."""
        if self.is_refused(log):
            raise SessionCorrupt(log.head.key, _DECIDE)

    def is_refused(self, log: MemoryLog) -> bool:
        """True if a session has lost lines, or may have."""
        assert isinstance(log, JournaledLog)
        doubted = self._doubt and (not len(log.places) or log.places[-1] < self._doubt)
        return log.lost or bool(doubted)

    # --- applying ------------------------------------------------------------------------------

    def apply(self, place: int, line: AnyLine) -> None:
        """Change the tables as a durable line says."""
        self._place = place
        kind = type(line)
        if kind is EventLine:
            self._apply_event(place, line)  # type: ignore[arg-type]  # an event
        elif kind is NameLine:
            self._apply_name(place, line)  # type: ignore[arg-type]  # a name
        elif isinstance(line, EraseChange):
            self._apply_erase(place, line)
        elif isinstance(line, ErasedLine):
            if line.event:
                self._feed.lift(self._feed.last + 2)
        elif isinstance(line, FeedLine):
            self._feed.lift(line.first)
        elif isinstance(line, TombLine):
            self._apply_tomb(line)
        elif isinstance(line, SegmentLine):
            self.compacted_us = line.time or self.compacted_us
            self._ended += line.ended
        elif isinstance(line, FoldedLine):
            pass  # it is the journal's own
        elif isinstance(line, LostLine):
            self._lose_of(line.row, None)
        elif isinstance(line, AcceptLine):
            self._accept(line.row)
        else:
            self._apply_to_row(place, line)

    def _apply_to_row(self, place: int, line: AnyLine) -> None:
        log = self._by_row.get(getattr(line, "row", 0))
        if isinstance(line, BaseLine):
            self._base = (line.row, place)
        elif isinstance(line, ChunkLine):
            self._add_chunk(line.row, line.upload, line.time, place)
        elif isinstance(line, BlobLine):
            upload = self.begun_uploads.pop(line.upload, None)
            if isinstance(log, JournaledLog):
                packed = (line.flags, line.stored, line.sum)
                hash = bytes.fromhex(line.hash)
                row = BlobRow(hash, line.version, line.chunks, line.upload, *packed)
                chunks = [] if upload is None else upload.chunks
                log.blobs[line.hash] = JournaledBlob(row, chunks, place)
        elif isinstance(line, SnapshotLine):
            if isinstance(log, JournaledLog):
                log.note_snapshot(line.seq, place, line.size)
        elif isinstance(line, MacLine):
            if isinstance(log, JournaledLog):
                log.mac = bytes.fromhex(line.mac)
        elif isinstance(line, StoreChange):
            self._apply(line)  # type: ignore[arg-type]  # one of the memory store's

    def _apply_event(self, place: int, line: EventLine) -> None:
        row = line.row
        log = self._by_row.get(row)
        self._feed.add(row, line.seq)
        if log is None:
            head = _first_head(line)
            log = self._begin(row, head)
            assert isinstance(log, JournaledLog)
            if self._base[0] == row:
                log.base_place = self._base[1]
            parent = self._by_row.get(line.parent) if line.parent else None
            if parent is not None:
                log.parent = parent
                parent.forks.append(log)
            log.lost = line.seq != line.floor + 1  # its first event is
        else:
            assert isinstance(log, JournaledLog)
            if self._reads_on:
                log.let_go()  # what is remembered is older
            head = _next_head(log.head, line)
        if not log.place_event(line.seq, place):
            return
        if line.input or line.processes:
            log.note(line.seq, line.time, line.processes, input=line.input)
        if line.done is not None:
            log.pending.pop(line.seq, None)
            log.processed[line.seq] = line.done
        if line.mac:
            log.mac = bytes.fromhex(line.mac)
        size = len(line.body) if line.body is not UNSET else len(line.packed)
        log.delta_bytes += size + 128
        if head is not log.head:
            self._move(log, head)

    def _apply_name(self, place: int, line: NameLine) -> None:
        key = (line.app, line.user, line.name)
        name = self._name_at(key)
        assert isinstance(name, JournaledName)
        name.place_version(line.version, place, line.size)
        self.reader.cache.forget_scope(key)

    def _apply_erase(self, place: int, line: EraseChange) -> None:
        if line.rows or line.owner:
            self._unfinished.append((line, place))
        elif not line.certificates:
            self._unfinished.clear()  # all before is no longer in the files
        for row in line.rows:
            log = self._by_row.get(row)
            if log is not None:
                log.let_go()
        self._apply(line)
        if line.owner:
            self.reader.cache.clear()

    def _apply_tomb(self, line: TombLine) -> None:
        created, updated, active, deleted = line.times
        link, ending = bytes.fromhex(line.link), line.ending
        head = Head(Key(*line.session), line.uid, line.version, link, created, updated, active)
        log = self._by_row.get(line.row)
        if log is None:
            log = self._new_log(line.row, head)
            self._rows, self._by_row[line.row] = max(self._rows, line.row), log
        elif self._kept.get(log.head.key) is log:
            del self._kept[log.head.key]
            self._busy.pop(log.row, None)
        tomb: Any = {"deleted_us": deleted, "ending": ending, "floor": line.floor}
        log.head = structs.replace(head, **tomb)
        self._deleted.setdefault(head.key, []).append(log)

    # --- what a batch leaves -------------------------------------------------------------------

    def settle(self, batch: JournalBatch, places: Sequence[int]) -> list[JournaledLog]:
        """The lines of a batch are durable: apply it; the sessions that were written to."""
        plan = batch.plan
        rows = {key: each.row for key, each in batch.view.sessions.items()}
        self._settle(plan, rows)
        touched: dict[int, JournaledLog] = {}
        at = iter(places)
        for group in batch.groups:
            for line in group:
                place, kind = next(at), type(line)
                if kind is PlainLine or kind is EventLine:
                    log = self._by_row[line.row]  # type: ignore[union-attr]  # an event
                    assert isinstance(log, JournaledLog)
                    log.place_event(line.seq, place)  # type: ignore[union-attr]  # an event
                    touched[log.row] = log
                    if kind is EventLine and line.mac:  # type: ignore[union-attr]
                        log.mac = bytes.fromhex(line.mac)  # type: ignore[union-attr]
                elif isinstance(line, BaseLine):
                    log = self._by_row[line.row]
                    assert isinstance(log, JournaledLog)
                    log.base_place = place
                elif isinstance(line, NameLine):
                    self._apply_name(place, line)
                elif isinstance(line, SnapshotLine):
                    self._apply_to_row(place, line)
        for key, scope in batch.scopes.items():
            self.reader.cache.keep_scope(key, scope)
        for log in touched.values():
            if (live := log.cached) is not None:
                self.reader.cache.keep(log.head.key, live)
        return list(touched.values())

    # --- what is lost --------------------------------------------------------------------------

    def lose(self, loss: Loss) -> None:
        """Lines could not be read. Their sessions are refused until somebody decides."""
        self._feed.lift(self._feed.last + 1 + max(loss.missing, 0))
        unknown = loss.unknown
        for owner, names in loss.owners:
            unknown = not self._lose_of(owner.row, names) or unknown
        if unknown:
            self.unknown, self._doubt = True, self._place + 1

    def _lose_of(self, row: int, names: Names | None) -> bool:
        """Note that a session has lost lines. False if there is none like that."""
        log = self._by_row.get(row)
        if not row:
            self.unknown = True
        elif not isinstance(log, JournaledLog) or (names and Key(*names) != log.head.key):
            return False
        else:
            log.lost = True
        return True

    def accept_damage(self) -> None:
        """Go on without what is lost."""
        lines: list[AnyLine] = [AcceptLine(log.row) for log in self.logs() if self.is_refused(log)]
        lines += [AcceptLine()] if self.unknown else []
        if lines:
            places = self.journal.append([lines])
            for place, line in zip(places, lines, strict=True):
                self.apply(place, line)

    def _accept(self, row: int) -> None:
        log = self._by_row.get(row)
        if isinstance(log, JournaledLog):
            log.lost = False
        if not row:
            self.unknown, self._doubt = False, 0

    # --- erasing -------------------------------------------------------------------------------

    def finish_erasures(self) -> None:
        """Leave nothing of what was erased in the files: those that hold it are written again, with
        something as long in its place. Also what failed, or a process died in."""
        if not self._unfinished:
            return
        rows = sorted({row for line, _ in self._unfinished for row in line.rows})
        upto: dict[str, int] = {}
        for line, place in self._unfinished:
            if line.owner:
                owner = line.owner
                upto[owner if isinstance(owner, str) else self._owner_hash(owner)] = place
        texts = b"|".join(b"%d" % row for row in rows)
        named = re.compile(rb'"row":(?:' + texts + rb")[,}]") if rows else None
        for number in self.journal.segments():
            stubs = {
                at: stub
                for at, text, _ in self.journal.texts(number)
                if self._is_erased(place_of(number, at), text, named, {*rows}, upto)
                and (stub := stub_of(text)) is not None
            }
            if stubs:
                self.journal.rewrite(number, stubs)
        for copy in self.journal.directory.glob(f"*{DAMAGED}"):
            self.disk.unlink(copy)  # nobody can say what is left in it of which session
        self.journal.append([[EraseChange()]])
        self._unfinished.clear()

    def _is_erased(
        self,
        place: int,
        text: bytes,
        named: re.Pattern[bytes] | None,
        rows: set[int],
        upto: dict[str, int],
    ) -> bool:
        if not is_whole(text):
            return False
        if text.startswith(b'{"op":"name"'):
            if not upto:
                return False
            line: Any = decode_any(text)
            # The owner may have come back: what was written since is not erased.
            return place < upto.get(self._owner_hash((line.app, line.user)), 0)
        if text.startswith((b'{"op":"erase', b'{"op":"mark"')):
            return False
        if named is None or named.search(text) is None:
            return False
        return getattr(decode_any(text), "row", 0) in rows

    # --- what the rest needs -------------------------------------------------------------------

    def logs(self) -> list[JournaledLog]:
        """All sessions, tombstones too."""
        return list(self._by_row.values())  # type: ignore[arg-type]  # ours

    def name_logs(self) -> list[tuple[ScopeKey, JournaledName]]:
        """All shared names."""
        named = self._names.items()
        return [((*of, n), each) for of, names in named for n, each in names.items()]  # type: ignore[misc]  # ours

    def living_keys(self) -> list[Key]:
        """The keys of all living sessions."""
        return list(self._kept)

    def refused(self) -> list[Key]:
        """The sessions that nobody may write to until somebody decides."""
        return [key for key, log in self._kept.items() if self.is_refused(log)]

    def has_row(self, row: int) -> bool:
        """True if the session is there, living or not."""
        return row in self._by_row

    @property
    def endings(self) -> int:
        """The number of sessions that were deleted or erased."""
        return self._ended

    def uploads(self) -> list[Upload]:
        """The uploads that may be finished."""
        return list(self.begun_uploads.values())

    def erasures(self) -> list[Erasure]:
        """The certificates of what was erased."""
        return list(self._erased.values())

    def living_marks(self) -> list[Mark]:
        """The marks that have not ended."""
        now_us = self.now_us()
        return [mark for mark in self.kept_marks.values() if mark.until_us > now_us]

    @property
    def ring_id(self) -> str | None:
        """The key ring that the store is sealed with."""
        return self._ring

    def feed_entries(self) -> Iterator[tuple[int, int, int]]:
        """Number, row and seq of all entries of the feed."""
        number = 0
        while some := self._feed.some(number, _FEED_STEP):
            yield from some
            number = some[-1][0]

    def feed_end(self, number: int) -> int:
        """The number that the feed goes on with, which a journal that was written again has to
        say."""
        return max(number, self._feed.last + 1)

    def compacted(self, segment: int, size: int) -> None:
        """A compacted segment of this size has taken its place."""
        self.base_segment, self.compacted_bytes = segment, size
        self.compacted_us, self._doubt = self.now_us(), 0
        self.faults = []

    def segment_bytes(self, first: int) -> int:
        """The size of the segments from one on."""
        return sum([self.journal.bytes_of(n) for n in self.journal.segments() if n >= first])


class JournaledBlob(NamedTuple):
    """The stored form of a blob, and the places of its chunks and its line."""

    blob: BlobRow
    chunks: list[int]
    place: int


def _first_head(line: EventLine) -> Head:
    created, key = line.created or line.time, Key(*line.session)
    times = (created, line.time, line.active or line.time)
    return Head(key, line.id, line.seq, bytes.fromhex(line.link), *times, _facts(line), line.floor)


def _next_head(before: Head, line: EventLine) -> Head:
    return Head(
        before.key,
        before.uid,
        line.seq,
        bytes.fromhex(line.link),
        before.created_us,
        line.time,
        line.active or line.time,
        before.facts if line.facts is UNSET else _facts(line),
        before.floor,
        before.fence,
        before.lease_us,
        before.worker,
        before.leased_us,
    )


def _facts(line: EventLine) -> Any:
    return EMPTY if line.facts is UNSET else freeze(msgspec.json.decode(line.facts)) or EMPTY
