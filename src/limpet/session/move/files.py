"""Exporting a session to a bundle, and importing one.

An import reads the file twice. The first reading computes every link and folds every event, and
records nothing: a file that is not whole is refused whole. The second adopts the events in pieces.
Killed in between, it leaves a log that is only shorter, and importing again goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from limpet.errors import (
    BundleRefused,
    InvalidInput,
    ReservedApp,
    SessionCorrupt,
)
from limpet.model import Key, is_reserved
from limpet.session.journal import Journal
from limpet.session.move.adopter import (
    PIECE_BYTES,
    PIECE_EVENTS,
    Adopter,
    Newest,
    piece,
    records_in,
)
from limpet.session.move.bundle import BundleReader, BundleWriter, Opening, refuse_place
from limpet.session.move.contents import Chunk, blobs_in, blobs_of, chunks_of
from limpet.session.move.proof import Proof
from limpet.store.protocol import Record
from limpet.store.threads import in_thread


async def export_session(journal: Journal, key: Key, path: Path) -> None:
    """Write the session as it is now to a file that must not exist yet."""
    _refuse_reserved(key)
    source = records_in(journal)
    head = (await journal.store.load(key, tail=0, scopes=False)).head
    base = await source.base(key)
    refuse_place(path)
    try:
        writer = await in_thread(lambda: BundleWriter(path))
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        writer.begin(head, base)
        after = head.floor
        while after < head.version:
            first = after == head.floor  # blobs stand between it and what may name them
            limit = 1 if first else min(PIECE_EVENTS, head.version - after)
            found = await source.records(key, after=after, limit=limit)
            check_whole(key, found, after)
            after = found[-1].event.seq
            await in_thread(lambda some=found: writer.add(some))  # type: ignore[misc]  # bound now
            if first:
                await _export_blobs(journal, key, writer)
        await in_thread(writer.finish)
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        await in_thread(writer.discard)


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
        _refuse_reserved(opening.key)
        here = await adopter.newest(opening.key)
        last = await _prove(reader, here)
    finally:
        await in_thread(reader.close)
    if here.seq > last.seq:  # it went on since: the file must be what it began with
        await adopter.check_prefix(opening.key, last.seq, last.link)
        return opening.key
    reader = await in_thread(lambda: BundleReader(path))
    try:
        await _adopt(adopter, reader, opening, here.seq)
    finally:
        await in_thread(reader.close)
    return opening.key


async def proved(path: Path) -> tuple[Opening, Newest]:
    """What a file holds, if all of it proves itself. Records nothing. Raises BundleDamaged."""
    reader = await in_thread(lambda: BundleReader(path))
    try:
        return reader.opening, await _prove(reader, Newest())
    finally:
        await in_thread(reader.close)


def check_whole(key: Key, records: tuple[Record, ...], after: int) -> None:
    """Raise SessionCorrupt unless these follow `after` without a gap, each with its body."""
    if not records:
        raise SessionCorrupt(key, f"event {after + 1} is missing")
    for seq, each in enumerate(records, after + 1):
        if each.event.seq != seq:
            raise SessionCorrupt(key, f"event {seq} is missing")
        if each.raw is None:
            reason = "was removed" if each.event.removed else each.event.damage
            raise SessionCorrupt(key, f"event {seq} {reason or 'cannot be read'}")


async def _adopt(adopter: Adopter, reader: BundleReader, opening: Opening, here: int) -> None:
    incoming = _Incoming(adopter, opening, here)
    while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        for is_blob, some in groupby(found, lambda each: isinstance(each, Chunk)):
            if is_blob:
                for chunk in some:
                    await incoming.add_chunk(chunk)  # type: ignore[arg-type]  # as asked
            else:
                await incoming.add(some)  # type: ignore[arg-type]  # as asked


class _Incoming:
    """The second reading of a bundle: what the store lacks is recorded, in the file's order."""

    def __init__(self, adopter: Adopter, opening: Opening, here: int) -> None:
        self._adopter, self._opening, self._here = adopter, opening, here
        self._upload, self._skips = "", False

    async def add(self, records: Iterable[Record]) -> None:
        fresh = [each for each in records if each.event.seq > self._here]
        if fresh:
            opening = self._opening
            base = opening.base if fresh[0].event.seq == opening.floor + 1 else None
            await self._adopter.commit((piece(opening.key, fresh, base),))

    async def add_chunk(self, chunk: Chunk) -> None:
        key, blob = self._opening.key, chunk.blob
        if not chunk.number:
            self._upload, self._skips = "", await self._adopter.has_blob(key, blob.hash)
        if not self._skips:
            at = (blob, chunk.number, chunk.data)
            self._upload = await self._adopter.put_chunk(key, self._upload, *at)


async def _prove(reader: BundleReader, here: Newest) -> Newest:
    """Read to the end and compute everything again; what the last event is.

    Raises BundleDamaged; SessionConflict if the file's log is not the one that is here.
    """
    proof = Proof(reader, here)
    while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        await in_thread(lambda some=found: proof.add(some))  # type: ignore[misc]  # bound now
    return proof.end()


def check_path(path: object) -> Path:
    """A path of a file. Raises InvalidInput."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidInput(f"{path!r} does not name a file. Pass a path, as in 'ada.limpet'.")
    return Path(path)


def _refuse_reserved(key: Key) -> None:
    if is_reserved(key.app):
        raise ReservedApp(key.app)


def _unwritten(path: Path, error: OSError) -> BundleRefused:
    return BundleRefused(str(path), f"cannot be written ({error.strerror or error})")
