"""The log store: the memory store with a journal, in a directory of plain files.

What is asked for, decided and kept is the memory store's. Every commit and every other change is
lines of the journal, made durable by one sync together with all that wait beside it, and applied
then. Reads run inline on the caller's event loop; what is not in memory is one read away.

With `?mode=ro` a directory is read while another process writes it: before each read the lines
that were appended since are applied.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import structs

from limpet.errors import (
    Asked,
    LimpetError,
    SessionCorrupt,
    StoreCorrupt,
    StoreForked,
    StoreReadOnly,
    StoreUnopened,
)
from limpet.model import Commit, Head, Key
from limpet.store.blobs import Blob, pack_blob, pack_chunk, read_blob, unpack_chunk
from limpet.store.clock import Clock
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Awaited, Unready, owners_of, refuse_locked
from limpet.store.files.disk import LOCK, DirectoryLock, LogDisk
from limpet.store.files.lines import BlobLine, ChunkLine, MacLine
from limpet.store.files.records import JournaledLog
from limpet.store.files.state import JournaledStore
from limpet.store.files.writer import FilesWriter
from limpet.store.jobs import Pace, WriteJob, WriterCall
from limpet.store.memory.changes import AnyChange, EraseChange
from limpet.store.memory.store import MemoryBlobs, MemoryStore
from limpet.store.memory.tables import Decision, MemoryLog
from limpet.store.protocol import (
    Check,
    Checked,
    Committed,
    Compacted,
    FeedEntry,
    KeyOwner,
    Progress,
    Report,
    Seal,
)
from limpet.store.sqlite.file.filesystems import refuse_network
from limpet.store.system import PROCESS, in_thread, of_system

SESSIONS: Final = "sessions"  # the files for people
P = ParamSpec("P")
T = TypeVar("T")


def _reading(
    read: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A read of the memory store, which waits for nothing: made again once the keys are there, if
    it met sealed bodies."""

    @wraps(read)
    async def reading(of: Any, /, *args: P.args, **named: P.kwargs) -> T:
        store: FilesStore = of.store

        async def once() -> T:
            return store.look_now(lambda: _done(read(of, *args, **named)))

        return await store.sealer.opening(once)

    return reading


def _done(read: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that waits for nothing."""
    try:
        read.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
    raise AssertionError("it waits for something")


class FilesStore(JournaledStore):
    """A directory. Open with `await FilesStore.open(path)`."""

    def __init__(
        self,
        directory: Path,
        disk: LogDisk,
        codec: Codec,
        clock: Clock | None,
        pace: Pace | None,
        *,
        write: bool,
    ) -> None:
        self._pace = pace or Pace()
        self._lock: DirectoryLock | None = None
        self._writer: FilesWriter | None = None
        self._pid_forks = PROCESS.forks
        self._closed = asyncio.Event()
        super().__init__(directory, disk, codec, clock, write=write)
        self.blobs = FilesBlobs(self)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        seal: Seal | None = None,
        clock: Clock | None = None,
        pace: Pace | None = None,
        check: Checked | None = None,
        read_only: bool = False,
        accept: bool = False,
        disk: LogDisk | None = None,
    ) -> FilesStore:
        """Open the directory, creating it if it is not there. `accept`: and go on without what is
        lost of it. Raises StoreError."""
        refuse_network(path)
        disk = disk or LogDisk()
        path = Path(os.path.abspath(path))  # noqa: PTH100, ASYNC240  # asks nothing of the disk
        store = cls(path, disk, Codec(seal, check), clock, pace, write=not read_only)
        try:
            if not read_only:
                _make_directory(disk, path)
                store._lock = DirectoryLock(path / LOCK)
            await in_thread(store.open_directory)
            if accept and store.write:
                await in_thread(store.accept_damage)
        except BaseException as error:
            store._let_go()
            if isinstance(error, OSError):
                raise of_system(error, str(path), "read" if read_only else "change") from error
            raise
        store.codec.lock(sealed=store.ring_id is not None)
        return store

    @property
    def store(self) -> FilesStore:
        return self

    @property
    def is_open(self) -> bool:
        return self._open

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        if self.codec.seals:
            return self._commit_sealed(commits)
        return self._write().jobs.submit(WriteJob(commits))

    async def _commit_sealed(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Keys first; the writer gives back what met others than were expected."""
        await self.sealer.ready(owners_of(commits, self._uid))
        while True:
            try:
                answers: tuple[Committed, ...] = await self._write().jobs.submit(WriteJob(commits))
                return answers
            except Unready as needed:
                await self.sealer.ready(needed.owners)

    def _uid(self, key: Key) -> str | None:
        log = self._kept.get(key)
        return None if log is None else log.head.uid

    async def change(self, decide: Callable[[], Decision[T]], asked: Asked = "change") -> T:
        """Decide, write and sync, then apply: on the writer's thread, between two batches."""

        def run(writer: FilesWriter) -> T:
            with self.lock:
                answer, changes = decide()
            if changes:
                writer.put(changes)  # type: ignore[arg-type]  # lines of ours
                if any([isinstance(change, EraseChange) for change in changes]):
                    self._leave_nothing(writer)
            elif self._unfinished:  # an erasure that failed is asked for again
                self._leave_nothing(writer)
            return answer

        return await self._run(run, asked)

    async def _run(self, run: Callable[[FilesWriter], T], asked: Asked = "change") -> T:
        async def once() -> T:
            result: T = await self._write().jobs.submit(WriterCall(run, asked))
            return result

        return await self.sealer.opening(once)

    def _leave_nothing(self, writer: FilesWriter) -> None:
        """Remove what was erased from the files."""
        with self.lock:
            self.finish_erasures()
        if self.faults:  # nobody can say what is in what cannot be read
            writer.compaction.run(keep=False)

    def _taking(self, log: MemoryLog, key: Key, fence: int) -> list[AnyChange]:
        changes: list[Any] = super()._taking(log, key, fence)
        assert isinstance(log, JournaledLog)
        if self.codec.marks and log.holds:
            mac = self.codec.head_mac(structs.replace(log.head, key=key))
            assert mac is not None
            changes.append(MacLine(log.row, mac.hex()))
        return changes

    async def accept_head(self, key: Key) -> bool:
        def decide() -> Decision[bool]:
            log = self.living(key)
            assert isinstance(log, JournaledLog)
            if log.holds:
                return False, ()
            mac = self.codec.head_mac(log.head)
            assert mac is not None
            log.let_go()
            lines: Any = [MacLine(log.row, mac.hex())]
            return True, lines

        return await self.change(decide)

    # --- reading: the memory store's, when the keys are there ----------------------------------

    load = _reading(MemoryStore.load)
    _load_some = _reading(MemoryStore._load_some)
    fold_at = _reading(MemoryStore.fold_at)
    rung = _reading(MemoryStore.rung)
    read = _reading(MemoryStore.read)
    read_ids = _reading(MemoryStore.read_ids)
    pending_inputs = _reading(MemoryStore.pending_inputs)
    records = _reading(MemoryStore.records)
    base = _reading(MemoryStore.base)
    keys_with = _reading(MemoryStore.keys_with)
    owners = _reading(MemoryStore.owners)
    names_of = _reading(MemoryStore.names_of)
    naming = _reading(MemoryStore.naming)
    names_since = _reading(MemoryStore.names_since)
    heads = _reading(MemoryStore.heads)
    _feed_step = _reading(MemoryStore._feed_step)
    touched = _reading(MemoryStore.touched)
    position = _reading(MemoryStore.position)
    forks = _reading(MemoryStore.forks)
    ring = _reading(MemoryStore.ring)
    identity = _reading(MemoryStore.identity)
    mark = _reading(MemoryStore.mark)
    expired = _reading(MemoryStore.expired)
    waiting = _reading(MemoryStore.waiting)
    tally = _reading(MemoryStore.tally)

    def _require_keys(self, owners: Sequence[KeyOwner]) -> None:
        if self.codec.seals:
            self.sealer.require(owners)

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        self.look_now(lambda: self._feed_start(after))
        return await super().changes(after, app=app, key=key, limit=limit)

    @_reading
    async def head(self, key: Key) -> Head:
        log = self.living(key)
        assert isinstance(log, JournaledLog)
        if log.cached is None and not log.holds:  # what is cached was compared
            raise SessionCorrupt(key, f"its head {UNHELD}")
        return log.head

    def check_open(self) -> None:
        super().check_open()
        if self._pid_forks != PROCESS.forks:
            raise StoreForked

    def look_now(self, query: Callable[[], T]) -> T:
        """Run a read, with errors of the system translated."""
        self.check_open()
        where = str(self.directory)
        try:
            return self.look(query)
        except (LimpetError, MemoryError, Awaited):
            raise
        except OSError as error:
            raise of_system(error, where, "read") from error
        except Exception as error:  # what is stored cannot be what was written
            raise StoreCorrupt(where, repr(error)) from error

    def pulse(self) -> int:
        if not self.write and self._open:
            self.look_now(lambda: None)
        return super().pulse()

    # --- the whole directory -------------------------------------------------------------------

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        from limpet.store.coding.seal import Unavailable
        from limpet.store.files.verify import FilesVerification

        self.check_open()
        self.sealer.doubt()  # as a process would see it that opens the store now
        codec = self.codec.waiting(asyncio.get_running_loop())
        reading = FilesVerification(self, codec)
        try:
            return await in_thread(lambda: reading.run(key, progress))
        except Unavailable as failed:
            raise failed.error from failed.error.__cause__

    async def examine(self) -> tuple[Check, ...]:
        from limpet.store.files import verify

        self.check_open()
        return await in_thread(lambda: verify.examine(self, self._pace))

    mirrors_to: Path | None = None  # another directory than its own

    @property
    def mirror_directory(self) -> Path | None:
        if not self.write or self.codec.seals or self.ring_id is not None:
            return None
        return self.mirrors_to or self.directory / SESSIONS

    @property
    def mirror_mark(self) -> Path | None:
        return None if self.mirrors_to is not None else self.directory / "mirror.json"

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        from limpet.store.files.backup import CapturedStore, back_up, captured_store, refuse_place

        self.check_open()
        refuse_place(target)
        if self._lock is None:
            captured = captured_store(self, self.look_now)
        else:
            captured = await self._run(lambda _: CapturedStore(self))
        await in_thread(lambda: back_up(captured, self.directory, target, progress))

    async def compact_log(self) -> Compacted:
        """Compact the whole journal now, and return its sizes before and after."""
        return await self._run(lambda writer: writer.compaction.run())

    async def close(self) -> None:
        if not self._open:
            await self._closed.wait()
            return
        self._open = False
        try:
            if self._pid_forks == PROCESS.forks and self._writer is not None:
                await self._writer.end()
            if self._pid_forks == PROCESS.forks and self._lock is not None:
                await in_thread(self._finish)
        finally:
            self._let_go()
            self._closed.set()

    def _finish(self) -> None:
        """A clean end: the newlines ahead go, and it is noted how far the journal goes."""
        try:
            with self.lock:
                self.finish_erasures()
                self.journal.clean()
                self.journal.trim()
                self.journal.note_closed()
        except OSError:
            pass  # it costs the next process time, nothing else

    # --- private -------------------------------------------------------------------------------

    def _write(self) -> FilesWriter:
        if not self._open or self._pid_forks != PROCESS.forks:
            self.check_open()
        writer = self._writer
        if writer is None or writer.jobs.failure is not None:
            if self.codec.locked:
                refuse_locked(str(self.directory))
            if not self.write:
                why = "it was opened read-only; reopen it to write"
                raise StoreReadOnly(str(self.directory), why)
            writer = self._writer = FilesWriter(self, self._pace)
            writer.start()
        return writer

    def _let_go(self) -> None:
        self.close_files()
        if self._lock is not None:
            self._lock.release()


def _make_directory(disk: LogDisk, path: Path) -> None:
    try:
        disk.make_directory(path)
    except (FileExistsError, NotADirectoryError) as error:
        reason = f"{path if path.exists() else path.parent} is a file; name a directory"
        raise StoreUnopened(str(path), reason) from error


class FilesBlobs(MemoryBlobs):
    """Blobs whose chunks are lines of the journal, sealed as other bodies are."""

    def __init__(self, store: FilesStore) -> None:
        super().__init__(store)
        self.store, self.codec = store, store.codec

    find = _reading(MemoryBlobs.find)
    chunk = _reading(MemoryBlobs.chunk)
    page = _reading(MemoryBlobs.page)
    keys = _reading(MemoryBlobs.keys)

    def chunk_change(self, log: MemoryLog, upload: str, number: int, data: bytes) -> Any:
        line = ChunkLine(row=log.row, upload=upload, number=number, time=self.store.now_us())
        line.put(*pack_chunk(self.codec, log.head.uid, upload, number, data), plain=False)
        return line

    def blob_change(self, log: MemoryLog, upload: str, blob: Blob) -> Any:
        line = BlobLine(row=log.row, hash=blob.hash, version=blob.version, chunks=blob.chunks)
        line.upload = upload
        line.put(*pack_blob(self.codec, log.head.uid, upload, blob))
        return line

    def read_blob(self, log: MemoryLog, hash: str) -> Blob:
        return read_blob(self.codec, log.head.key, log.head.uid, log.blobs[hash].blob)

    def read_chunk(self, log: MemoryLog, hash: str, number: int) -> bytes:
        kept = log.blobs[hash]
        try:
            line = self.store.reader.line(kept.chunks[number])
            if not isinstance(line, ChunkLine):
                raise Damaged("is missing from the log")
            packed = (line.flags, line.stored, line.sum)
            return unpack_chunk(self.codec, log.head.uid, kept.blob.upload, number, packed)
        except Damaged as error:
            problem = f"chunk {number} of blob {hash} {error}"
            raise SessionCorrupt(log.head.key, problem) from error
