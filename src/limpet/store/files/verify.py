"""Verification and examination of a log store: every line, every session, every name and blob."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from limpet.model import Fold, Key, is_reserved
from limpet.store.blobs import BlobVerifier
from limpet.store.coding.bodies import snapshot_in
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Unready
from limpet.store.files.index import IndexedSession
from limpet.store.files.lines import ErasedLine, SegmentLine, SnapshotLine, crc_of, follows
from limpet.store.files.log import read_line
from limpet.store.files.reader import FilesReader, scope_row
from limpet.store.files.snapshot import files_of, pieces
from limpet.store.files.state import BLOBS, FORMAT, FilesState, chunk_in, upload_name
from limpet.store.jobs import Pace
from limpet.store.protocol import Check, Finding, Progress, Report, plural, size
from limpet.store.sqlite.doctor import event_loop
from limpet.store.sqlite.file.filesystems import disk_space
from limpet.store.verify import NameVerifier, Stored, verify_session

T = TypeVar("T")
_MAYBE_NOT_LAST: Final = "may not be the last: newer ones may be in lines that cannot be read"


class FilesVerification:
    """One reading of a directory, a session at a time: others go on between. Changes nothing."""

    def __init__(self, state: FilesState, codec: Codec) -> None:
        self._state, self._waiting = state, codec
        self._sessions = self._internal = self._events = 0

    def run(self, key: Key | None, progress: Progress | None) -> Report:
        findings: list[Finding] = []
        if key is not None:
            self._read(lambda: self._state.reader.living(key))
            findings = self._checked(key)
            internal = int(is_reserved(key.app))
            return Report(1 - internal, self._events, tuple(findings), internal)
        findings += self._read(lambda: list(self._files()))
        keys = self._read(lambda: list(self._state.index.living))
        for done, each in enumerate(keys, 1):
            findings += self._checked(each)
            self._sessions += not is_reserved(each.app)
            self._internal += is_reserved(each.app)
            if progress is not None:
                progress(done, len(keys))
        findings += self._read(lambda: list(self._names()))
        return Report(self._sessions, self._events, tuple(findings), self._internal)

    def _read(self, read: Callable[[], T]) -> T:
        """Under the lock; keys are waited for without it."""
        while True:
            try:
                return self._state.read(read)
            except Unready as needed:
                self._waiting.sealer.require(needed.owners)

    # --- sessions ------------------------------------------------------------------------------

    def _checked(self, key: Key) -> list[Finding]:
        findings, events = self._read(lambda: self._session(key))
        self._events += events
        return findings

    def _session(self, key: Key) -> tuple[list[Finding], int]:
        """The findings in a session, and how many events were read."""
        state = self._state
        entry = state.index.living.get(key)
        if entry is None:
            return [], 0  # it ended while others were read
        reader = FilesReader(state.log, state.index, state.codec, state.secret)
        head, findings = entry.head, list[Finding]()
        base = None
        if entry.floor:
            try:
                base = reader.base(entry)
            except Damaged as error:
                findings.append(Finding("base", str(error), head.key))
        now = reader.fold(entry)
        damaged = list[Finding]()
        stored = self._stored(reader, entry, damaged)
        snapshots = self._snapshots(reader, entry)
        findings += verify_session(now, stored, snapshots, base)
        findings += damaged
        events = entry.head.version - entry.floor - len(damaged)
        if head.version != entry.last:
            findings.append(Finding("head", "has another version than its log", head.key))
        if entry.row in state.index.doubtful:
            findings.append(Finding("event", _MAYBE_NOT_LAST, head.key, head.version))
        if not reader.holds(entry):
            findings.append(Finding("head", UNHELD, head.key, head.version))
        return findings + list(self._blobs(entry)), events

    def _stored(
        self, reader: FilesReader, entry: IndexedSession, findings: list[Finding]
    ) -> Iterator[Stored]:
        for seq in range(entry.first, entry.head.version + 1):
            try:
                record, _ = reader.record(entry, seq)
            except Damaged as error:
                findings.append(Finding("event", str(error), entry.key, seq))
                continue
            yield record.event, record.raw, record.salt, record.digest

    def _snapshots(self, reader: FilesReader, entry: IndexedSession) -> dict[int, Fold | None]:
        folds: dict[int, Fold | None] = {}
        for seq, place in entry.snapshots_upto(entry.head.version):
            try:
                line = reader.single(place)
                assert isinstance(line, SnapshotLine)
                packed, link = (line.flags, line.stored, line.sum), reader.link_at(entry, seq)
                made = snapshot_in(reader.codec, entry.head, seq, link, packed)
                folds[seq] = None if made is None else made[0]
            except (Damaged, AssertionError):
                folds[seq] = None
        return folds

    def _blobs(self, entry: IndexedSession) -> Iterator[Finding]:
        state = self._state
        for row in (entry.blobs or {}).values():
            reading = BlobVerifier(state.codec, entry.head.uid, row)
            place = state.directory / BLOBS / str(entry.row) / upload_name(row.upload)
            while reading.reads_on and reading.number < row.chunks:
                try:
                    reading.add(chunk_in(state.disk, place / str(reading.number)))
                except Damaged:
                    break
            if (problem := reading.problem()) is not None:
                yield Finding("blob", problem, entry.key)

    # --- names ---------------------------------------------------------------------------------

    def _names(self) -> Iterator[Finding]:
        state = self._state
        for (app, user), names in state.index.names.items():
            for name, entry in names.items():
                verifier = NameVerifier(state.codec)
                for version in range(1, entry.last + 1):
                    try:
                        line = state.reader.name_line(entry, version)
                    except Damaged as error:
                        where = f"version {version} of {name} in {app}/{user}"
                        yield Finding("scope", f"{where} {error}")
                        continue
                    yield from verifier.add((app, user, name), scope_row(line))

    # --- files ---------------------------------------------------------------------------------

    def _files(self) -> Iterator[Finding]:
        state = self._state
        seen: set[tuple[str, str]] = set()
        for fault in (*state.faults, *segment_faults(state)):
            if tuple(fault) not in seen:
                seen.add((fault[0], fault[1]))
                yield Finding("file", f"{fault[0]} {fault[1]}")
        if state.index.keys_lost:
            yield Finding("file", "had lines that cannot be read: sessions may be missing")
        for number in sorted(files_of(state.index)):
            if not state.log.path(number).exists():
                yield Finding("file", f"{state.log.path(number).name} is missing")
        for first, place in state.index.feed_frames:
            try:
                state.feed_frame(place)
            except Damaged as error:
                yield Finding("file", f"the feed from entry {first:,} on {error}")


def segment_faults(state: FilesState) -> Iterator[tuple[str, str]]:
    """Read every line of every segment: each whole, counted on and chained to the one before."""
    last: tuple[int, str, str] | None = None  # n, chain and checksum of the line before
    for number in state.log.segments():
        if number > state.log.end.segment:
            break  # another process begins it
        name = state.log.path(number).name
        data = state.disk.read_all(state.log.handle(number))
        first = True
        for at, text in pieces(data):
            if number == state.log.end.segment and at >= state.log.end.offset:
                break
            line = read_line(text)
            if line is None:
                yield name, f"is damaged at byte {at:,}"
                last = None
                continue
            if first and not (isinstance(line, SegmentLine) and line.number == number):
                yield name, f"is not segment {number} of this log"
                last = None
                break
            first = False
            if last is not None:
                if line.n != last[0] + 1:
                    yield name, f"has line {line.n:,} after line {last[0]:,}"
                elif not follows(line, last[1], last[2]):
                    yield name, f"has another line {line.n:,} than the chain says"
            crc = line.was if isinstance(line, ErasedLine) else crc_of(text)
            last = (line.n, line.chain, crc)


def format_upgrade(installed: int) -> Check:
    """Say what the first process that writes to a directory of an earlier format does to it."""
    text = f"format {installed} → {FORMAT}: new lines are chained by the checksums of those before "
    text += "them; none is rewritten, and it takes no time"
    advice = "Copy the directory first if you may have to go back: earlier releases refuse it then."
    return Check("upgrade", text, "warning", advice)


class _LogFiles(NamedTuple):
    """The files of a log: how many, of how many bytes, and what is wrong with them."""

    segments: int
    raw: int
    compacted: int
    packed: int
    lines: int
    faults: tuple[str, ...]

    @classmethod
    def of(cls, state: FilesState) -> _LogFiles:
        log, segments, compacted = state.log, state.log.segments(), state.log.compacted_numbers()
        raw = sum([log.bytes_of(number) for number in segments])
        packed = sum([log.bytes_of(number) for number in compacted])
        lines = log.end.n - state.indexed.n
        missing = [n for n in sorted(files_of(state.index)) if not log.path(n).exists()]
        faults = [f"{fault.file} {fault.problem}" for fault in state.faults]
        faults += [f"{log.path(number).name} is missing" for number in missing]
        return cls(len(segments), raw, len(compacted), packed, lines, tuple(faults))


def examine(state: FilesState, pace: Pace) -> tuple[Check, ...]:
    """Look at how the directory is kept."""
    files = state.read(lambda: _LogFiles.of(state))
    text = f"{plural(files.segments, 'segment')} of {size(files.raw)}, "
    text += f"{plural(files.compacted, 'file')} of {size(files.packed)} compacted, "
    text += f"{plural(files.lines, 'line')} since the last index"
    checks = [Check("log", text)]
    if files.faults:
        advice = (
            "Sessions that limpet verify does not name are whole. Keep a copy of the directory, "
            "then restore a backup or copy the whole sessions with limpet copy."
        )
        checks.append(Check("files", "; ".join(files.faults[:3]), "problem", advice))
    else:
        checks.append(Check("files", "every file that the index names is there"))
    if state.format < FORMAT:
        checks.append(format_upgrade(state.format))
    mode = "this process writes it" if state.write else "read only, beside the process that writes"
    checks.append(Check("lock", mode))
    space = disk_space(state.directory)
    free = f"{size(space.free_bytes)} free"
    low = space.free_bytes < max(64 * 2**20, files.raw)
    advice = "Free some space: a compaction needs as much as the segments take." if low else ""
    checks.append(Check("space", free, "warning" if low else "ok", advice))
    checks.append(event_loop(pace))
    return tuple(checks)
