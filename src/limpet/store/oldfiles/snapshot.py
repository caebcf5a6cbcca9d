"""The index as a file: one array in MessagePack, compressed, written whole and read whole."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator
from hashlib import sha256
from sys import intern
from typing import Any, Final

import msgspec

from limpet.model import Head, Key
from limpet.store.blobs import BlobRow
from limpet.store.coding.bodies import UNREADABLE
from limpet.store.coding.codec import Damaged, zstd
from limpet.store.marks import Mark
from limpet.store.oldfiles.index import FilesIndex, IndexedName, IndexedSession, packed
from limpet.store.oldfiles.log import LogEnd, segment_of
from limpet.store.protocol import Erasure

_LEVEL: Final = 1


class SessionEntryRecord(msgspec.Struct, array_like=True, gc=False):
    """A session in the index."""

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
    changed: bool = True  # an earlier release did not say


class NameEntryRecord(msgspec.Struct, array_like=True, gc=False):
    """A shared name in the index."""

    app: str
    user: str
    name: str
    frames: bytes
    single: bytes
    single_first: int
    size: int


class IndexFile(msgspec.Struct, array_like=True, gc=False):
    """Everything."""

    end: tuple[int, int, int, str, str]
    rows: int
    ended: int
    compacted: int
    ring: str | None
    feed: bytes
    feed_first: int
    feed_frames: list[tuple[int, int]]
    sessions: list[SessionEntryRecord]
    names: list[NameEntryRecord]
    erased: list[tuple[bytes, int, bytes, int, int]]
    marks: list[tuple[str, str, int, int]]
    compacted_us: int = 0  # the time of the last compaction; 0: none since an earlier release


_decode: Final = msgspec.msgpack.Decoder(IndexFile).decode


def packed_index(index: FilesIndex, end: LogEnd, compacted: int) -> tuple[bytes, str]:
    """The bytes of an index, and their hash."""
    made = IndexFile(
        (end.segment, end.offset, end.n, end.chain, end.crc),
        index.rows,
        index.ended,
        compacted,
        index.ring,
        index.feed.tobytes(),
        index.feed_first,
        index.feed_frames,
        [_session(entry, index) for entry in index.by_row.values()],
        [_name(owner, n, e) for owner, names in index.names.items() for n, e in names.items()],
        [erasure.stored for erasure in index.erased.values()],
        [(mark.space, mark.name, mark.value, mark.until_us) for mark in index.marks.values()],
        index.compacted_us,
    )
    content: bytes = zstd().compress(msgspec.msgpack.encode(made), _LEVEL)
    return content, sha256(content).hexdigest()


def unpacked_index(content: bytes, digest: str) -> tuple[FilesIndex, LogEnd, int]:
    """An index as it was written. Raises Damaged."""
    if sha256(content).hexdigest() != digest:
        raise Damaged("its checksum does not match")
    # None of what is made here is garbage, and looking for some takes longer than making it.
    collects = gc.isenabled()
    gc.disable()
    try:
        stored = _decode(zstd().decompress(content))
        return _index_from(stored), LogEnd(*stored.end), stored.compacted
    except (*UNREADABLE, zstd().ZstdError, ArithmeticError) as error:
        raise Damaged(str(error)) from error
    finally:
        if collects:
            gc.enable()


def _index_from(stored_index: IndexFile) -> FilesIndex:
    index = FilesIndex()
    index.rows, index.ended, index.ring = stored_index.rows, stored_index.ended, stored_index.ring
    index.feed.frombytes(stored_index.feed)
    index.feed_first, index.feed_frames = stored_index.feed_first, list(stored_index.feed_frames)
    parents: list[tuple[IndexedSession, int]] = []
    for record in stored_index.sessions:
        entry = _entry(record)
        if record.living:
            index.begin(entry, entry.head)
            entry.held = record.head
        else:
            index.by_row[entry.row] = entry
            index.deleted.setdefault(entry.key, []).append(entry)
        if record.parent:
            parents.append((entry, record.parent))
    index.tighten()
    for entry, row in parents:
        parent = index.by_row.get(row)
        if parent is not None:
            entry.parent = parent
            parent.forks = [*(parent.forks or ()), entry]
    for each in stored_index.names:
        named = IndexedName()
        named.frames, named.single = _array(each.frames), _array(each.single)
        named.single_first, named.size = each.single_first, each.size
        index.names.setdefault((each.app, each.user), {})[each.name] = named
    index.erased = {stored[0]: Erasure(*stored) for stored in stored_index.erased}
    index.marks = {mark[:2]: Mark(*mark) for mark in stored_index.marks}
    index.compacted_us = stored_index.compacted_us
    return index


def files_of(index: FilesIndex) -> set[int]:
    """The numbers of all files that an index refers to."""
    numbers = {segment_of(place) for _, place in index.feed_frames}
    for entry in index.by_row.values():
        numbers |= {segment_of(place) for place in (entry.frames or ())[1::2]}
        numbers |= {segment_of(place) for place in entry.single or ()}
        numbers |= {segment_of(place) for place in (entry.snapshots or ())[1::2]}
        numbers.add(segment_of(entry.base))
    for names in index.names.values():
        for each in names.values():
            numbers |= {segment_of(place) for place in (each.frames or ())[1::2]}
            numbers |= {segment_of(place) for place in each.single or ()}
    numbers.discard(0)
    return numbers


def pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The texts between newlines, and where each begins."""
    start = 0
    while start < len(data):
        cut = data.find(b"\n", start)
        cut = len(data) if cut < 0 else cut
        if cut > start:
            yield start, data[start:cut]
        start = cut + 1


def _session(entry: IndexedSession, index: FilesIndex) -> SessionEntryRecord:
    held = packed(entry.held) if isinstance(entry.held, Head) else entry.held
    blobs: Any = None
    if entry.blobs:
        blobs = {hash: msgspec.structs.astuple(row) for hash, row in entry.blobs.items()}
    return SessionEntryRecord(
        entry.row,
        (entry.key.app, entry.key.user, entry.key.id),
        held,
        index.living.get(entry.key) is entry,
        entry.mac,
        entry.base,
        0 if entry.parent is None else entry.parent.row,
        _bytes(entry.frames),
        _bytes(entry.single),
        entry.first,
        entry.single_first,
        _bytes(entry.pending),
        _bytes(entry.processed),
        _bytes(entry.snapshots),
        (entry.snapshot_bytes, entry.delta_bytes),
        entry.pins,
        blobs,
        entry.cold,
        tuple(sorted(entry.hot or ())),
        entry.changed,
    )


def _entry(record: SessionEntryRecord) -> IndexedSession:
    app, user, id = record.key
    entry = IndexedSession(record.row, Key(intern(app), user, id), record.first - 1)
    entry.held, entry.mac, entry.base = record.head, record.mac, record.base
    entry.frames, entry.single = _array(record.frames), _array(record.single)
    entry.single_first = record.single_first
    entry.pending, entry.processed = _array(record.pending), _array(record.processed)
    entry.snapshots = _array(record.snapshots)
    entry.snapshot_bytes, entry.delta_bytes = record.sizes
    entry.pins, entry.cold, entry.changed = record.pins, record.cold, record.changed
    entry.hot = frozenset(record.hot) if record.hot else None
    if record.blobs:
        entry.blobs = {hash: BlobRow(*row) for hash, row in record.blobs.items()}
    return entry


def _name(owner: tuple[str, str], name: str, entry: IndexedName) -> NameEntryRecord:
    frames, single = _bytes(entry.frames), _bytes(entry.single)
    return NameEntryRecord(owner[0], owner[1], name, frames, single, entry.single_first, entry.size)


def _bytes(numbers: array[int] | None) -> bytes:
    return b"" if numbers is None else numbers.tobytes()


def _array(content: bytes) -> array[int] | None:
    if not content:
        return None
    numbers = array("Q")
    numbers.frombytes(content)
    return numbers
