"""Verification and examination of a log store: every line, every session, every name and blob."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from limpet.model import Fold, Key, is_reserved
from limpet.store.blobs import BlobVerifier
from limpet.store.coding.bodies import snapshot_in
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Unready
from limpet.store.files.journal import Fault
from limpet.store.files.lines import ChunkLine, SnapshotLine
from limpet.store.files.records import JournaledLog, Reader, scope_row
from limpet.store.files.state import FORMAT, JournaledStore
from limpet.store.jobs import Pace
from limpet.store.protocol import Check, Finding, Progress, Report, plural, size
from limpet.store.sqlite.doctor import event_loop
from limpet.store.sqlite.file.filesystems import disk_space
from limpet.store.verify import NameVerifier, Stored, verify_session

T = TypeVar("T")
_LOST: Final = "may have lost its newest events, and is not written to until somebody decides"
_MAYBE_NOT_LAST: Final = "may not be the last: newer ones may be in lines that cannot be read"
_UNKNOWN: Final = (
    "lines are lost and nobody can say whose they were: no session is begun until somebody decides"
)


class FilesVerification:
    """One reading of a directory, a session at a time: others go on between. Changes nothing."""

    def __init__(self, store: JournaledStore, codec: Codec) -> None:
        self._store, self._waiting = store, codec
        self._sessions = self._internal = self._events = 0

    def run(self, key: Key | None, progress: Progress | None) -> Report:
        findings: list[Finding] = []
        if key is not None:
            self._read(lambda: self._store.living(key))
            findings = self._checked(key)
            internal = int(is_reserved(key.app))
            return Report(1 - internal, self._events, tuple(findings), internal)
        findings += self._read(lambda: list(self._files()))
        keys = self._read(self._store.living_keys)
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
                return self._store.look(read)
            except Unready as needed:
                self._waiting.sealer.require(needed.owners)

    # --- sessions ------------------------------------------------------------------------------

    def _checked(self, key: Key) -> list[Finding]:
        findings, events = self._read(lambda: self._session(key))
        self._events += events
        return findings

    def _session(self, key: Key) -> tuple[list[Finding], int]:
        """The findings in a session, and how many events were read."""
        log = self._store.log_of(key)
        if not isinstance(log, JournaledLog):
            return [], 0  # it ended while others were read
        head, findings = log.head, list[Finding]()
        base = None
        if log.floor:
            try:
                base = log.read_base()
            except Damaged as error:
                findings.append(Finding("base", str(error), head.key))
        remembered, log.reader = log.reader, Reader(log.reader.journal, log.reader.codec)
        try:  # what is in the files, and not what is remembered
            now, damaged = log.fold, list[Finding]()
            findings += verify_session(now, self._stored(log, damaged), self._folds(log), base)
        finally:
            log.reader = remembered
        findings += damaged
        events = head.version - log.floor - len(damaged)
        if self._store.is_refused(log):
            findings.append(Finding("event", _MAYBE_NOT_LAST, head.key, head.version))
        if not log.holds:
            findings.append(Finding("head", UNHELD, head.key, head.version))
        return findings + list(self._blobs(log)), events

    def _stored(self, log: JournaledLog, findings: list[Finding]) -> Iterator[Stored]:
        for seq in range(log.floor + 1, log.head.version + 1):
            try:
                record, _ = log.record(seq)
            except Damaged as error:
                findings.append(Finding("event", str(error), log.head.key, seq))
                continue
            yield record.event, record.raw, record.salt, record.digest

    def _folds(self, log: JournaledLog) -> dict[int, Fold | None]:
        folds: dict[int, Fold | None] = {}
        for seq, place in log.snapshots_upto(log.head.version):
            try:
                line = log.reader.line(place)
                assert isinstance(line, SnapshotLine)
                packed, link = (line.flags, line.stored, line.sum), log.own_link(seq)
                made = snapshot_in(log.reader.codec, log.head, seq, link, packed)
                folds[seq] = None if made is None else made[0]
            except (Damaged, AssertionError):
                folds[seq] = None
        return folds

    def _blobs(self, log: JournaledLog) -> Iterator[Finding]:
        for kept in log.blobs.values():
            reading = BlobVerifier(log.reader.codec, log.head.uid, kept.blob)
            while reading.reads_on and reading.number < len(kept.chunks):
                try:
                    line = log.reader.line(kept.chunks[reading.number])
                    if not isinstance(line, ChunkLine):
                        break
                    reading.add((line.flags, line.stored, line.sum))
                except Damaged:
                    break
            if (problem := reading.problem()) is not None:
                yield Finding("blob", problem, log.head.key)

    # --- names ---------------------------------------------------------------------------------

    def _names(self) -> Iterator[Finding]:
        for key, named in self._store.name_logs():
            verifier = NameVerifier(self._store.codec)
            for version in range(1, named.last + 1):
                try:
                    line = named.line(version)
                except Damaged as error:
                    where = f"version {version} of {key[2]} in {key[0]}/{key[1]}"
                    yield Finding("scope", f"{where} {error}")
                    continue
                yield from verifier.add(key, scope_row(line))

    # --- files ---------------------------------------------------------------------------------

    def _files(self) -> Iterator[Finding]:
        store = self._store
        seen: set[Fault] = set()
        for fault in (*store.faults, *faults_now(store)):
            if fault not in seen:
                seen.add(fault)
                yield Finding("file", f"{fault.file} {fault.problem}")
        if store.unknown:
            yield Finding("file", _UNKNOWN)


def faults_now(store: JournaledStore) -> list[Fault]:
    """Read every line of every segment: each whole, counted on and chained to the one before."""
    return store.journal.faults(store.base_segment)


def format_upgrade(installed: int) -> Check:
    """Say what the first process that writes to a directory of an earlier format does to it."""
    text = f"format {installed} → {FORMAT}: the journal is written again as one file, with all "
    text += "events in their order; it takes a second for each 16 MB"
    advice = "Copy the directory first if you may have to go back: earlier releases refuse it then."
    return Check("upgrade", text, "warning", advice)


def examine(store: JournaledStore, pace: Pace) -> tuple[Check, ...]:
    """Look at how the directory is kept."""

    def look() -> tuple[int, int]:
        return len(store.journal.segments()), store.segment_bytes(store.base_segment)

    count, bytes_ = store.look(look)
    text = f"{plural(count, 'segment')} of {size(bytes_)}, {size(store.compacted_bytes)} compacted"
    checks = [Check("log", text)]
    refused = [str(key) for key in store.refused()]
    if store.faults or refused or store.unknown:
        problems = [f"{fault.file} {fault.problem}" for fault in store.faults]
        problems += [f"{key} {_LOST}" for key in refused[:3]]
        problems += [_UNKNOWN] if store.unknown else []
        advice = (
            "Sessions that limpet verify does not name are whole. Keep a copy of the directory; "
            "then restore a backup, copy the whole sessions with limpet copy, or go on without "
            "what is lost by opening the store once with ?damage=accept."
        )
        checks.append(Check("files", "; ".join(problems[:4]), "problem", advice))
    else:
        checks.append(Check("files", "every line is there"))
    if store.format < FORMAT:
        checks.append(format_upgrade(store.format))
    mode = "this process writes it" if store.write else "read only, beside the process that writes"
    checks.append(Check("lock", mode))
    space = disk_space(store.directory)
    free = f"{size(space.free_bytes)} free"
    low = space.free_bytes < max(64 * 2**20, bytes_)
    advice = "Free some space: a compaction needs as much as the segments take." if low else ""
    checks.append(Check("space", free, "warning" if low else "ok", advice))
    checks.append(event_loop(pace))
    return tuple(checks)
