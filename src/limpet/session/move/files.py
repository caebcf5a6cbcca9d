"""Exporting a session to a bundle, and importing one.

An import reads the file more than once. The first reading computes every link and folds every
event, and records nothing: a file that is not whole is refused whole. The second adopts the events
in pieces, and the last one the log of the checkpoints and what the session remembers, which stand
first in the file.
Killed in between, it leaves a log that is only shorter, and importing again goes on from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.errors import (
    BundleRefused,
    InvalidInput,
    ReservedApp,
    SessionArchived,
    SessionCorrupt,
    StoreError,
    StoreFull,
)
from limpet.model import Head, Key, checkpoints_of, is_reserved
from limpet.model.facts.archive import is_stub
from limpet.session.journal import Journal
from limpet.session.life.memory import memory_key
from limpet.session.move.adopter import (
    PIECE_BYTES,
    PIECE_EVENTS,
    Adopter,
    Newest,
    check_bodies,
    check_whole,
    records_in,
    refuse_gone,
)
from limpet.session.move.bundle import (
    NO_SPACE,
    BundleReader,
    BundleWriter,
    Entry,
    Opening,
    Source,
    refuse_place,
)
from limpet.session.move.checkpoints import (
    Checkpointed,
    Marks,
    adopt_pinned,
    load_log,
    log_piece,
    log_records,
    marks_read,
    newest_log,
    pinned,
)
from limpet.session.move.contents import Chunk, blobs_in, blobs_of, chunks_of
from limpet.session.move.memory import (
    MemoryEvent,
    here_of,
    logs_of,
    memory_piece,
    memory_records,
    newest_of,
)
from limpet.session.move.proof import Proof
from limpet.store.protocol import ChainedEvent
from limpet.store.threads import in_thread

if TYPE_CHECKING:
    from limpet.store.coding.files import FileSeal


async def export_session(
    journal: Journal,
    key: Key,
    path: Path,
    seal: FileSeal | None = None,
    *,
    memory: bool = False,
) -> Head:
    """Write the session as it is now to a file that must not exist yet; its head there.

    In plain text, unless a seal is given, whose keys are ready. With its `memory`, unless that
    stays in the store, as that of an archived session does.
    """
    _refuse_reserved(key)
    source = records_in(journal)
    # Before the head is read: an event that a checkpoint stands on is in the file.
    kept = await load_log(journal.store, key)
    head = (await journal.store.load(key, tail=0, scopes=False)).head
    if is_stub(head.facts):
        raise SessionArchived(key)
    base = await source.base(key)
    refuse_place(path)
    try:
        writer = await in_thread(lambda: BundleWriter(path, seal))
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        writer.begin(head, base)
        marks = marks_read(kept, head.uid)
        async for some in log_records(journal, key, marks.log.seq):
            await in_thread(lambda some=some: writer.add_checkpoints(some))  # type: ignore[misc]  # bound now
        if memory:
            await _export_memory(journal, key, writer)
        after = head.floor
        while after < head.version:
            first = after == head.floor  # blobs stand between it and what may name them
            limit = 1 if first else min(PIECE_EVENTS, head.version - after)
            found = await source.records(key, after=after, limit=limit)
            check_whole(key, found, after)
            check_bodies(key, found)
            after = found[-1].event.seq
            await in_thread(lambda some=found: writer.add(some))  # type: ignore[misc]  # bound now
            if first:
                await _export_blobs(journal, key, writer)
        await in_thread(writer.finish)
    except SessionCorrupt:
        await refuse_gone(journal, head)
        raise
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        await in_thread(writer.discard)
    return head


async def _export_memory(journal: Journal, key: Key, writer: BundleWriter) -> None:
    async for log in logs_of(journal, key):
        async for some in memory_records(journal, log):
            check_bodies(log.key, some)
            add = partial(writer.add_memory, log.key.id, some)
            await in_thread(add)


async def _export_blobs(journal: Journal, key: Key, writer: BundleWriter) -> None:
    blobs = blobs_in(journal)
    if blobs is None:
        return
    async for blob in blobs_of(blobs, key):
        async for chunk in chunks_of(blobs, key, blob):
            await in_thread(lambda some=chunk: writer.add_chunk(some))  # type: ignore[misc]  # bound


async def import_session(journal: Journal, path: Path) -> Key:
    """Adopt the session in a file, as far as this store does not have it."""
    adopter = Adopter(journal)
    reader = await in_thread(lambda: BundleReader(path))
    try:
        opening = reader.opening
        key = opening.key
        _refuse_reserved(key)
        here = await adopter.newest(key)
        log = await newest_log(adopter, key)
        proof = await _prove(reader, here, log, await newest_of(journal, key))
    finally:
        await in_thread(reader.close)
    last = proof.end()
    for name, end in proof.memory.items():  # what went on since must begin with what the file has
        log_key = memory_key(key, name)
        if (await here_of(adopter, log_key)).seq > end.seq:
            await adopter.check_prefix(log_key, end.seq, end.link)
    if log.seq > proof.log.seq and proof.log.seq:
        await adopter.check_prefix(checkpoints_of(key), proof.log.seq, proof.log.link)
    if here.seq > last.seq:  # it went on since: the file must be what it began with
        await adopter.check_prefix(key, last.seq, last.link)
    else:
        await _read_again(path, _Incoming(adopter, opening, here.seq, proof.marks.pins).add_all)
    await _read_again(path, _IncomingBeside(adopter, key, log.seq).add_all)
    return key


async def _read_again(path: Path, add: Callable[[list[Entry]], Awaitable[bool]]) -> None:
    """Read a file that was proven, until `add` says that it has all that it needs."""
    reader = await in_thread(lambda: BundleReader(path))
    try:
        while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
            if not await add(found):
                return
    finally:
        await in_thread(reader.close)


async def proved(source: Source) -> Marks:
    """What the checkpoints in a file say, if all of it proves itself. Raises BundleDamaged."""
    reader = await in_thread(lambda: BundleReader(source))
    try:
        return (await _prove(reader, Newest(), Newest())).marks
    finally:
        await in_thread(reader.close)


class _Incoming:
    """The second reading of a bundle: what the store lacks is recorded, in the file's order."""

    def __init__(
        self, adopter: Adopter, opening: Opening, here: int, pins: Mapping[int, int]
    ) -> None:
        self._adopter, self._opening, self._here, self._pins = adopter, opening, here, pins
        self._upload, self._skips = "", False

    async def add_all(self, found: list[Entry]) -> bool:
        for kind, some in groupby(found, type):
            if kind is Chunk:
                for chunk in some:
                    await self.add_chunk(chunk)  # type: ignore[arg-type]  # as asked
            elif kind is ChainedEvent:
                await self.add(some)  # type: ignore[arg-type]  # as asked
        return True

    async def add(self, records: Iterable[ChainedEvent]) -> None:
        fresh = [each for each in records if each.event.seq > self._here]
        if fresh:
            opening = self._opening
            base = opening.base if fresh[0].event.seq == opening.floor + 1 else None
            await adopt_pinned(self._adopter, pinned(opening.key, fresh, self._pins, base))

    async def add_chunk(self, chunk: Chunk) -> None:
        key, blob = self._opening.key, chunk.blob
        if not chunk.number:
            self._upload, self._skips = "", await self._adopter.has_blob(key, blob.hash)
        if not self._skips:
            at = (blob, chunk.number, chunk.data)
            self._upload = await self._adopter.put_chunk(key, self._upload, *at)


class _IncomingBeside:
    """The last reading: the log of the checkpoints, after all that they stand on, and what the
    session remembers."""

    def __init__(self, adopter: Adopter, key: Key, here: int) -> None:
        self._adopter, self._key, self._here = adopter, key, here
        self._ends: dict[str, int] = {}  # of the logs of what it remembers, as they were here

    async def add_all(self, found: list[Entry]) -> bool:
        log = [each.record for each in found if isinstance(each, Checkpointed)]
        fresh = [each for each in log if each.event.seq > self._here]
        if fresh:
            await self._adopter.commit((log_piece(self._key, fresh),))
        memory = [each for each in found if isinstance(each, MemoryEvent)]
        for name, some in groupby(memory, lambda each: each.name):
            await self._remember(name, [each.record for each in some])
        return len(log) + len(memory) == len(found)

    async def _remember(self, name: str, records: list[ChainedEvent]) -> None:
        log = memory_key(self._key, name)
        if name not in self._ends:
            self._ends[name] = (await here_of(self._adopter, log)).seq
        fresh = [each for each in records if each.event.seq > self._ends[name]]
        if fresh:
            await self._adopter.commit((memory_piece(log, fresh),))


async def _prove(
    reader: BundleReader, here: Newest, log: Newest, memory: Mapping[str, Newest] | None = None
) -> Proof:
    """Read to the end and compute everything again.

    Raises BundleDamaged; SessionConflict if the file's logs are not those that are here.
    """
    proof = Proof(reader, here, log, memory)
    while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        await in_thread(lambda some=found: proof.add(some))  # type: ignore[misc]  # bound now
    proof.end()
    return proof


def check_path(path: object) -> Path:
    """A path of a file. Raises InvalidInput."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidInput(f"{path!r} does not name a file. Pass a path, as in 'ada.limpet'.")
    return Path(path)


def _refuse_reserved(key: Key) -> None:
    if is_reserved(key.app):
        raise ReservedApp(key.app)


def _unwritten(path: Path, error: OSError) -> StoreError:
    if error.errno in NO_SPACE:
        return StoreFull(str(path))
    reason = f"cannot be written ({error.strerror or error}); choose another place"
    return BundleRefused(str(path), reason)
