"""The state of a log store: the log, the index of it, and how a line changes the index.

A line is applied when it is durable, whether it was just appended or is read when the store is
opened: one function for both, so a store that was opened is the store that was closed.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence, Set
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, structs

from limpet.errors import SessionCorrupt, StoreCorrupt, StoreForeign, StoreNewer, StoreUnopened
from limpet.model import EMPTY, Head, Key, buried, freeze
from limpet.model.lease import with_lease
from limpet.store.blobs import BlobRow
from limpet.store.coding.codec import Codec, Damaged, zstd
from limpet.store.files import snapshot
from limpet.store.files.disk import LogDisk
from limpet.store.files.index import FilesIndex, IndexedName, IndexedSession
from limpet.store.files.lines import (
    AnyLine,
    BaseLine,
    BlobLine,
    ColdLine,
    EndLine,
    EraseLine,
    EventLine,
    FeedLine,
    LeaseLine,
    LogLine,
    MacLine,
    MarkLine,
    NameLine,
    PinLine,
    PlainLine,
    RingLine,
    SnapshotLine,
    TakeLine,
    decode_any,
    is_whole,
    session_text,
)
from limpet.store.files.log import (
    LogEnd,
    LogFault,
    RootLog,
    is_frame,
    place_of,
    segment_of,
    stub_of,
)
from limpet.store.files.reader import FilesReader
from limpet.store.marks import Mark
from limpet.store.protocol import Erasure

T = TypeVar("T")
FORMAT: Final = 2
META: Final = "limpet.json"
CURRENT: Final = "current.json"
CLOSED: Final = "closed.json"
ERASING: Final = "erasing.zst"
BLOBS: Final = "blobs"
DAMAGED: Final = ".damaged"  # ends the name of a copy that compaction keeps of a damaged file
SESSIONS: Final = "sessions"  # the files that are derived for people
COMPACT_BYTES: Final = 16 * 2**20  # of segments, from which on they are compacted
COMPACT_SECONDS: Final = 3_600.0  # after which they are in any case, if there is enough in them
_FEED_FRAMES_CACHED: Final = 8
_READS_MAX: Final = 16  # of one thing, while another process compacts the log
_NEWEST_LOST: Final = "its newest events may be in lines that cannot be read"
_ACCEPT: Final = "To go on without them, open the store once with ?damage=accept"
_ANY: Final = 0  # no session has this row
_NAME: Final = rb'"(?:[^"\\]|\\.)*"'
_NAMED: Final = re.compile(rb'"row":(\d+),("session":\[%b,%b,%b\])' % (_NAME, _NAME, _NAME))
# Lines without which no session has fewer events.
_OF_NO_LOG: Final = re.compile(
    rb'\{"op":"(?:segment|snapshot|lease|pin|cold|mark|blob|mac|ring|name)"'
)
_decode: Final = msgspec.json.decode
_decode_stubs: Final = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


class StoreMeta(msgspec.Struct, frozen=True):
    """The description that a directory keeps of itself."""

    limpet: str
    format: int
    store: str
    secret: str


class CurrentIndex(msgspec.Struct, frozen=True):
    """The newest index, and what its bytes hash to."""

    index: str
    sha256: str


class ClosedLog(msgspec.Struct, frozen=True):
    """So many lines were durable when the store was closed. A log that has fewer is damaged."""

    lines: int


class FilesState:
    """One open directory. Readers and writers hold `lock`."""

    def __init__(self, directory: Path, disk: LogDisk, codec: Codec, *, write: bool) -> None:
        self.directory, self.disk, self.codec, self.write = directory, disk, codec, write
        self.lock = threading.RLock()
        self.compact_bytes, self.compact_seconds = COMPACT_BYTES, COMPACT_SECONDS
        self.faults: list[LogFault] = []
        self.index_name = ""
        self.index_bytes = 0
        self.indexed = LogEnd(1, 0)  # up to where the index on disk goes
        self.compacted = 0  # how many compacted files were ever made
        self._erased_rows: set[int] = set()
        self._erased_owners: dict[str, int] = {}  # hash of each, and the line that erased it
        self._gone: list[IndexedSession] = []  # erased, and still in the files
        self._gone_names: list[IndexedName] = []
        self._feed_frames: dict[int, Sequence[int]] = {}
        self._base = (0, 0)  # row and place of the base line that was read last
        self._accepted = 0  # the place up to which damage was accepted

    # --- opening -------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the index and the lines after it. Raises StoreError, OSError."""
        meta = self._meta()
        self.log = RootLog(self.directory, self.disk, write=self.write)
        self.log.store = meta.store
        self.secret, self.format = bytes.fromhex(meta.secret), meta.format
        self._steadily(self.load)

    def load(self) -> None:
        """Forget what is in memory and read it from the files."""
        index, end = FilesIndex(), LogEnd(1, 0)
        self.index_name, self.index_bytes = "", 0
        if self.write:
            self._overwrite_noted()  # before the log is read: an overwrite may have torn a line
        current = self._current()
        if current is not None:
            index, end = self._read_index(current)
        self.index = index
        self.reader = FilesReader(self.log, index, self.codec, self.secret)
        self.indexed = end
        if self.write and not end.offset and not self.log.segments():
            self.log.start()
            end = self.log.end
        lines = self._closed_lines()
        self.faults = self.log.scan(end, self.apply, repair=self.write, lines=lines)
        self._note_lost()
        if self.write:
            self.finish_erasures()
            self._void_leases()
            self._sweep()

    def refresh(self) -> bool:
        """Read what another process has written since. True if anything was."""
        newest = self._current()
        if newest is not None and newest.index != self.index_name:
            self.log.close()
            self.load()
            return True
        before = self.log.end
        self.faults += self.log.scan(before, self.apply, repair=False)
        self._note_lost()
        return self.log.end != before

    def read(self, query: Callable[[], T]) -> T:
        """Run a read: beside a process that writes, on what it has written since."""
        with self.lock:
            if self.write:
                return query()

            def read() -> T:
                self.refresh()
                return query()

            return self._steadily(read)

    def _steadily(self, read: Callable[[], T]) -> T:
        """Read files that another process may compact meanwhile. It removes those that its new
        index does not name, so a read under the old one may have missed them: it is run again."""
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

    def _is_replaced(self) -> bool:
        """True if another process has written an index since this one was read."""
        newest = None if self.write else self._current()
        return newest is not None and newest.index != self.index_name

    def _meta(self) -> StoreMeta:
        path = self.directory / META
        if not path.exists():
            if not self.write:
                raise StoreUnopened(
                    str(self.directory), "there is no files:// store; check its path"
                )
            self.disk.make_directory(self.directory)
            if any(each.name not in ("lock", f"{META}.part") for each in self.directory.iterdir()):
                advice = "Choose another directory: this one holds other files"
                raise StoreForeign(str(self.directory), advice)
            made = StoreMeta("files", FORMAT, os.urandom(8).hex(), os.urandom(32).hex())
            self.disk.put_file(path, msgspec.json.encode(made) + b"\n")
            return made
        try:
            meta = _decode(self.disk.read_file(path), type=StoreMeta)
        except msgspec.MsgspecError as error:
            raise StoreForeign(str(self.directory)) from error
        if meta.limpet != "files":
            raise StoreForeign(str(self.directory))
        if meta.format > FORMAT:
            raise StoreNewer(str(self.directory), meta.format, FORMAT)
        if self.write and meta.format < FORMAT:
            # Before the first line of this format: an earlier release would take it for damage.
            meta = msgspec.structs.replace(meta, format=FORMAT)
            self.disk.put_file(path, msgspec.json.encode(meta) + b"\n")
        return meta

    def _current(self) -> CurrentIndex | None:
        """The index in use; None if there never was one. Raises StoreCorrupt."""
        path = self.directory / CURRENT
        try:
            return _decode(self.disk.read_file(path), type=CurrentIndex)
        except msgspec.MsgspecError as error:
            raise self._unreadable(f"its {CURRENT} cannot be read ({error})") from error
        except FileNotFoundError:
            # A log that was compacted does not begin with its first segment. To open it without its
            # index would be to forget what was compacted.
            first = min(self.log.segments(), default=0)
            if first > 1 or (not first and self.log.compacted_numbers()):
                if path.exists():  # another process has just compacted the log for the first time
                    return self._current()
                raise self._unreadable(f"its {CURRENT} is missing") from None
            return None

    def _closed_lines(self) -> int:
        try:
            return _decode(self.disk.read_file(self.directory / CLOSED), type=ClosedLog).lines
        except (FileNotFoundError, msgspec.MsgspecError):
            return 0  # it only finds what else would not be noticed

    def note_closed(self) -> None:
        """Note how far the log is known to go."""
        if self.log.end.n > self._closed_lines():
            content = msgspec.json.encode(ClosedLog(self.log.end.n)) + b"\n"
            self.disk.put_file(self.directory / CLOSED, content, durable=False)

    def _unreadable(self, problem: str) -> StoreCorrupt:
        advice = "Keep a copy of the directory and restore a backup"
        return StoreCorrupt(str(self.directory), problem, advice)

    def _read_index(self, current: CurrentIndex) -> tuple[FilesIndex, LogEnd]:
        path = self.directory / current.index
        try:
            content = self.disk.read_file(path)
            index, end, self.compacted = snapshot.unpacked_index(content, current.sha256)
        except (FileNotFoundError, Damaged) as error:
            raise self._unreadable(f"its index {current.index} cannot be read ({error})") from error
        self.index_name, self.index_bytes = current.index, len(content)
        return index, end

    def write_index(self) -> None:
        """Write the index as it is now and take it into use; then the one before goes."""
        content, digest = snapshot.packed_index(self.index, self.log.end, self.compacted)
        name = f"index-{self.log.end.n:012d}-{os.urandom(3).hex()}.zst"
        self.disk.put_file(self.directory / name, content)
        current = CurrentIndex(name, digest)
        # The rename is the moment: before it the old index counts, after it the new one.
        self.disk.put_file(self.directory / CURRENT, msgspec.json.encode(current) + b"\n")
        before, self.index_name, self.index_bytes = self.index_name, name, len(content)
        self.indexed = self.log.end
        if before:
            self.disk.unlink(self.directory / before)

    def _sweep(self) -> None:
        """Remove what processes that died have left: indexes and compacted files that nothing
        names, uploads that nobody can go on with."""
        for each in self.directory.iterdir():
            stale = each.name.startswith("index-") and each.name != self.index_name
            if stale or each.name.endswith(".part"):
                self.disk.unlink(each)
        used = snapshot.files_of(self.index)
        named = {self.log.path(number).name for number in used}
        for each in self.log.directory.iterdir():
            stale = each.name.endswith(".jsonl.zst") and each.name not in named
            if stale or each.name.endswith(".part"):
                self.disk.unlink(each)
        first = min([n for n in used if self.log.path(n).suffix == ".jsonl"], default=None)
        keep = min(self.indexed.segment, self.indexed.segment if first is None else first)
        self.log.forget([n for n in self.log.segments() if n < keep])
        root = self.directory / BLOBS
        if root.is_dir():
            kept = {
                str(row): {upload_name(blob.upload) for blob in (entry.blobs or {}).values()}
                for row, entry in self.index.by_row.items()
            }
            for place in root.iterdir():
                for upload in place.iterdir():
                    if upload.name not in kept.get(place.name, ()):
                        shutil.rmtree(upload, ignore_errors=True)

    def _void_leases(self) -> None:
        """End all leases: their holders were in the process that wrote before, or reached it.
        Fences stay, and so do their names, for the death that the next claim counts, and the time
        until which a session is held back."""
        for row in list(self.index.leased):
            entry = self.index.by_row[row]
            head = entry.head
            if head.worker is not None:
                since_us = head.leased_us or head.created_us
                lease = (head.fence, since_us, head.worker, since_us)
                self.index.move(entry, head, with_lease(head, *lease))

    # --- lost lines ----------------------------------------------------------------------------

    def _note_lost(self) -> None:
        """Note which sessions may have had newer events than those that are left.

        Whose a damaged line was it says itself, if enough of it is left. Else it may be of any
        session with no later event, or of one that is not known. A session with a later event shows
        by itself what it lacks.
        """
        index = self.index
        for lost in self.log.lost:
            if lost.place <= self._accepted:
                continue
            rows = {row for text in lost.texts for row in self._owners_of(text)}
            index.keys_lost = index.keys_lost or _ANY in rows
            for entry in index.living.values():
                if (_ANY in rows or entry.row in rows) and _ends_before(entry, lost.place):
                    index.doubtful.add(entry.row)
        self.log.lost = []

    def _owners_of(self, text: bytes | None) -> tuple[int, ...]:
        """The row of the session that a damaged line is of; _ANY if it does not say."""
        if text is not None and _OF_NO_LOG.match(text):
            return ()
        named = set(() if text is None else _NAMED.findall(text))
        if len(named) != 1:
            return (_ANY,)
        row, names = named.pop()
        entry = self.index.by_row.get(int(row))
        same = entry is not None and session_text(
            entry.row, (entry.key.app, entry.key.user, entry.key.id)
        ).endswith(names)
        return (int(row),) if same else (_ANY,)

    def check_whole(self, key: Key, entry: IndexedSession | None) -> None:
        """Raise SessionCorrupt if a session may have had newer events, or may have been there."""
        if entry is None and self.index.keys_lost:
            raise SessionCorrupt(key, f"it may have been in lines that cannot be read. {_ACCEPT}")
        if entry is not None and entry.row in self.index.doubtful:
            raise SessionCorrupt(key, f"{_NEWEST_LOST}. {_ACCEPT}")

    def accept_damage(self) -> None:
        """Go on without what is lost: a person has decided so."""
        if self.index.doubtful or self.index.keys_lost:
            self.put([MacLine()])

    # --- applying ------------------------------------------------------------------------------

    def apply(self, place: int, line: AnyLine) -> None:
        """Change the index as a durable line says."""
        index = self.index
        if isinstance(line, EventLine):
            entry = index.by_row.get(line.row)
            if entry is not None:
                self.reader.forget(entry)  # what is remembered is older
            self.apply_event(place, line, None)
            return
        if isinstance(line, NameLine):
            self._name(place, line)
            return
        if isinstance(line, MarkLine):
            of = (line.space, line.name)
            if line.until:
                index.marks[of] = Mark(line.space, line.name, line.value, line.until)
            else:
                index.marks.pop(of, None)
            return
        if isinstance(line, EraseLine):
            self._erase(line)
            return
        if isinstance(line, RingLine):
            index.ring = line.ring
            return
        if isinstance(line, BaseLine):
            self._base = (line.row, place)
            return
        if isinstance(line, MacLine) and not line.row:
            index.doubtful.clear()
            index.keys_lost, self._accepted = False, place
            return
        entry = index.by_row.get(getattr(line, "row", 0))
        if entry is None:
            return
        if isinstance(line, LeaseLine):
            lease = (line.fence, line.lease_us, line.worker, line.leased_us)
            self.set_head(entry, with_lease(entry.head, *lease))
        elif isinstance(line, SnapshotLine):
            entry.note_snapshot(line.seq, place)
            entry.snapshot_bytes, entry.delta_bytes = line.size, 0
        elif isinstance(line, PinLine):
            pins = {} if entry.pins is None else entry.pins
            entry.pins = {number: seq for number, seq in pins.items() if seq != line.seq}
            if line.number:
                entry.pins[line.number] = line.seq
            else:
                entry.drop_snapshot(line.seq)
        elif isinstance(line, ColdLine):
            entry.cold, entry.hot = line.upto, frozenset(line.hot) or None
        elif isinstance(line, EndLine):
            self._end(entry, line)
        elif isinstance(line, TakeLine):
            self._take(entry, line)
        elif isinstance(line, BlobLine):
            packed = (line.flags, line.stored, line.sum)
            row = BlobRow(bytes.fromhex(line.hash), line.version, line.chunks, line.upload, *packed)
            entry.blobs = {**(entry.blobs or {}), line.hash: row}
        elif isinstance(line, MacLine):
            entry.mac = bytes.fromhex(line.mac)

    def apply_event(self, place: int, line: EventLine, head: Head | None) -> IndexedSession:
        """The same for an event that was just committed; `head` is the one that it leaves, if it is
        known: else it is made from the line. What is remembered is for the caller to bring up to
        date."""
        index, entry = self.index, self.index.by_row.get(line.row)
        self.index.feed.append(line.row << 32 | line.seq)
        if entry is None:
            entry = IndexedSession(line.row, Key(*line.session), line.floor)
            if self._base[0] == line.row:
                entry.base = self._base[1]
            parent = index.by_row.get(line.parent) if line.parent else None
            if parent is not None:
                entry.parent = parent
                parent.forks = [*(parent.forks or ()), entry]
            first = head or _first_head(line, entry.key)
            index.begin(entry, first)
            before = first
        else:
            before = entry.head
        if not entry.add(line.seq, place):
            return entry
        if line.input:
            entry.note_input(line.seq)
        if line.processes:
            entry.note_processed(line.processes, line.seq)
        if line.mac:
            entry.mac = bytes.fromhex(line.mac)
        size = len(line.body) if line.body is not UNSET else len(line.packed)
        entry.delta_bytes += size + 128
        entry.changed = True
        if head is None:
            head = _next_head(before, line)
        index.move(entry, before, head)
        return entry

    def apply_plain(
        self, place: int, entry: IndexedSession, seq: int, body_bytes: int, head: Head | None
    ) -> None:
        """The same for a plain one, of a session that is there. Of the events of one session in a
        group, the last brings the head."""
        index, row = self.index, entry.row
        index.feed.append(row << 32 | seq)
        if entry.add(seq, place):
            entry.delta_bytes += body_bytes + 128
            if head is not None:
                entry.changed = True
                index.move(entry, entry.head, head)

    def _name(self, place: int, line: NameLine) -> None:
        names = self.index.names.setdefault((line.app, line.user), {})
        entry = names.get(line.name)
        if entry is None:
            entry = names[line.name] = IndexedName()
        if entry.add(line.version, place):
            entry.size = line.size
            self.reader.cache.forget_scope((line.app, line.user, line.name))

    def set_head(self, entry: IndexedSession, head: Head) -> None:
        """A change of the head that no event records."""
        self.index.move(entry, entry.head, head)
        live = self.reader.cached(entry)
        if live is not None:
            live.lease(head.fence, head.lease_us, head.worker, head.leased_us)

    def _end(self, entry: IndexedSession, line: EndLine) -> None:
        index, head = self.index, entry.head
        if index.living.get(entry.key) is not entry:
            return
        index.end(entry)
        index.ended += 1
        index.doubtful.discard(entry.row)
        self.reader.forget(entry)
        tomb: Any = line.ending
        entry.held = buried(head, line.time, tomb)
        index.deleted.setdefault(entry.key, []).append(entry)
        self.remove_derived(entry.key)

    def _take(self, entry: IndexedSession, line: TakeLine) -> None:
        index, head = self.index, entry.head
        index.end(entry)
        self.reader.forget(entry)
        self.remove_derived(entry.key)
        entry.key, entry.text = Key(*line.session), None
        index.begin(entry, structs.replace(head, key=entry.key, fence=line.fence))
        index.ended += 1
        entry.changed = True

    def _erase(self, line: EraseLine) -> None:
        index = self.index
        for row in line.rows:
            entry = index.by_row.pop(row, None)
            index.doubtful.discard(row)
            self._erased_rows.add(row)
            index.rows = max(index.rows, row)  # a row is never used again
            if entry is None:
                continue
            if index.living.get(entry.key) is entry:
                index.end(entry)
                self.reader.forget(entry)
            else:
                left = [each for each in index.deleted.get(entry.key, ()) if each is not entry]
                index.deleted[entry.key] = left
                if not left:
                    del index.deleted[entry.key]
            index.ended += 1
            for fork in entry.forks or ():
                fork.parent = None
            if entry.parent is not None and entry.parent.forks is not None:
                entry.parent.forks = [each for each in entry.parent.forks if each is not entry]
            self._gone.append(entry)
        if line.owner:
            erased = line.owner if isinstance(line.owner, str) else self._hash(line.owner)
            self._erased_owners[erased] = line.n
            for owner in [each for each in index.names if self._hash(each) == erased]:
                self._gone_names += list(index.names.pop(owner).values())
            self.reader.cache.clear()
        for mark, version, link, at_us, forks in line.certificates:
            erasure = Erasure(bytes.fromhex(mark), version, bytes.fromhex(link), at_us, forks)
            index.erased[erasure.key_hash] = erasure

    # --- erasing -------------------------------------------------------------------------------

    def overwrite_erased(self) -> None:
        """Leave nothing of what was erased in the files: lines and frames are overwritten where
        they stand, the index is written again without it, derived files and blobs are removed."""
        touched: set[int] = set()
        for entry in (*self._gone, *self._gone_names):
            frames = list(entry.frames or ())[1::2]
            if isinstance(entry, IndexedSession):
                frames += [place for place in (entry.base,) if place]
                frames += list(entry.snapshots or ())[1::2]
                shutil.rmtree(self.directory / BLOBS / str(entry.row), ignore_errors=True)
                self.remove_derived(entry.key)
            for place in frames:
                if is_frame(place):
                    self.log.overwrite_frame(place)
                    touched.add(segment_of(place))
        self.log.sync(sorted(touched))
        self._overwrite_lines()
        for copy in self.log.directory.glob(f"*{DAMAGED}"):
            self.disk.unlink(copy)  # nobody can say what is left in it of which session
        if self.index_name:
            self.write_index()
        self._gone.clear()
        self._gone_names.clear()
        self._erased_rows.clear()
        self._erased_owners.clear()

    def _overwrite_lines(self) -> None:
        """Overwrite the lines of what was erased. A note of what goes where is durable before the
        first of them is touched: from one that is overwritten halfway, because the disk failed or
        the power was cut, nobody could tell whose it was."""
        self._overwrite_noted()
        rows = b"|".join(str(row).encode() for row in sorted(self._erased_rows))
        named = re.compile(rb'"row":(?:' + rows + rb")[,}]") if rows else None
        stubs: list[tuple[int, bytes]] = []
        for number in self.log.segments():
            data = self.disk.read_all(self.log.handle(number))
            for at, text in snapshot.pieces(data):
                if not is_whole(text) or not self._is_erased(text, named):
                    continue
                if (stub := stub_of(text)) is not None:
                    stubs.append((place_of(number, at), stub))
        if stubs:
            content = zstd().compress(msgspec.msgpack.encode(stubs))
            self.disk.put_file(self.directory / ERASING, content)
            self._overwrite_noted()

    def _overwrite_noted(self) -> None:
        """Overwrite the lines of the note, if there is one, and remove it: once more does no
        harm."""
        path = self.directory / ERASING
        try:
            stubs = _decode_stubs(zstd().decompress(self.disk.read_file(path)))
        except FileNotFoundError:
            return
        except (msgspec.MsgspecError, zstd().ZstdError):
            stubs = []  # damaged: lines that were left torn are found as damage, too
        touched: set[int] = set()
        for place, stub in stubs:
            if self.log.path(segment_of(place)).exists():
                self.log.overwrite(place, stub)
                touched.add(segment_of(place))
        self.log.sync(sorted(touched))
        self.disk.unlink(path)
        self.disk.sync_directory(self.directory)

    def _is_erased(self, text: bytes, named: re.Pattern[bytes] | None) -> bool:
        if text.startswith(b'{"op":"name"'):
            if not self._erased_owners:
                return False
            line: Any = decode_any(text)
            # The owner may have come back: what was written since is not erased.
            by = self._erased_owners.get(self._hash((line.app, line.user)), 0)
            return bool(line.n < by)
        if text.startswith((b'{"op":"erase"', b'{"op":"mark"')):
            return False
        if named is None or named.search(text) is None:
            return False
        line = decode_any(text)
        return getattr(line, "row", 0) in self._erased_rows

    def _hash(self, owner: tuple[str, str]) -> str:
        return self.reader.user_hash(*owner).hex()

    def finish_erasures(self) -> None:
        """Finish an erasure that failed, or that a process died in: before another index is
        written, which would lead past the line that says what is erased."""
        if self.write and (self._erased_rows or self._erased_owners):
            self.overwrite_erased()

    def remove_derived(self, key: Key) -> None:
        """Remove a session from the files for people: its own, and the relations."""
        root = self.directory / SESSIONS
        if not self.write or not root.is_dir():
            return
        shutil.rmtree(session_directory(root, key), ignore_errors=True)
        path = root / RELATIONS
        if path.exists():
            named = {"app": key.app, "user": key.user, "id": key.id}
            related = _decode(path.read_bytes(), type=list[dict[str, Any]])
            left = [each for each in related if named not in each.values()]
            if left != related:
                self.disk.put_file(path, msgspec.json.encode(left) + b"\n")

    # --- writing -------------------------------------------------------------------------------

    def put(self, lines: Sequence[LogLine]) -> None:
        """Append lines of one group and apply them."""
        if not lines:
            return
        group(lines)
        places = self.log.append(lines)
        for place, line in zip(places, lines, strict=True):
            self.apply(place, line)  # type: ignore[arg-type]  # one of them

    def feed_frame(self, place: int) -> Sequence[int]:
        """The entries of the feed in a frame. Raises Damaged."""
        entries = self._feed_frames.get(place)
        if entries is None:
            try:
                entries = _decode(self.log.frame(place)[0], type=FeedLine).entries
            except (msgspec.MsgspecError, LookupError) as error:
                raise Damaged(f"cannot be read: {error}") from error
            if len(self._feed_frames) >= _FEED_FRAMES_CACHED:
                self._feed_frames.clear()
            self._feed_frames[place] = entries
        return entries

    def forget_frames(self) -> None:
        self._feed_frames.clear()

    def set_aside(self, numbers: Sequence[int], damaged: Set[int]) -> None:
        """Keep a copy of files in which something cannot be read, before they are removed."""
        faulty = {fault.file for fault in self.faults}
        for number in numbers:
            path = self.log.path(number)
            if path.exists() and (number in damaged or path.name in faulty):
                self.disk.put_file(
                    path.with_name(f"{path.name}{DAMAGED}"), self.disk.read_file(path)
                )

    def close(self) -> None:
        self.log.close()


def _ends_before(entry: IndexedSession, place: int) -> bool:
    """True if the last event of a session stands before a place in the segments."""
    last = entry.find(entry.last)
    return last is None or last[1] >= 0 or last[0] < place


def group(lines: Sequence[LogLine | PlainLine]) -> None:
    """Number the lines of a group: all of them count, or none."""
    last = len(lines) - 1
    for place, line in enumerate(lines):
        line.left = last - place  # type: ignore[union-attr]  # every kind has it


def _first_head(line: EventLine, key: Key) -> Head:
    created = line.created or line.time
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
    return EMPTY if line.facts is UNSET else freeze(_decode(line.facts)) or EMPTY


def chunk_in(disk: LogDisk, path: Path) -> tuple[int, bytes, int]:
    """A chunk of a blob, packed. Raises Damaged if it is not there."""
    try:
        packed: tuple[int, bytes, int] = msgspec.msgpack.decode(
            disk.read_file(path), type=tuple[int, bytes, int]
        )
        return packed
    except FileNotFoundError as error:
        raise Damaged("is missing") from error
    except msgspec.MsgspecError as error:
        raise Damaged("cannot be read") from error


def upload_name(upload: str) -> str:
    """The name of the directory with the chunks of an upload."""
    return sha256(upload.encode()).hexdigest()[:32]


# --- where derived files are ---------------------------------------------------------------------

RELATIONS: Final = Path(".limpet-runtime", "session-relations.json")
_NAME_CHARS_MAX: Final = 200  # of a directory; a longer one is named by its hash


def session_directory(root: Path, key: Key) -> Path:
    """Return the directory of the files of a session for people."""
    return root.joinpath(*[_name_of(part) for part in (key.app, key.user, key.id)])


def _name_of(part: str) -> str:
    """A part of a key as the name of a directory: none leads out of its place, and no two parts
    have the same."""
    named = quote(part, safe=" @+=,")
    if named.startswith("."):
        named = f"%2E{named[1:]}"
    if len(named) > _NAME_CHARS_MAX:  # no name that is short enough has a "!"
        named = f"{named[: _NAME_CHARS_MAX - 33]}!{sha256(part.encode()).hexdigest()[:32]}"
    return named
