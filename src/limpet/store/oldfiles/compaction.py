"""Compaction: the log up to here becomes an index and frames, and its segments go.

The lines of each session are put together, compressed, into a file of frames; what nobody can read
any more is left out. Then the index that refers to them takes the place of the one before, in one
rename, and only then are the old files removed. A process that dies at any step leaves the old
index with the old files, or the new index with the new ones; what belongs to neither is removed
when the store is opened.

It runs on the writer's thread when nobody waits: when the segments are large, or when there is
something in them and the last compaction is long ago.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw

from limpet.model.limits import SNAPSHOT_SHARE
from limpet.store.coding import bodies
from limpet.store.coding.codec import COMPRESSED, Damaged, zstd
from limpet.store.oldfiles.index import FilesIndex, IndexedSession, Places
from limpet.store.oldfiles.lines import (
    FeedLine,
    LogLine,
    SnapshotLine,
    decode_any,
    encode_line,
)
from limpet.store.oldfiles.log import (
    compacted_number,
    framed,
    is_frame,
    place_of,
    segment_of,
)
from limpet.store.oldfiles.snapshot import files_of
from limpet.store.oldfiles.state import FilesState
from limpet.store.protocol import Compacted

COMPACT_BYTES_MIN: Final = 2**20  # enough
FRAME_BYTES: Final = 32 * 2**10  # of lines in a frame, before it is compressed
# The last events of a long session have a frame of their own: they are what is read first.
_TAIL: Final = 24
_TAIL_AFTER_BYTES: Final = FRAME_BYTES // 4  # of lines before them, in a frame of theirs
FILES_MAX: Final = 8  # compacted files; then all become one
RETRY_SECONDS: Final = 60  # after a compaction that failed
MERGE_SHARE: Final = 2  # a compacted file smaller than this many times what is new is merged
_FEED_ENTRIES: Final = 8_192
_INDEX_LINES: Final = 256  # lines since the last index for which a clean close writes one
_LOST: Final = b"{}"  # stands for a line that cannot be read


def finish(state: FilesState) -> None:
    """Leave a store as the next process opens it quickest."""
    state.finish_erasures()
    lines = state.log.end.n - state.indexed.n
    grown = state.log.end.segment > state.indexed.segment
    if lines > _INDEX_LINES and (grown or state.log.end.offset > state.index_bytes // 4):
        state.write_index()
    state.log.trim()
    state.note_closed()


class NewPlaces(msgspec.Struct):
    """The places to which compaction has moved what an entry refers to."""

    frames: array[int] | None
    snapshots: array[int] | None = None
    base: int = 0
    # From the one to the other event, lines were written again: inputs say what processed them.
    written: tuple[int, int] = (0, 0)


class Compaction:
    """Compacts the log of a store, when it is due or when somebody asks."""

    def __init__(
        self, state: FilesState, clock: Callable[[], int], heard: Callable[[], None]
    ) -> None:
        """`heard` is called after each."""
        self._state, self._clock, self._heard = state, clock, heard
        self._began_us, self._failed_us = clock(), 0
        self._counted = self._earlier = 0  # the last segment, and the bytes of those before it
        self._damaged: set[int] = set()  # numbers of files in which a line cannot be read

    def is_due(self) -> bool:
        """True if the segments are large, or old and worth it. It is asked at every commit."""
        size, state = self._segment_bytes(), self._state
        if size <= min(COMPACT_BYTES_MIN, state.compact_bytes):
            return False
        now_us = self._clock()
        if now_us < self._failed_us + RETRY_SECONDS * 1_000_000:
            return False
        age = (now_us - (state.index.compacted_us or self._began_us)) / 1e6
        return size > state.compact_bytes or age > state.compact_seconds

    def when_due(self) -> None:
        """Compact if it is due. One that fails is not tried again at every commit."""
        if self.is_due():
            try:
                self.run()
            except BaseException:
                self._failed_us = self._clock()
                raise

    def _segment_bytes(self) -> int:
        log = self._state.log
        if self._counted != log.end.segment:
            earlier = [number for number in log.segments() if number < log.end.segment]
            self._earlier = sum([log.bytes_of(number) for number in earlier])
            self._counted = log.end.segment
        return self._earlier + log.end.offset

    def run(self) -> Compacted:
        """Compact everything up to here. The caller is the only writer."""
        state = self._state
        with state.lock:
            state.finish_erasures()
            before = self._segment_bytes()
            state.log.roll()
        end = state.log.end
        merged = self._merged()
        before += sum([state.log.bytes_of(each) for each in merged])
        state.compacted += 1  # also if it fails: a number is used once
        number = compacted_number(state.compacted)
        path = state.log.path(number)
        self._damaged.clear()
        with FrameFile(state, path, number) as file:
            moved, names = self._write(file, merged)
            feed = self._write_feed(file, merged)
            size = file.size
        with state.lock:
            self._swap(moved, names, feed)
            state.index.compacted_us = self._clock()
            if not size:
                state.disk.unlink(path)
            state.write_index()
            old = [n for n in state.log.segments() if n < end.segment]
            state.set_aside([*old, *merged], self._damaged)
            state.log.forget([*old, *merged])
        self._counted = 0
        self._heard()
        return Compacted(rows_bytes=before, segment_bytes=size)

    # --- which files ---------------------------------------------------------------------------

    def _merged(self) -> set[int]:
        """The compacted files that are written again: the newest ones that are small, or all."""
        log = self._state.log
        used = files_of(self._state.index)
        numbers = [number for number in log.compacted_numbers() if number in used]
        if len(numbers) >= FILES_MAX:
            return set(numbers)
        total, merged = self._segment_bytes() // 4, set[int]()
        for number in reversed(numbers):
            size = log.bytes_of(number)
            if size > total * MERGE_SHARE:
                break
            merged.add(number)
            total += size
        return merged

    # --- what goes into the new file -----------------------------------------------------------

    def _write(
        self, file: FrameFile, merged: set[int]
    ) -> tuple[dict[int, NewPlaces], dict[tuple[str, str, str], NewPlaces]]:
        index = self._state.index
        moved: dict[int, NewPlaces] = {}
        for entry in list(index.by_row.values()):
            last = _kept_upto(index, entry)
            lines = (self._event(entry, seq) for seq in _seqs(entry, merged, last))
            frames = self._frames(file, entry, lines, merged, last)
            made = NewPlaces(frames, written=(_first_written(entry, merged), last))
            made.snapshots = self._snapshots(file, entry, merged, last)
            made.base = self._single(file, entry.base, merged)
            moved[entry.row] = made
        names: dict[tuple[str, str, str], NewPlaces] = {}
        for owner, owned in list(index.names.items()):
            for name, each in list(owned.items()):
                lines = (self._line(each, number) for number in _seqs(each, merged, each.last))
                names[(*owner, name)] = NewPlaces(
                    self._frames(file, each, lines, merged, each.last)
                )
        return moved, names

    def _frames(
        self,
        file: FrameFile,
        entry: Places,
        lines: Iterator[bytes],
        merged: set[int],
        last: int,
    ) -> array[int] | None:
        """The frames of an entry: those that stay, and new ones of all that follow."""
        frames = array("Q", [])
        first = entry.first
        kept = entry.frames or array("Q")
        for at in range(0, len(kept), 2):
            if segment_of(kept[at + 1]) in merged:
                break
            if kept[at] > last:
                break
            frames.extend(kept[at : at + 2])
        first = _first_written(entry, merged)
        room: list[bytes] = []
        size = 0
        for number, line in enumerate(lines, first):
            room.append(line)
            size += len(line)
            if size >= FRAME_BYTES or (number == last - _TAIL and size >= _TAIL_AFTER_BYTES):
                frames.extend((first, file.add(room)))
                first, room, size = first + len(room), [], 0
        if room:
            frames.extend((first, file.add(room)))
        return frames if len(frames) else None

    def _event(self, entry: IndexedSession, seq: int) -> bytes:
        reader = self._state.reader
        try:
            line = reader.event_line(entry, seq)
        except Damaged:
            return self._lost(entry, seq)
        if line.input and line.done is None and (by := entry.processed_by(seq)):
            with suppress(Damaged):
                line.done = (by, reader.event_line(entry, by).time)
        line.changes = line.facts = UNSET
        line.mac, line.active, line.left, line.begins, line.chain = "", 0, 0, False, ""
        return bytes(encode_line(line))

    def _line(self, entry: Places, number: int) -> bytes:
        try:
            line = decode_any(self._state.reader.text(entry, number))
        except (Damaged, msgspec.MsgspecError):
            return self._lost(entry, number)
        return _bare(line)

    def _lost(self, entry: Places, number: int) -> bytes:
        """Stand in for a line that cannot be read, and remember the file that it is in."""
        if (at := entry.find(number)) is not None:
            self._damaged.add(segment_of(at[0]))
        return _LOST

    def _single(self, file: FrameFile, place: int, merged: set[int]) -> int:
        """A line that is read alone, in a frame of its own."""
        if not place or (is_frame(place) and segment_of(place) not in merged):
            return place
        try:
            line = self._state.reader.single(place)
        except Damaged:
            self._damaged.add(segment_of(place))
            return 0
        if isinstance(line, SnapshotLine):
            self._plain(line)
        return file.add([_bare(line)])

    def _snapshots(
        self, file: FrameFile, entry: IndexedSession, merged: set[int], last: int
    ) -> array[int] | None:
        """The newest snapshot, and older ones as long as they take a small share of the log."""
        kept = array("Q")
        budget = max(0, entry.last - entry.floor) * 256 // SNAPSHOT_SHARE
        for count, (seq, place) in enumerate(entry.snapshots_upto(last)):
            pinned = entry.pins is not None and seq in entry.pins.values()
            if count and not pinned:
                budget -= entry.snapshot_bytes >> min(count, 8)
                if budget < 0:
                    continue
            put = self._single(file, place, merged)
            if put:
                kept.extend((put, seq))  # turned round below: the oldest comes first
        kept.reverse()
        return kept if len(kept) else None

    def _plain(self, line: SnapshotLine) -> None:
        """A compressed body as it was before: the frame compresses it, and anybody reads it."""
        if line.flags != COMPRESSED:
            return
        entry = self._state.index.by_row.get(line.row)
        if entry is None:
            return
        raw = bytes(zstd().decompress(line.stored))
        link = self._state.reader.link_at(entry, line.seq)
        if link is None:
            return
        place = bodies.snapshot_place(entry.head.uid, line.seq, link)
        line.body, line.packed, line.flags = Raw(raw), "", 0
        line.sum = crc32(place.aad(), crc32(raw))

    def _write_feed(self, file: FrameFile, merged: set[int]) -> list[tuple[int, int]]:
        """The feed in frames: positions stay what they are."""
        state, index = self._state, self._state.index
        frames: list[tuple[int, int]] = []
        for first, place in index.feed_frames:
            if segment_of(place) not in merged:
                frames.append((first, place))
                continue
            try:
                entries = list(state.feed_frame(place))
            except Damaged:
                frames.append((first, place))
                continue
            frames.append((first, file.add([msgspec.json.encode(FeedLine(first, entries))])))
        for at in range(0, len(index.feed), _FEED_ENTRIES):
            entries = index.feed[at : at + _FEED_ENTRIES].tolist()
            first = index.feed_first + at
            frames.append((first, file.add([msgspec.json.encode(FeedLine(first, entries))])))
        self._feed_count = len(index.feed)
        return frames

    # --- the new places ------------------------------------------------------------------------

    def _swap(
        self,
        moved: dict[int, NewPlaces],
        names: dict[tuple[str, str, str], NewPlaces],
        feed: list[tuple[int, int]],
    ) -> None:
        index = self._state.index
        for row, made in moved.items():
            entry = index.by_row.get(row)
            if entry is None:
                continue
            first, last = made.written
            _refer(entry, made.frames, last)
            entry.snapshots, entry.base = made.snapshots, made.base
            if entry.processed is not None:
                late = [pair for pair in entry.processed if not first <= pair >> 32 <= last]
                entry.processed = array("Q", late) if late else None
            if entry.pending is not None and not len(entry.pending):
                entry.pending = None
        for (app, user, name), made in names.items():
            each = index.names.get((app, user), {}).get(name)
            if each is not None:
                _refer(each, made.frames, each.last)
        index.feed_frames = feed
        index.feed_first += self._feed_count
        del index.feed[: self._feed_count]
        index.tighten()
        self._state.forget_frames()


class FrameFile:
    """A compacted file being written: durable when the block ends."""

    def __init__(self, state: FilesState, path: Path, number: int) -> None:
        self._disk, self._path, self._number = state.disk, path, number
        self.size = 0

    def __enter__(self) -> FrameFile:
        self._handle = self._disk.open(self._path, write=True, create=True)
        self._disk.truncate(self._handle, 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._disk.sync(self._handle)  # before an index refers to it
                self._disk.sync_directory(self._path.parent)
        finally:
            self._disk.close(self._handle)

    def add(self, lines: list[bytes]) -> int:
        """Write lines as a frame, and return its place."""
        data = framed(lines)
        self._disk.write(self._handle, data, self.size)
        place = place_of(self._number, self.size)
        self.size += len(data)
        return place


def _bare(line: LogLine) -> bytes:
    """A line without what only the root log needs."""
    line.chain = ""
    line.left, line.begins = 0, False  # type: ignore[attr-defined]  # every kind has them
    return bytes(encode_line(line))


def _kept_upto(index: FilesIndex, entry: IndexedSession) -> int:
    """The last event of an entry that somebody can read: of a tombstone, what its forks read."""
    if index.living.get(entry.key) is entry:
        return entry.last
    return max([_floor(index, fork) for fork in entry.forks or ()], default=entry.floor)


def _floor(index: FilesIndex, fork: IndexedSession) -> int:
    """Up to where a fork reads its parent, itself living or read by one that is."""
    if index.by_row.get(fork.row) is not fork:
        return 0
    living = index.living.get(fork.key) is fork
    if living or any(_floor(index, each) for each in fork.forks or ()):
        return fork.floor
    return 0


def _first_written(entry: Places, merged: set[int]) -> int:
    """The first number that is written into the new file."""
    kept = entry.frames or ()
    for at in range(0, len(kept), 2):
        if segment_of(kept[at + 1]) in merged:
            return int(kept[at])
    return entry.single_first


def _seqs(entry: Places, merged: set[int], last: int) -> range:
    return range(_first_written(entry, merged), last + 1)


def _refer(entry: Places, frames: array[int] | None, last: int) -> None:
    entry.frames = frames
    entry.single_first, entry.single = last + 1, None
