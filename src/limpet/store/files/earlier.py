"""Stores of formats 1 and 2, as earlier releases wrote them: read once, and written as a journal.

Those were a log of the same lines, which compaction moved into frames of zstd beside an index of
them. Everything is written again as one compacted segment, and then the directory is one of this
format. A process that dies before leaves it as it was.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from limpet.errors import StoreCorrupt
from limpet.store.coding.bodies import UNREADABLE
from limpet.store.coding.codec import zstd
from limpet.store.files.disk import LogDisk
from limpet.store.files.journal import JournalEnd, JournalFiles, SegmentWriter
from limpet.store.files.lines import (
    START,
    AnyLine,
    BlobLine,
    ChunkLine,
    ErasedLine,
    EventLine,
    FeedLine,
    LostLine,
    MacLine,
    SegmentLine,
    TombLine,
    decode_any,
    is_whole,
    owner_by_text,
)
from limpet.store.memory.changes import (
    ColdChange,
    EraseChange,
    LeaseChange,
    MarkChange,
    PinChange,
    RingChange,
)
from limpet.store.sqlite.rows import unpack_id

CURRENT: Final = "current.json"
BLOBS: Final = "blobs"
_COMPACTED: Final = 1 << 22  # the number of a file of frames is beyond those of segments
_OFFSET_BITS: Final = 40
_frame_head: Final = struct.Struct("<IIII")
_Head = tuple[Any, int, bytes, int, int, int, Any, int, int, int | None, str | None, int | None]
_unpack_head: Final = msgspec.msgpack.Decoder(_Head).decode


class _Outside(msgspec.Struct):
    n: int = 0
    left: int = 0
    begins: bool = False


class _EarlierSession(msgspec.Struct, array_like=True):
    row: int
    key: tuple[str, str, str]
    head: bytes
    living: bool
    mac: bytes | None
    base: int
    parent: int
    frames: bytes
    single: bytes
    first: int
    single_first: int
    pending: bytes
    processed: bytes
    snapshots: bytes
    sizes: tuple[int, int]
    pins: dict[int, int] | None
    blobs: dict[str, tuple[bytes, int, int, str, int, bytes, int]] | None
    cold: int
    hot: tuple[int, ...]


class _Name(msgspec.Struct, array_like=True):
    app: str
    user: str
    name: str
    frames: bytes
    single: bytes
    single_first: int
    size: int


class _Index(msgspec.Struct, array_like=True):
    end: tuple[int, int, int, str, str]
    rows: int
    ended: int
    compacted: int
    ring: str | None
    feed: bytes
    feed_first: int
    feed_frames: list[tuple[int, int]]
    sessions: list[_EarlierSession]
    names: list[_Name]
    erased: list[tuple[bytes, int, bytes, int, int]]
    marks: list[tuple[str, str, int, int]]


class _Current(msgspec.Struct):
    index: str
    sha256: str


class _FeedFrame(msgspec.Struct):
    first: int
    entries: list[int]


def written_again(journal: JournalFiles, into: Path, now_us: int) -> None:
    """Write a store of an earlier format into a compacted segment in a directory. Raises
    StoreCorrupt, OSError."""
    number = max(journal.segments(), default=0) + 1
    target = JournalFiles(into, journal.disk, write=True)
    target.store = journal.store
    target.disk.make_directory(target.directory)
    with SegmentWriter(target, number, now_us) as writer:
        for line in EarlierStore(journal.root, journal.disk).checked_lines():
            writer.add(line)
        writer.finish(JournalEnd(number, 0, 0, START))
    target.replace(number)
    target.remove(())
    target.close()


def unreadable(root: Path, problem: str) -> StoreCorrupt:
    advice = "Keep a copy of the directory and restore a backup"
    return StoreCorrupt(str(root), problem, advice)


class EarlierStore:
    """One reading of such a store."""

    def __init__(self, root: Path, disk: LogDisk) -> None:
        self._root, self._disk = root, disk
        self._number = 0  # of the last event in the feed
        self._frame = lru_cache(maxsize=64)(self._unpacked)

    def checked_lines(self) -> Iterator[AnyLine]:
        """Yield the same. Raises StoreCorrupt if the index is not what was written."""
        try:
            yield from self.lines()
        except (*UNREADABLE, zstd().ZstdError, ArithmeticError, struct.error) as error:
            if isinstance(error, StoreCorrupt):
                raise
            raise unreadable(self._root, f"its index cannot be read ({error})") from error

    def lines(self) -> Iterator[AnyLine]:
        """Yield the lines of a journal that has the same in it."""
        end = (0, 0)
        index = self._index()
        if index is not None:
            yield from self._of_index(index)
            end = (index.end[0], index.end[1])
        yield from self._of_segments(*end)

    # --- the log -------------------------------------------------------------------------------

    def _of_segments(self, first: int, offset: int) -> Iterator[AnyLine]:
        """The lines that follow the index: whole groups, and nothing that is torn."""
        waiting: list[AnyLine] = []
        torn: list[bytes] = []
        last = 0
        names = sorted((self._root / "log").glob("????????.jsonl"))
        for path in [each for each in names if int(each.stem) >= first]:
            content = self._disk.read_file(path)[offset if int(path.stem) == first else 0 :]
            for text in content.split(b"\n"):
                outside = _outside()(text) if text and is_whole(text) else None
                if outside is None:
                    torn += [text] if text.strip(b" \x00") else []
                    continue
                line = decode_any(text)
                if isinstance(line, SegmentLine) and line.compacted:
                    return  # of an attempt to write it again
                if outside.begins:
                    yield from self._counted(waiting)
                    waiting.clear()
                    if torn or (last and outside.n != last + 1):
                        yield from _lost(torn)
                    torn.clear()
                last = outside.n
                waiting.append(line)
                if not outside.left and not torn:
                    yield from self._counted(waiting)
                    waiting.clear()

    def _counted(self, lines: list[AnyLine]) -> Iterator[AnyLine]:
        for line in lines:
            if isinstance(line, SegmentLine):
                continue
            if isinstance(line, ErasedLine):
                self._number += line.event
                if line.event:
                    yield FeedLine(self._number + 1)
                continue
            self._number += isinstance(line, EventLine)
            if isinstance(line, BlobLine):
                yield from self._chunks(line)
            yield line

    def _chunks(self, blob: BlobLine) -> Iterator[ChunkLine]:
        name = sha256(blob.upload.encode()).hexdigest()[:32]
        place = self._root / BLOBS / str(blob.row) / name
        for number in range(blob.chunks):
            line = ChunkLine(row=blob.row, upload=blob.upload, number=number)
            try:
                packed = msgspec.msgpack.decode(
                    self._disk.read_file(place / str(number)), type=tuple[int, bytes, int]
                )
                line.put(*packed, plain=False)
            except (FileNotFoundError, msgspec.MsgspecError):
                line.sum = 1  # as damaged as it was
            yield line

    # --- the index -----------------------------------------------------------------------------

    def _index(self) -> _Index | None:
        try:
            current = msgspec.json.decode(self._disk.read_file(self._root / CURRENT), type=_Current)
        except FileNotFoundError:
            segments = sorted((self._root / "log").glob("????????.jsonl"))
            first = int(segments[0].stem) if segments else 1
            if first > 1 or list((self._root / "log").glob("*.zst")):
                raise unreadable(self._root, f"its {CURRENT} is missing") from None
            return None
        except msgspec.MsgspecError as error:
            raise unreadable(self._root, f"its {CURRENT} cannot be read ({error})") from error
        try:
            content = self._disk.read_file(self._root / current.index)
            if sha256(content).hexdigest() != current.sha256:
                raise unreadable(self._root, "the checksum of its index does not match")
            return msgspec.msgpack.decode(zstd().decompress(content), type=_Index)
        except (OSError, msgspec.MsgspecError, zstd().ZstdError) as error:
            problem = f"its index {current.index} cannot be read ({error})"
            raise unreadable(self._root, problem) from error

    def _of_index(self, index: _Index) -> Iterator[AnyLine]:
        sessions = {each.row: each for each in index.sessions}
        begun: set[int] = set()
        for number, row, seq in self._feed(index):
            session = sessions.get(row)
            if session is None:
                continue
            line = self._event(session, seq)
            if line is None:
                yield LostLine(row)
                continue
            if row not in begun:
                begun.add(row)
                if session.base and (base := self._line(session.base)) is not None:
                    yield base
            if number > self._number + 1:
                yield FeedLine(number)
            self._number = number
            yield line
        for session in index.sessions:
            yield from self._of_session(session)
        for name in index.names:
            places = _Places(name.frames, name.single, 1, name.single_first)
            for version in range(1, places.last + 1):
                if (written := self._at(places, version)) is not None:
                    yield written
        for mark, version, link, at_us, kept in index.erased:
            yield EraseChange(certificates=((mark.hex(), version, link.hex(), at_us, kept),))
        for space, of, value, until in index.marks:
            yield MarkChange(space, of, value, until)
        if index.ring is not None:
            yield RingChange(index.ring)
        first = index.feed_first + len(index.feed) // 8
        yield FeedLine(first)
        self._number = first - 1

    def _feed(self, index: _Index) -> Iterator[tuple[int, int, int]]:
        for first, place in index.feed_frames:
            frame = self._frame(place)
            if frame:
                entries = msgspec.json.decode(frame[0], type=_FeedFrame).entries
                for number, item in enumerate(entries, first):
                    yield number, item >> 32, item & 0xFFFF_FFFF
        for number, item in enumerate(_numbers(index.feed), index.feed_first):
            yield number, item >> 32, item & 0xFFFF_FFFF

    def _event(self, session: _EarlierSession, seq: int) -> EventLine | None:
        places = _Places(session.frames, session.single, session.first, session.single_first)
        line = self._at(places, seq)
        if not isinstance(line, EventLine) or line.seq != seq:
            return None
        head = _unpack_head(session.head)
        line.session = session.key
        if seq == session.first:
            line.floor, line.parent = session.first - 1, session.parent
            line.created = head[3]
        if seq == head[1]:  # what became of the head was in the index alone
            line.active, line.facts = head[5], msgspec.Raw(msgspec.json.encode(head[6] or {}))
        return line

    def _of_session(self, session: _EarlierSession) -> Iterator[AnyLine]:
        row = session.row
        head = _unpack_head(session.head)
        uid, version, link, created, updated, active, _, floor, *lease = head
        fence, lease_us, worker, since = lease
        if not session.living:
            times = (created, updated, active, lease_us or 0)
            made = (unpack_id(uid), version, link.hex(), times, floor, worker or "deleted")
            yield TombLine(row, session.key, *made)
        else:
            yield LeaseChange(row, fence, lease_us, worker, since)
        for _, place in _pairs(session.snapshots) if session.living else ():
            if (line := self._line(place)) is not None:
                yield line
        for number, seq in (session.pins or {}).items():
            yield PinChange(row, seq, number)
        if session.cold:
            yield ColdChange(row, session.cold, tuple(session.hot))
        if session.mac is not None:
            yield MacLine(row, session.mac.hex())
        for hash, (_, at, chunks, upload, flags, body, crc) in (session.blobs or {}).items():
            blob = BlobLine(row=row, hash=hash, version=at, chunks=chunks, upload=upload)
            blob.put(flags, body, crc)
            yield from self._chunks(blob)
            yield blob

    # --- places --------------------------------------------------------------------------------

    def _at(self, places: _Places, number: int) -> AnyLine | None:
        place_in = places.find(number)
        if place_in is None:
            return None
        place, at = place_in
        if at < 0:
            return self._line(place)
        frame = self._frame(place)
        return _decoded(frame[at]) if at < len(frame) else None

    def _line(self, place: int) -> AnyLine | None:
        """The line at a place, or the only one of a frame."""
        number, offset = place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)
        if number >= _COMPACTED:
            frame = self._frame(place)
            return _decoded(frame[0]) if frame else None
        try:
            content = self._content(self._root / "log" / f"{number:08d}.jsonl")
        except FileNotFoundError:
            return None
        text = content[offset : content.find(b"\n", offset)]
        return _decoded(text) if is_whole(text) else None

    def _unpacked(self, place: int) -> list[bytes]:
        """The lines of a frame; none if it cannot be read."""
        number, offset = (place >> _OFFSET_BITS) - _COMPACTED, place & ((1 << _OFFSET_BITS) - 1)
        try:
            content = self._content(self._root / "log" / f"{number:08d}.jsonl.zst")
            _, _, length, _ = _frame_head.unpack_from(content, offset)
            start = offset + _frame_head.size
            raw: bytes = zstd().decompress(content[start : start + length])
        except (OSError, zstd().ZstdError, EOFError, ValueError, struct.error):
            return []
        return raw.split(b"\n")[:-1]

    @lru_cache(maxsize=4)  # noqa: B019  # as long as the reading
    def _content(self, path: Path) -> bytes:
        return self._disk.read_file(path)


class _Places:
    """The places of numbered lines: in frames of many, and after them each alone."""

    def __init__(self, frames: bytes, single: bytes, first: int, single_first: int) -> None:
        self.first, self.single_first = first, single_first
        self._frames, self._single = _pairs(frames), _numbers(single)

    @property
    def last(self) -> int:
        return self.single_first + len(self._single) - 1

    def find(self, number: int) -> tuple[int, int] | None:
        """The place of one and its index in the frame (-1: alone); None if it is missing."""
        if number >= self.single_first:
            at = number - self.single_first
            place = self._single[at] if at < len(self._single) else 0
            return (place, -1) if place else None
        before = [pair for pair in self._frames if pair[0] <= number]
        return (before[-1][1], number - before[-1][0]) if before else None


def _numbers(content: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(content)
    return numbers


def _pairs(content: bytes) -> list[tuple[int, int]]:
    numbers = _numbers(content)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _decoded(text: bytes) -> AnyLine | None:
    try:
        line: AnyLine = decode_any(text)
    except msgspec.MsgspecError:
        return None
    return line


@cache
def _outside() -> Any:
    return msgspec.json.Decoder(_Outside).decode


def _lost(torn: list[bytes]) -> Iterator[LostLine]:
    """Lines that could not be read: whose they were, as far as they still say it."""
    owners = [owner_by_text(text) for text in torn]
    for owner in owners:
        if owner is not None:
            yield LostLine(owner[0].row)
    if None in owners or not owners:
        yield LostLine()
