"""The journal: segments of JSON lines, appended to and synced once for all who commit together.

    DIRECTORY/log/00000001.jsonl        a segment: lines, and newlines where lines will be

A segment is filled with newlines ahead of its end, so that a sync has no size to write; `jq` and
`cat` pass over them. A place is the number of a segment and an offset in it, in one integer.

What was written since the last sync may be left torn by a power cut. It is recognised when the
journal is read (see `_Scan`) and overwritten with newlines before anything is appended. What cannot
be read and was durable is lost: the reader is told whose it was, as far as the lines around it say.

A compacted segment stands for all with smaller numbers. It is written beside them, synced and
renamed, so a process that dies leaves either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from limpet.store.coding.codec import Damaged
from limpet.store.files.disk import LogDisk
from limpet.store.files.lines import (
    LINE_END_BYTES,
    START,
    AnyLine,
    ErasedLine,
    EventLine,
    FoldedLine,
    Outside,
    Owned,
    PlainLine,
    SegmentLine,
    crc_of,
    decode_any,
    decode_event,
    finished,
    is_whole,
    outside_of,
    owner_by_text,
    owner_in,
    text_of,
    was_written,
    whose,
)
from limpet.store.memory.changes import Names

SEGMENT_BYTES: Final = 16 * 2**20
FILL_BYTES_MIN: Final = 64 * 2**10  # newlines that are written ahead, twice as many each time
FILL_BYTES_MAX: Final = 4 * 2**20
CLOSED: Final = "closed.json"
_PAGE: Final = 4_096
_READ: Final = 2_048  # bytes that are read for a line; more if it is longer
_BLOCK: Final = 4 * 2**20  # bytes that are read at a time when all are
_OFFSET_BITS: Final = 40
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
Group: TypeAlias = Sequence[AnyLine | PlainLine]


class JournalEnd(NamedTuple):
    """The end of a journal: what the next line follows."""

    segment: int
    offset: int
    n: int = 0
    chain: str = START


class ClosedJournal(msgspec.Struct, frozen=True):
    """The state of the journal when it was closed: how many lines it had, how many without the last
    batch, which looks like a torn one if it is cut off, and what a next line would follow."""

    lines: int
    synced: int = 0
    chain: str = "*."  # unknown
    segment: int = 0  # the last one


class Fault(NamedTuple):
    """Something in the files that is not as it was written."""

    file: str
    problem: str


class Loss(NamedTuple):
    """Lines that cannot be read: whose they were, if that is known, and how many nobody knows."""

    owners: tuple[tuple[Owned, Names | None], ...]
    unknown: bool
    missing: int


def place_of(segment: int, offset: int) -> int:
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> _OFFSET_BITS


class JournalFiles:
    """The segments of one store. Not thread-safe: callers see to it."""

    def __init__(self, directory: Path, disk: LogDisk, *, write: bool) -> None:
        self.root, self.directory, self.disk = directory, directory / "log", disk
        self._write = write
        self._handles: dict[int, int] = {}
        self.end = JournalEnd(1, 0)
        self.synced = 0  # so many lines were durable before the last batch was written
        self.store = ""
        self._allocated = 0
        self._fill = FILL_BYTES_MIN
        self._begun = 0  # a segment that is being begun
        self._fresh = False  # the last segment was just begun: nothing was appended to it
        self._dirty = 0  # up to here the last segment may hold what was never acknowledged

    # --- appending -----------------------------------------------------------------------------

    def append(self, groups: Sequence[Group]) -> list[int]:
        """Write groups of lines and sync them: the place of each line. Raises OSError, and then
        none is appended.

        After a failure it is not known what the disk has. It is overwritten before anything else
        is written, so none of these lines can come back beside what follows.
        """
        if self._begun or self._dirty:
            self.clean()
        end = self.end
        n, chain, offset, begins = end.n, end.chain, end.offset, True
        before = end.segment << _OFFSET_BITS  # as in `place_of`
        parts: list[bytes] = []
        places: list[int] = []
        for group in groups:
            left = len(group)
            for line in group:
                n, left = n + 1, left - 1
                text = text_of(line, n, chain, left=left, begins=begins)
                crc = b"%08x" % crc32(text)
                parts += (text, b',"crc":"', crc, b'"}\n')
                places.append(before | offset)
                offset += len(text) + LINE_END_BYTES
                chain, begins = f"{whose(line)}.{crc.decode()}", False
        if offset > SEGMENT_BYTES and end.n and not self._fresh:
            self.roll()  # lines that are longer than a segment have one of their own
            return self.append(groups)
        self._put(end, b"".join(parts))
        self.synced, self._fresh = end.n, False
        self.end = JournalEnd(end.segment, offset, n, chain)
        return places

    def _put(self, end: JournalEnd, data: bytes) -> None:
        handle, stop = self.handle(end.segment), end.offset + len(data)
        try:
            if stop > self._allocated:
                fill = max(self._fill, stop - self._allocated)
                self.disk.write(handle, b"\n" * fill, self._allocated)
                self._allocated += fill
                self._fill = min(self._fill * 2, FILL_BYTES_MAX)
            self.disk.write(handle, data, end.offset)
            # One sync for everybody in the batch. Without it a power cut takes what was answered.
            self.disk.sync(handle)
        except BaseException:
            self._dirty = max(self._dirty, stop)
            raise

    def clean(self) -> None:
        """Overwrite what a failed write has left, from the beginning of its page on: the system may
        take that page for written though it is not. A segment whose beginning failed is removed:
        its first line would count a second time."""
        if self._begun:
            self.disk.unlink(self.path(self._begun))
            self.disk.sync_directory(self.directory)
            self._begun = 0
        if not self._dirty:
            return
        handle, offset = self.handle(self.end.segment), self.end.offset
        start = offset // _PAGE * _PAGE
        kept = self.disk.read(handle, offset - start, start)
        stop = max(self._dirty, self._allocated)
        self.disk.write(handle, kept + b"\n" * (stop - offset), start)
        self.disk.sync(handle)
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
            self.disk.truncate(handle, self.end.offset)
            self.disk.sync(handle)
            self._allocated = self.end.offset

    def start(self) -> None:
        """Make the first segment of a new journal."""
        self.disk.make_directory(self.directory)
        self._begin(1)

    def _begin(self, number: int) -> None:
        self._begun = number
        handle = self.disk.open(self.path(number), write=True, create=True)
        try:
            line, n = SegmentLine(number=number, store=self.store), self.end.n + 1
            text, crc = finished(text_of(line, n, self.end.chain, left=0, begins=True))
            self.disk.truncate(handle, 0)  # a process that died here has left a part of one
            self.disk.write(handle, text + b"\n" * (FILL_BYTES_MIN - len(text)), 0)
            self.disk.sync(handle)
            self.disk.sync_directory(self.directory)  # or the file itself may be gone
        except BaseException:
            self.disk.close(handle)
            raise
        self._handles[number] = handle
        self.end = JournalEnd(number, len(text), n, f"-.{crc}")
        self._allocated, self._fill = FILL_BYTES_MIN, FILL_BYTES_MIN
        self._begun, self._fresh = 0, True

    def note_closed(self) -> None:
        """Note how far the journal goes: what is missing of it later was lost."""
        end = self.end
        content = (
            msgspec.json.encode(ClosedJournal(end.n, self.synced, end.chain, end.segment)) + b"\n"
        )
        self.disk.put_file(self.root / CLOSED, content, durable=False)

    # --- reading -------------------------------------------------------------------------------

    def line(self, place: int) -> bytes:
        """The line at a place. Raises Damaged."""
        segment, offset = segment_of(place), place & _OFFSET
        try:
            handle = self.handle(segment)
        except FileNotFoundError as error:
            raise Damaged(f"is in {self.path(segment).name}, which is missing") from error
        size = _READ
        while True:
            data = self.disk.read(handle, size, offset)
            cut = data.find(b"\n")
            if cut >= 0 or len(data) < size:
                break
            size *= 8
        text = data[:cut] if cut >= 0 else data
        if not is_whole(text):
            raise Damaged(f"is damaged in {self.path(segment).name} at byte {offset:,}")
        return text

    def texts(self, number: int, offset: int = 0) -> Iterator[tuple[int, bytes, bool]]:
        """Yield what stands between newlines in a segment: its offset, the bytes, and False for the
        last if no newline follows."""
        handle, at, rest = self.handle(number), offset, b""
        while data := self.disk.read(handle, _BLOCK, at):
            begin, data = at - len(rest), rest + data
            at = begin + len(data)
            start = 0
            while (cut := data.find(b"\n", start)) >= 0:
                if cut > start:
                    yield begin + start, data[start:cut], True
                start = cut + 1
                if data.startswith(b"\n\n\n\n", start):  # written ahead: pass over it
                    start = len(data) - len(data[start:].lstrip(b"\n"))
            rest = data[start:]
        if rest:
            yield at - len(rest), rest, False

    def path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.jsonl"

    def segments(self) -> list[int]:
        """The numbers of the segments that are there, ascending."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir()]
        return sorted(int(n[:8]) for n in names if len(n) == 14 and n.endswith(".jsonl"))

    def inode(self, number: int) -> int:
        """A number that is another once the segment was written again; 0 if it is not there."""
        try:
            return self.path(number).stat().st_ino
        except FileNotFoundError:
            return 0

    def bytes_of(self, number: int) -> int:
        """The size of a segment."""
        if number == self.end.segment:
            return self.end.offset
        return self.disk.size(self.handle(number))

    def handle(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            handle = self._handles[number] = self.disk.open(self.path(number), write=self._write)
        return handle

    def close(self) -> None:
        for handle in self._handles.values():
            self.disk.close(handle)
        self._handles.clear()

    # --- opening -------------------------------------------------------------------------------

    def scan(
        self,
        end: JournalEnd,
        apply: Callable[[int, AnyLine], None],
        lose: Callable[[Loss], None],
        *,
        repair: bool,
        beside: bool = False,
    ) -> list[Fault]:
        """Read the lines beyond an end, whole groups of them, and go on from there.

        With `repair` what is torn is overwritten with newlines. `beside` a process that writes, the
        end may be half written: nothing there is lost.
        """
        scan = _Scan(self, apply, lose, end)
        number, last = end.segment, 0
        while True:
            path = self.path(number)
            if not path.exists():
                later = [each for each in self.segments() if each > number]
                if later or (number == end.segment and end.offset):
                    scan.faults.append(Fault(path.name, "is missing"))
                if not later:
                    break
                number = min(later)
                continue
            last = number
            scan.segment(number, end.offset if number == end.segment else 0)
            number += 1
        closed = self._closed()
        if not beside:
            scan.finish(closed, last)
        self.end = scan.end
        whole = closed.lines == self.end.n and not scan.faults
        self.synced = closed.synced if whole else self.end.n
        if repair:
            self._settle(scan, last)
        return scan.faults

    def faults(self, first: int) -> list[Fault]:
        """Read every line from a segment on up to the end: what is not as it was written."""
        scan = _Scan(self, lambda *_: None, lambda _: None, JournalEnd(first, 0))
        for number in self.segments():
            if first <= number <= self.end.segment:  # another process may begin the next
                until = self.end.offset if number == self.end.segment else None
                scan.segment(number, 0, until)
        return scan.faults

    def _closed(self) -> ClosedJournal:
        try:
            content = self.disk.read_file(self.root / CLOSED)
            return msgspec.json.decode(content, type=ClosedJournal)
        except (FileNotFoundError, msgspec.MsgspecError):
            return ClosedJournal(0)  # it only finds what else would not be noticed

    def _settle(self, scan: _Scan, last: int) -> None:
        """Make the last segment ready to be appended to."""
        if scan.missing:
            self.disk.make_directory(self.directory)
            self._begin(scan.missing + 1)
            return
        if not last or last > self.end.segment or not self.end.offset:
            if scan.unread:  # its first line is not ours: keep it as it is, and go on behind it
                self._begin(last + 1)
                return
            if last in self._handles:  # begun, and no line of it is whole
                self.disk.close(self._handles.pop(last))
            self.disk.make_directory(self.directory)
            self._begin(max(last, self.end.segment))
            return
        handle = self.handle(self.end.segment)
        self._allocated = self.disk.size(handle)
        if scan.last_byte > self.end.offset:
            self._dirty = max(scan.last_byte, self._allocated)
            self.clean()

    # --- rewriting -----------------------------------------------------------------------------

    def replace(self, number: int) -> None:
        """Put the compacted segment that was written beside into its place: from this rename on it
        stands for all with smaller numbers."""
        self.disk.rename(self.path(number).with_suffix(".part"), self.path(number))
        self.forget([number], keep=True)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove segments for which a compacted one stands, once its name is durable."""
        self.disk.sync_directory(self.directory)
        self.forget(numbers)

    def forget(self, numbers: Sequence[int], *, keep: bool = False) -> None:
        """Close segments, and remove them unless they are kept."""
        for number in numbers:
            if (handle := self._handles.pop(number, None)) is not None:
                self.disk.close(handle)
            if not keep:
                self.disk.unlink(self.path(number))

    def rewrite(self, number: int, stubs: Mapping[int, bytes]) -> None:
        """Write a segment again, with these bytes at these offsets: beside it, synced, renamed.
        What stood there is overwritten where it was, too, as far as the disk lets us."""
        path, old = self.path(number), self.handle(number)
        part = path.with_suffix(".part")
        handle = self.disk.open(part, write=True, create=True)
        try:
            self.disk.truncate(handle, 0)
            at = 0
            while data := self.disk.read(old, _BLOCK, at):
                self.disk.write(handle, data, at)
                at += len(data)
            for offset, stub in stubs.items():
                self.disk.write(handle, stub, offset)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)
        self.disk.rename(part, path)
        del self._handles[number]
        try:
            self.disk.sync_directory(self.directory)
            for offset, stub in stubs.items():
                self.disk.write(old, stub, offset)
            self.disk.sync(old)
        finally:
            self.disk.close(old)


def stub_of(text: bytes) -> bytes | None:
    """The line that stands in the place of one that is erased: as long, and nothing of it is left.
    None for one that is too short for that: it has numbers alone."""
    read = outside_of(text)
    assert read is not None, "a whole line"
    op, outside = read
    line = ErasedLine(f"{whose(decode_any(text))}.{crc_of(text)}", op == b"event")
    stub = text_of(line, outside.n, outside.chain, left=outside.left, begins=outside.begins)
    put, _ = finished(stub, pad=len(text) + 1)
    return put if len(put) == len(text) + 1 else None


class SegmentWriter:
    """A compacted segment, written beside the others. Use it as a context: a failure removes it."""

    def __init__(self, journal: JournalFiles, number: int, now_us: int, ended: int = 0) -> None:
        self._journal, self._disk, self.number = journal, journal.disk, number
        self._now_us, self._ended = now_us, ended
        self._path = journal.path(number).with_suffix(".part")
        self._n, self._chain, self.offset = 0, START, 0
        self._parts: list[bytes] = []
        self._waiting = 0

    def __enter__(self) -> SegmentWriter:
        self._handle = self._disk.open(self._path, write=True, create=True)
        try:
            self._disk.truncate(self._handle, 0)
            line = SegmentLine(self.number, self._journal.store, compacted=True)
            line.time, line.ended = self._now_us, self._ended
            self.add(line)
        except BaseException:
            self._disk.close(self._handle)
            raise
        return self

    def add(self, line: AnyLine) -> int:
        """Write a line: its place, once the segment has taken its own."""
        self._n += 1
        outside = text_of(line, self._n, self._chain, left=0, begins=True)
        text, crc = finished(outside)
        self._chain, at = f"{whose(line)}.{crc}", self.offset
        self.offset += len(text)
        self._parts.append(text)
        self._waiting += len(text)
        if self._waiting >= _BLOCK:
            self._flush()
        return place_of(self.number, at)

    def finish(self, end: JournalEnd) -> None:
        """Say what the next segment follows, and make it durable."""
        self.add(FoldedLine(end.n, end.chain))
        self._flush()
        self._disk.sync(self._handle)  # before the rename: else the name may outlive the content

    def _flush(self) -> None:
        self._disk.write(self._handle, b"".join(self._parts), self.offset - self._waiting)
        self._parts.clear()
        self._waiting = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._disk.close(self._handle)
        if kind is not None:
            self._path.unlink(missing_ok=True)


class _Gap(NamedTuple):
    """A break between two lines."""

    fault: Fault
    loss: Loss


class _Scan:
    """One reading of the end of a journal.

    What cannot be read is torn if nothing that was written after a sync follows it: then nobody was
    told of it. Otherwise it is lost: it is passed over and reported.
    """

    def __init__(
        self,
        journal: JournalFiles,
        apply: Callable[[int, AnyLine], None],
        lose: Callable[[Loss], None],
        end: JournalEnd,
    ) -> None:
        self._journal, self._apply, self._lose = journal, apply, lose
        self.end = end
        self.faults: list[Fault] = []
        self.last_byte = 0  # where what was written into the last segment ends
        self.unread = False  # the last segment holds lines that are not of this journal
        self._items: list[tuple[int, AnyLine, JournalEnd] | _Gap] = []  # not known to be durable
        self._gaps = False  # there is one among them
        self._last = end  # what the next line should follow
        self._torn: list[tuple[Fault, bytes, bool]] = []  # what could not be read since then
        self.missing = 0  # the last segment, if it was there and is not
        self._compacted = False  # the segment is one that stands for others, without its end so far

    def segment(self, number: int, offset: int, until: int | None = None) -> None:
        name, first = self._journal.path(number).name, offset == 0
        self.last_byte, self.unread = 0, False
        for at, text, ended in self._journal.texts(number, offset):
            if until is not None and at >= until:
                return
            self.last_byte = at + len(text) + 1
            read = read_line(text)
            if read is None:
                self._torn.append((Fault(name, f"is damaged at byte {at:,}"), text, ended))
                continue
            outside, line = read
            if self._goes_on(number, at, text, outside, line):
                first = False
                continue
            if first and not self._torn and not _begins(line, number):
                self.unread = True
                self.faults.append(Fault(name, f"is not segment {number} of this log"))
                return
            first = False
            self._add(name, number, at, text, outside, line)

    def _goes_on(self, number: int, at: int, text: bytes, outside: Outside, line: AnyLine) -> bool:
        """Apply a line that follows the one before and is a group of its own, as nearly all do.
        False if it is any other."""
        last = self._last
        if (
            outside.n != last.n + 1
            or outside.chain != last.chain
            or outside.left
            or self._items
            or self._torn
            or type(line) is not EventLine
        ):
            return False
        chain = f"{line.row}.{line.seq}.{text[-10:-2].decode()}"
        self._last = self.end = JournalEnd(number, at + len(text) + 1, outside.n, chain)
        self._apply(number << _OFFSET_BITS | at, line)
        return True

    def finish(self, closed: ClosedJournal, last: int) -> None:
        """The end: what was written whole and cannot be read was lost, and what is missing that the
        journal had when it was closed. What is only cut off was never acknowledged."""
        damaged = [text for _, text, _ in self._torn if was_written(text)]
        missing = max(closed.lines - self._last.n, len(damaged))
        cut = bool(self._torn) and not self._torn[-1][2] and self.end.n >= closed.synced
        if not missing or (cut and not damaged and not self._gaps):
            if self._gaps and self._last.n <= closed.lines:
                self._settle()
            return
        chain = closed.chain if closed.lines > self._last.n else chain_of(damaged[-1])
        fault = self._torn[0][0] if self._torn else None
        if closed.segment > last:
            self.missing = closed.segment
            fault = Fault(self._journal.path(closed.segment).name, "is missing")
        name = self._journal.path(self._last.segment).name
        problem = f"ends with line {self._last.n:,}; {self._last.n + missing:,} were there"
        self._break(fault or Fault(name, problem), missing, chain)
        n = self._last.n + missing
        self._settle()
        offset = max(self.last_byte, self.end.offset)
        self.end = JournalEnd(self.end.segment, offset, n, chain)

    def _add(
        self, name: str, number: int, at: int, text: bytes, outside: Outside, line: AnyLine
    ) -> None:
        starts = isinstance(line, SegmentLine)
        if outside.begins:  # all before it was synced, so what is missing there was lost
            self._settle()
        if starts and self._compacted:
            self._break(Fault(name, "follows a compacted file without its end"), 1, "*.")
            self._settle()
            self._last = self._last._replace(n=outside.n - 1, chain=outside.chain)
            self._compacted = False
        last, n = self._last, outside.n
        if n <= last.n:
            self.faults.append(Fault(name, f"has line {n:,} a second time"))
            return
        if n != last.n + 1 or outside.chain != last.chain:
            problem = f"has another line {n - 1:,} than line {n:,} says"
            if n != last.n + 1:
                problem = f"lacks lines before line {n:,}"
            fault = self._torn[0][0] if self._torn else Fault(name, problem)
            self._break(fault, n - last.n - 1, outside.chain)
            if outside.begins:
                self._settle()
        elif self._torn and outside.begins:
            self.faults += [fault for fault, _, _ in self._torn]
            self._torn.clear()
        self._compacted = (starts and line.compacted) or self._compacted  # type: ignore[union-attr]  # a SegmentLine
        chain = line.was if isinstance(line, ErasedLine) else f"{whose(line)}.{crc_of(text)}"
        after = JournalEnd(number, at + len(text) + 1, n, chain)
        if isinstance(line, FoldedLine):
            after, self._compacted = after._replace(n=line.lines, chain=line.next), False
        self._last = after
        self._items.append((place_of(number, at), line, after))
        if not outside.left and not self._gaps:
            self._settle()

    def _break(self, fault: Fault, missing: int, chain: str) -> None:
        """Note that lines are missing, or are others than they were, before one with this chain."""
        owners: dict[Owned, Names | None] = {}
        named = owner_in(chain)
        if named is not None:
            owners[named] = None
        for _, text, _ in self._torn:
            by_text = owner_by_text(text)
            if by_text is not None:
                owners[by_text[0]] = by_text[1]
        known = sum([owner.row > 0 for owner in owners]) + (named is None)
        unknown = Owned(0) in owners or known < missing
        owners.pop(Owned(0), None)
        if not missing:  # a line in the place of another: whose it is now, it may not have been
            last = self._items[-1] if self._items else None
            row = 0 if last is None or isinstance(last, _Gap) else getattr(last[1], "row", 0)
            owners |= {Owned(row): None} if row else {}
        self._items.append(_Gap(fault, Loss(tuple(owners.items()), unknown, missing)))
        self._gaps = True
        self._torn.clear()

    def _settle(self) -> None:
        for item in self._items:
            if isinstance(item, _Gap):
                self.faults.append(item.fault)
                self._lose(item.loss)
            else:
                place, line, after = item
                self._apply(place, line)
                self.end = after
        self._items.clear()
        self._gaps = False


def _begins(line: AnyLine, number: int) -> bool:
    return isinstance(line, SegmentLine) and line.number == number


def chain_of(text: bytes) -> str:
    """The chain of the line that would follow a damaged one, by what it says itself."""
    owner = owner_by_text(text)
    crc = text[-10:-2].decode(errors="replace")
    return "*." if owner is None else f"{owner[0].row}.{owner[0].seq}.{crc}"


def read_line(text: bytes) -> tuple[Outside, AnyLine] | None:
    """Return a line and its place in the journal; None if it is not whole."""
    if not is_whole(text):
        return None
    try:
        read = outside_of(text)
        if read is None:
            return None
        line: AnyLine = decode_event(text) if read[0] == b"event" else decode_any(text)
    except (msgspec.MsgspecError, ValueError):
        return None
    return read[1], line
