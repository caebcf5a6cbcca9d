"""The root log: segments of JSON lines, appended to and synced once for all who commit together.

    DIRECTORY/log/00000001.jsonl        a segment: lines, and newlines where lines will be
    DIRECTORY/log/00000002.jsonl.zst    compacted: frames of zstd, each with lines of one session

A segment is filled with newlines ahead of its end, so that a sync has no size to write; `jq` and
`cat` pass over them. A place is the number of a file and an offset in it, in one integer.

What was written since the last sync may be left torn by a power cut. It is recognised when the log
is opened (see `RootLog.scan`) and overwritten with newlines before anything is appended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from limpet.store.coding.codec import Damaged, zstd
from limpet.store.oldfiles.disk import LogDisk
from limpet.store.oldfiles.lines import (
    CHAIN_START,
    CRC_START,
    LINE_END_BYTES,
    PLAIN_LINE,
    AnyLine,
    ErasedLine,
    LogLine,
    PlainLine,
    SegmentLine,
    crc_of,
    decode_any,
    encode_line,
    finished,
    follows,
    is_whole,
    next_chain,
)

SEGMENT_BYTES: Final = 16 * 2**20
FILL_BYTES_MIN: Final = 64 * 2**10  # newlines that are written ahead, twice as many each time
FILL_BYTES_MAX: Final = 4 * 2**20
FRAMES_CACHED: Final = 32
_PAGE: Final = 4_096
_READ: Final = 2_048  # bytes that are read for a line; more if it is longer
_FRAME_READ: Final = 16 * 2**10  # the same for a frame
_OFFSET_BITS: Final = 40
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_SKIPPED: Final = 0x184D2A50  # zstd passes over a frame that begins so
_frame_head: Final = struct.Struct("<IIII")  # the same, 8, and the lengths of the frame after it
FRAME_HEAD_BYTES: Final = _frame_head.size
_LEVEL: Final = 6
_COMPACTED: Final = 1 << 22  # the number of a compacted file is beyond those of segments


class LogEnd(NamedTuple):
    """The end of a log: what the next line follows."""

    segment: int
    offset: int
    n: int = 0
    chain: str = CHAIN_START
    crc: str = CRC_START


class LogFault(NamedTuple):
    """Something in the files that is not as it was written."""

    file: str
    problem: str


def place_of(segment: int, offset: int) -> int:
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> _OFFSET_BITS


def is_frame(place: int) -> bool:
    """True if a place is in a compacted file."""
    return place >> _OFFSET_BITS >= _COMPACTED


def compacted_number(count: int) -> int:
    """The number of the compacted file that is the `count`th."""
    return _COMPACTED + count


class RootLog:
    """The files of one log. Not thread-safe: callers hold the store's lock."""

    def __init__(self, directory: Path, disk: LogDisk, *, write: bool) -> None:
        self.directory, self._disk, self._write = directory / "log", disk, write
        self._handles: dict[int, int] = {}
        self._frames: dict[int, list[bytes]] = {}
        self.end = LogEnd(1, 0)
        self.synced = 0  # so many lines were durable before the last batch was written
        self.store = ""
        self._allocated = 0
        self._fill = FILL_BYTES_MIN
        self._begun = 0  # a segment that is being begun
        self._fresh = False  # the last segment was just begun: nothing was appended to it
        self._dirty = 0  # up to here the last segment may hold what was never acknowledged

    # --- appending -----------------------------------------------------------------------------

    def append(self, lines: Sequence[LogLine | PlainLine]) -> list[int]:
        """Write lines and sync them: their places. Raises OSError, and then none is appended.

        After a failure it is not known what the disk has. It is overwritten before anything else
        is written, so none of these lines can come back beside what follows.
        """
        if self._begun or self._dirty:
            self.clean()
        end = self.end
        number, chain, crc = end.n, end.chain.encode(), end.crc.encode()
        offset, before = end.offset, end.segment << _OFFSET_BITS  # as in `place_of`
        lines[0].begins = True  # type: ignore[union-attr]  # every kind has it
        parts: list[bytes] = []
        places: list[int] = []
        for line in lines:
            number += 1
            chain = chain[8:] + crc  # as in `next_chain`
            if type(line) is PlainLine:
                marks = line.marks if line.left or line.begins else b""
                text = PLAIN_LINE % (number, chain, marks, line.text)
            else:
                line.n, line.chain = number, chain.decode()  # type: ignore[union-attr]  # a LogLine
                text = encode_line(line)[:-1]
            crc = b"%08x" % crc32(text)
            parts += (text, b',"crc":"', crc, b'"}\n')
            places.append(before | offset)
            offset += len(text) + LINE_END_BYTES
        if offset > SEGMENT_BYTES and end.n and not self._fresh:
            self.roll()  # lines that are longer than a segment have one of their own
            return self.append(lines)
        self._put(end, b"".join(parts))
        self.synced, self._fresh = end.n, False
        self.end = LogEnd(end.segment, offset, number, chain.decode(), crc.decode())
        return places

    def _put(self, end: LogEnd, data: bytes) -> None:
        handle, stop = self.handle(end.segment), end.offset + len(data)
        try:
            if stop > self._allocated:
                fill = max(self._fill, stop - self._allocated)
                self._disk.write(handle, b"\n" * fill, self._allocated)
                self._allocated += fill
                self._fill = min(self._fill * 2, FILL_BYTES_MAX)
            self._disk.write(handle, data, end.offset)
            # One sync for everybody in the batch. Without it a power cut takes what was answered.
            self._disk.sync(handle)
        except BaseException:
            self._dirty = max(self._dirty, stop)
            raise

    def clean(self) -> None:
        """Overwrite what a failed write has left, from the beginning of its page on: the system may
        take that page for written though it is not. A segment whose beginning failed is removed:
        its first line would count a second time."""
        if self._begun:
            self._disk.unlink(self.path(self._begun))
            self._disk.sync_directory(self.directory)
            self._begun = 0
        if not self._dirty:
            return
        handle, offset = self.handle(self.end.segment), self.end.offset
        start = offset // _PAGE * _PAGE
        kept = self._disk.read(handle, offset - start, start)
        stop = max(self._dirty, self._allocated)
        self._disk.write(handle, kept + b"\n" * (stop - offset), start)
        self._disk.sync(handle)
        self._dirty, self._allocated = 0, stop

    def roll(self) -> None:
        """End the segment and begin the next: a file of its own, durable before it is used."""
        self.clean()
        self.trim()
        self._begin(self.end.segment + 1)

    def trim(self) -> None:
        """Cut the newlines off that were written ahead."""
        if self._write and self._allocated > self.end.offset and not self._dirty:
            handle = self.handle(self.end.segment)
            self._disk.truncate(handle, self.end.offset)
            self._disk.sync(handle)
            self._allocated = self.end.offset

    def start(self) -> None:
        """Make the first segment of a new log."""
        self._disk.make_directory(self.directory)
        self._begin(1)

    def _begin(self, number: int) -> None:
        self._begun = number
        handle = self._disk.open(self.path(number), write=True, create=True)
        try:
            line = SegmentLine(number=number, store=self.store, begins=True)
            line.n, line.chain = self.end.n + 1, next_chain(self.end.chain, self.end.crc)
            text, crc = finished(encode_line(line))
            self._disk.truncate(handle, 0)  # a process that died here has left a part of one
            self._disk.write(handle, text + b"\n" * (FILL_BYTES_MIN - len(text)), 0)
            self._disk.sync(handle)
            self._disk.sync_directory(self.directory)  # or the file itself may be gone
        except BaseException:
            self._disk.close(handle)
            raise
        self._handles[number] = handle
        self.end = LogEnd(number, len(text), line.n, line.chain, crc)
        self._allocated, self._fill = FILL_BYTES_MIN, FILL_BYTES_MIN
        self._begun, self._fresh = 0, True

    # --- reading -------------------------------------------------------------------------------

    def line(self, place: int) -> bytes:
        """The line at a place. Raises Damaged."""
        segment, offset = segment_of(place), place & _OFFSET
        try:
            handle = self.handle(segment)
        except FileNotFoundError as error:
            raise Damaged(f"is in {self.path(segment).name}, which is missing") from error
        size, data = _READ, b""
        while True:
            data = self._disk.read(handle, size, offset)
            cut = data.find(b"\n")
            if cut >= 0 or len(data) < size:
                break
            size *= 4
        text = data[:cut] if cut >= 0 else data
        if not is_whole(text):
            raise Damaged(f"is damaged in {self.path(segment).name} at byte {offset:,}")
        return text

    def frame(self, place: int) -> list[bytes]:
        """The lines of a frame. Raises Damaged."""
        cached = self._frames.get(place)
        if cached is not None:
            return cached
        try:
            raw = self._unpacked(place)
        except FileNotFoundError as error:
            name = self.path(segment_of(place)).name
            raise Damaged(f"is in {name}, which is missing") from error
        except (zstd().ZstdError, EOFError, ValueError, struct.error) as error:
            name, offset = self.path(segment_of(place)).name, place & _OFFSET
            raise Damaged(f"is damaged in {name} at byte {offset:,}") from error
        lines = raw.split(b"\n")[:-1]
        if len(self._frames) >= FRAMES_CACHED:
            self._frames.clear()
        self._frames[place] = lines
        return lines

    def _unpacked(self, place: int) -> bytes:
        """The content of a frame. Raises ValueError, ZstdError and others if it is not whole."""
        handle, offset = self.handle(segment_of(place)), place & _OFFSET
        data = self._disk.read(handle, _FRAME_READ, offset)
        magic, _, length, raw_length = _frame_head.unpack_from(data)
        if magic != _SKIPPED:
            raise ValueError("no frame begins here")
        stop = FRAME_HEAD_BYTES + length
        if stop > len(data) == _FRAME_READ:
            data += self._disk.read(handle, stop - len(data), offset + len(data))
        raw = bytes(zstd().decompress(data[FRAME_HEAD_BYTES:stop]))
        if len(raw) != raw_length:
            raise ValueError("its length is another")
        return raw

    def path(self, number: int) -> Path:
        if number >= _COMPACTED:
            return self.directory / f"{number - _COMPACTED:08d}.jsonl.zst"
        return self.directory / f"{number:08d}.jsonl"

    # --- opening -------------------------------------------------------------------------------

    def scan(
        self, end: LogEnd, apply: Callable[[int, AnyLine], None], *, repair: bool
    ) -> list[LogFault]:
        """Read the lines beyond an end, whole groups of them, and go on from there.

        What cannot be read is torn if nothing that was written after a sync follows it: then
        nobody was told of it. Otherwise it is damage: it is passed over and reported. With
        `repair` what is torn is overwritten with newlines.
        """
        scan = _Scan(self, apply, end)
        number = end.segment
        while True:
            path = self.path(number)
            if not path.exists():
                later = [each for each in self.segments() if each > number]
                if later or (number == end.segment and end.offset):
                    scan.faults.append(LogFault(path.name, "is missing"))
                if not later:
                    break
                number = min(later)
                continue
            start = end.offset if number == end.segment else 0
            scan.segment(number, self._disk.read_all(self.handle(number), start), start)
            number += 1
        self.end = scan.end
        if repair:
            self._settle(scan)
        return scan.faults

    def require(self, lines: int) -> LogFault | None:
        """Compare the log with the number of lines that it is known to have had: the fault if some
        are gone. The next line is numbered beyond them, so the gap is found again at every
        opening."""
        if self.end.n >= lines:
            return None
        problem = f"ends with line {self.end.n:,}; line {lines:,} was there when it was closed"
        self.end = self.end._replace(n=lines)
        return LogFault(self.path(self.end.segment).name, problem)

    def _settle(self, scan: _Scan) -> None:
        """Make the last segment ready to be appended to."""
        last = max(self.segments(), default=0)
        if last > self.end.segment or not self.end.offset:  # begun, and no line of it is whole
            if scan.unread:
                # Its first line is not ours: keep it as it is, and go on behind it.
                self._begin(last + 1)
                return
            if last in self._handles:
                self._disk.close(self._handles.pop(last))
            self._begin(last)
            return
        if not self.path(self.end.segment).exists():
            self._begin(self.end.segment + 1)
            return
        handle = self.handle(self.end.segment)
        self._allocated = self._disk.size(handle)
        if scan.last_byte > self.end.offset:
            self._dirty = max(scan.last_byte, self._allocated)
            self.clean()

    def segments(self) -> list[int]:
        """The numbers of the segments that are there, ascending."""
        return sorted(int(n[:8]) for n in self._names() if len(n) == 14 and n.endswith(".jsonl"))

    def compacted_numbers(self) -> list[int]:
        """The numbers of the compacted files that are there, ascending."""
        return sorted(_COMPACTED + int(n[:8]) for n in self._names() if n.endswith(".jsonl.zst"))

    def bytes_of(self, number: int) -> int:
        """The size of a file."""
        return self._disk.size(self.handle(number))

    def _names(self) -> list[str]:
        return [p.name for p in self.directory.iterdir()] if self.directory.is_dir() else []

    def forget(self, numbers: Sequence[int]) -> None:
        """Close files and remove them: nothing refers to them any more."""
        for number in numbers:
            if (handle := self._handles.pop(number, None)) is not None:
                self._disk.close(handle)
            self._disk.unlink(self.path(number))
        self._frames.clear()

    def overwrite(self, place: int) -> None:
        """Put a line in the place of one that is erased: as long, and nothing of it is left. A line
        that is too short for that has numbers alone, and stays."""
        segment, offset = segment_of(place), place & _OFFSET
        try:
            text = self.line(place)
        except Damaged:
            handle = self.handle(segment)
            data = self._disk.read(handle, SEGMENT_BYTES * 2, offset)
            self._disk.write(handle, b" " * max(0, data.find(b"\n")), offset)
            return
        line = decode_any(text)
        stub = ErasedLine(n=line.n, was=crc_of(text), event=text.startswith(b'{"op":"event"'))
        stub.chain, stub.left, stub.begins = line.chain, line.left, line.begins
        put, _ = finished(encode_line(stub), pad=len(text) + 1)
        if len(put) == len(text) + 1:  # a longer one would reach into the next line
            self._disk.write(self.handle(segment), put, offset)

    def overwrite_frame(self, place: int) -> None:
        """Overwrite a frame with a frame of zeros, which zstd skips."""
        segment, offset = segment_of(place), place & _OFFSET
        handle = self.handle(segment)
        head = self._disk.read(handle, FRAME_HEAD_BYTES, offset)
        magic, skipped, length, _ = _frame_head.unpack(head)
        if (magic, skipped) == (_SKIPPED, 8):  # else it was overwritten before
            put = struct.pack("<II", _SKIPPED, 8 + length) + bytes(8 + length)
            self._disk.write(handle, put, offset)
        self._frames.pop(place, None)

    def sync(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._disk.sync(self.handle(number))

    def close(self) -> None:
        for handle in self._handles.values():
            self._disk.close(handle)
        self._handles.clear()
        self._frames.clear()

    def handle(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            handle = self._handles[number] = self._disk.open(self.path(number), write=self._write)
        return handle


def framed(lines: Sequence[bytes]) -> bytes:
    """Lines as a frame, with the lengths by which it is read."""
    raw = b"\n".join(lines) + b"\n"
    tools = zstd()
    of = tools.CompressionParameter
    packed: bytes = tools.compress(raw, options={of.compression_level: _LEVEL, of.checksum_flag: 1})
    return _frame_head.pack(_SKIPPED, 8, len(packed), len(raw)) + packed


class _Scan:
    """One reading of the end of a log."""

    def __init__(self, log: RootLog, apply: Callable[[int, AnyLine], None], end: LogEnd) -> None:
        self._log, self._apply = log, apply
        self.end = end
        self.faults: list[LogFault] = []
        self.last_byte = 0  # where what was written into the last segment ends
        self.unread = False  # the last segment holds lines that are not of this log
        self._group: list[tuple[int, AnyLine, LogEnd]] = []
        self._doubt: list[LogFault] = []

    def segment(self, number: int, data: bytes, offset: int) -> None:
        name, started = self._log.path(number).name, offset > 0
        self.last_byte, self.unread = 0, False
        torn: LogFault | None = None  # its first line cannot be read
        for at, text in _pieces(data, offset):
            line = read_line(text)
            self.last_byte = at + len(text) + 1
            if not started:
                started = isinstance(line, SegmentLine) and line.number == number
                if line is None and not started:  # torn while it was begun, if nothing follows
                    torn = torn or LogFault(name, f"is damaged at byte {at:,}")
                    continue
                if not started and torn is not None and line is not None:
                    started = line.n > self._last.n + 1
                    self.faults += [torn] if started else []
                if not started:
                    self.unread = True
                    self.faults.append(LogFault(name, f"is not segment {number} of this log"))
                    return
            if line is None:
                self._doubt.append(LogFault(name, f"is damaged at byte {at:,}"))
                continue
            self._add(number, at, text, line)

    @property
    def _last(self) -> LogEnd:
        return self._group[-1][2] if self._group else self.end

    def _add(self, number: int, at: int, text: bytes, line: AnyLine) -> None:
        name = self._log.path(number).name
        if line.begins:  # all before it was synced, so what is missing there is damage
            self.faults += self._doubt
            self._doubt.clear()
            self._flush()
        last = self._last
        if line.n <= last.n:
            self.faults.append(LogFault(name, f"has line {line.n:,} a second time"))
            return
        if line.n != last.n + 1 and not self._doubt:
            self.faults.append(LogFault(name, f"lacks lines before line {line.n:,}"))
        elif not self._doubt and not follows(line, last.chain, last.crc):
            self.faults.append(LogFault(name, f"has another line {line.n:,} than the chain says"))
        crc = line.was if isinstance(line, ErasedLine) else crc_of(text)
        after = LogEnd(number, at + len(text) + 1, line.n, line.chain, crc)
        self._group.append((place_of(number, at), line, after))
        if not line.left and not self._doubt:
            self._flush()

    def _flush(self) -> None:
        for place, line, after in self._group:
            self._apply(place, line)
            self.end = after
        self._group.clear()


def _pieces(data: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes between newlines, with their positions."""
    start = 0
    while start < len(data):
        cut = data.find(b"\n", start)
        cut = len(data) if cut < 0 else cut
        if cut > start:
            yield offset + start, data[start:cut]
        start = cut + 1
        if data.startswith(b"\n\n\n\n", start):  # written ahead: pass over it
            rest = data[start:].lstrip(b"\n")
            start = len(data) - len(rest)


def read_line(text: bytes) -> AnyLine | None:
    """Return the content of a line; None if it is not whole."""
    if not is_whole(text):
        return None
    try:
        line: AnyLine = decode_any(text)
    except msgspec.MsgspecError:
        return None
    return line
