"""Attachments: what travels beside a session's own log (its checkpoints, memory and blobs).

The log of its checkpoints and the logs of its documents are adopted like any other log, so numbers,
versions and checksums arrive as they were recorded. The states of full checkpoints are pinned again
while the session's events are adopted: the pieces end where a pinned state stands. What a session
has promoted belongs to its user, and stays: a file must not put anything in front of the user's
other sessions. A blob needs its session and is in the target before an event that names it: the
first event goes ahead, then the blobs, then the rest of the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Final, TypeAlias

import msgspec

from limpet.errors import SessionCorrupt, SessionDeleted, SessionNotFound
from limpet.model import Base, Commit, FrozenDict, Head, Key
from limpet.model.events import TIME_US_MAX, TIME_US_MIN
from limpet.model.facts import checkpoints as facts
from limpet.model.keys import checkpoints_of
from limpet.model.limits import INT_MAX
from limpet.session.history.checkpoint_tiers import CheckpointFile
from limpet.session.journal import Journal
from limpet.session.life.memory import memory_logs, own_places
from limpet.session.move.adopter import (
    PIECE_EVENTS,
    Adopter,
    Newest,
    check_whole,
    piece,
    records_in,
)
from limpet.store.blobs import Blob, Blobs, KeepsBlobs
from limpet.store.protocol import ChainedEvent, Loaded, Store

PINS_MAX: Final = 8  # states that one commit pins: each is written whole
_Number: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,17}$")]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
_PAGE: Final = 100


class CheckpointEvent(msgspec.Struct, frozen=True):
    """An event of the log of a session's checkpoints."""

    record: ChainedEvent


class MemoryEvent(msgspec.Struct, frozen=True):
    """An event of the log of a document that a session remembers."""

    name: str
    record: ChainedEvent


class BlobChunk(msgspec.Struct, frozen=True):
    """A part of a blob, and the blob it is of."""

    blob: Blob
    number: int
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.number == self.blob.chunks - 1


# --- checkpoints ---------------------------------------------------------------------------------


class CheckpointMarks(msgspec.Struct, frozen=True):
    """Checksums and pins that the log of a session's checkpoints has for its own log."""

    sums: Mapping[int, str] = {}  # by seq: the checksum of the state there
    pins: Mapping[int, int] = {}  # by seq: the number of the full checkpoint there
    log: Newest = Newest()  # where that log ends; 0: the session has none

    @property
    def last(self) -> int:
        """The last event that a checkpoint stands on."""
        return max(self.sums, default=0)


class _CheckpointRow(msgspec.Struct, frozen=True):
    """A checkpoint, as the state of that log has it."""

    number: Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
    seq: Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
    checksum: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    full: bool
    trigger: str
    at_us: Annotated[int, msgspec.Meta(ge=TIME_US_MIN, le=TIME_US_MAX)]
    size: _Count
    place: CheckpointFile | None = None  # `CheckpointTiers` confines it


class _CheckpointLogState(msgspec.Struct, frozen=True):
    """The state of that log."""

    of: str
    last: _Count
    kept: dict[_Number, _CheckpointRow]

    def __post_init__(self) -> None:
        rows = self.kept.items()
        if any([int(name) != row.number or row.number > self.last for name, row in rows]):
            raise ValueError("a checkpoint has another number than its name")


def marks_in(fields: FrozenDict, uid: str, log: Newest) -> CheckpointMarks:
    """Return the marks in the state of such a log; empty if it belongs to another uid."""
    if fields.get(facts.OF) != uid:
        return CheckpointMarks()
    state = msgspec.convert(fields, _CheckpointLogState)
    rows = {int(number): row for number, row in state.kept.items()}
    pins = {row.seq: number for number, row in sorted(rows.items()) if row.full}
    return CheckpointMarks({row.seq: row.checksum for row in rows.values()}, pins, log)


async def load_log(store: Store, key: Key) -> Loaded | None:
    """The log of a session's checkpoints; None if it has none."""
    try:
        return await store.load(checkpoints_of(key), tail=0, scopes=False)
    except (SessionNotFound, SessionDeleted):
        return None


def marks_read(loaded: Loaded | None, uid: str) -> CheckpointMarks:
    """Return the marks in a loaded log of checkpoints."""
    if loaded is None:
        return CheckpointMarks()
    head = loaded.head
    return marks_in(loaded.fields, uid, Newest(head.version, head.link))


def pinning_commits(
    key: Key, records: Iterable[ChainedEvent], pins: Mapping[int, int], base: Base | None = None
) -> list[Commit]:
    """The commits that adopt these events, and keep the states of full checkpoints."""
    commits: list[Commit] = []
    some: list[ChainedEvent] = []
    for each in records:
        some.append(each)
        number = pins.get(each.event.seq)
        if number is not None:
            made = piece(key, some, None if commits else base)
            commits.append(msgspec.structs.replace(made, pin=number))
            some = []
    if some:
        commits.append(piece(key, some, None if commits else base))
    return commits


async def adopt_pinned(adopter: Adopter, commits: list[Commit]) -> None:
    """Record them, a few pinned states at a time."""
    for at in range(0, len(commits), PINS_MAX):
        await adopter.commit(commits[at : at + PINS_MAX])


# --- memory --------------------------------------------------------------------------------------


def logs_of(journal: Journal, key: Key) -> AsyncIterator[Head]:
    """The logs of what a session remembers, in the order of a file."""
    return memory_logs(journal, key, own_places(key.id))


async def newest_of(journal: Journal, key: Key) -> dict[str, Newest]:
    """Return where each log of a session's memory ends here, by name."""
    return {h.key.id: Newest(h.version, h.link) async for h in logs_of(journal, key)}


def is_own(key: Key, name: str) -> bool:
    """True if a document belongs to this session alone."""
    return name.startswith(own_places(key.id))


# --- blobs ---------------------------------------------------------------------------------------


def blobs_in(journal: Journal) -> Blobs | None:
    """The blobs of a store; None if it keeps none."""
    store = journal.store
    return store.blobs if isinstance(store, KeepsBlobs) else None


async def blobs_of(source: Blobs, key: Key) -> AsyncIterator[Blob]:
    """Every own blob of a session."""
    after = ""
    while page := await source.page(key, after=after, limit=_PAGE):
        for blob in page:
            yield blob
        after = page[-1].hash


async def chunks_of(source: Blobs, key: Key, blob: Blob) -> AsyncIterator[BlobChunk]:
    """A blob in parts. Raises SessionCorrupt instead of a last part, if it is not what was put."""
    content = sha256()
    for number in range(blob.chunks):
        data = await source.chunk(key, blob.hash, number)
        if data is None:
            raise SessionCorrupt(key, f"chunk {number} of blob {blob.hash} is missing")
        content.update(data)
        if number == blob.chunks - 1 and content.hexdigest() != blob.hash:
            raise SessionCorrupt(key, f"blob {blob.hash} has another content than its hash says")
        yield BlobChunk(blob, number, data)


async def copy_blobs(source: Blobs, target: Adopter, key: Key, stage: Key | None = None) -> int:
    """Send the blobs of this session that the target lacks; return their number. `stage` is the key
    that the session has there, if it is another."""
    sent, there = 0, stage or key
    async for blob in blobs_of(source, key):
        if await target.has_blob(there, blob.hash):
            continue
        upload = ""
        async for chunk in chunks_of(source, key, blob):
            upload = await target.put_chunk(there, upload, chunk.blob, chunk.number, chunk.data)
        sent += 1
    return sent


# --- logs beside a session's own -----------------------------------------------------------------


async def records_beside(
    journal: Journal, log: Key, upto: int, after: int = 0
) -> AsyncIterator[tuple[ChainedEvent, ...]]:
    """Read a log beside a session's own, of its checkpoints or of a document, up to an event."""
    source = records_in(journal)
    while after < upto:
        records = await source.records(log, after=after, limit=min(PIECE_EVENTS, upto - after))
        check_whole(log, records, after)
        yield records
        after = records[-1].event.seq


async def newest_beside(adopter: Adopter, log: Key) -> Newest:
    """Return where a log beside a session's own ends here. It may have ended with an earlier
    session under the key: then it begins again."""
    try:
        return await adopter.newest(log)
    except SessionDeleted:
        return Newest()


def piece_beside(log: Key, records: Iterable[ChainedEvent]) -> Commit:
    """Return the commit that adopts these events of a log beside a session's own."""
    made = piece(log, records)
    origin = made.drafts[0].origin
    return msgspec.structs.replace(made, reuse=origin is not None and origin.seq == 1)
