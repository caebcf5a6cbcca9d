"""The checkpoints of a session on their way: their own log travels after the session's.

It is adopted like any other log, so numbers, seqs and checksums arrive as they were recorded. The
states of full checkpoints are pinned again while the session's events are adopted: the pieces end
where a pinned state stands. An event that was there before is not pinned again, which costs time
when it is restored, never data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from limpet.errors import SessionDeleted, SessionNotFound
from limpet.model import INT_MAX, Base, Commit, FrozenDict, Key
from limpet.model.events import TIME_US_MAX, TIME_US_MIN
from limpet.model.facts import checkpoints as facts
from limpet.model.keys import checkpoints_of
from limpet.session.journal import Journal
from limpet.session.move.adopter import (
    PIECE_EVENTS,
    Adopter,
    Newest,
    check_whole,
    piece,
    records_in,
)
from limpet.store.protocol import ChainedEvent, Loaded, Store

PINS_MAX: Final = 8  # states that one commit pins: each is written whole


class Checkpointed(msgspec.Struct, frozen=True):
    """An event of the log of a session's checkpoints."""

    record: ChainedEvent


class Marks(msgspec.Struct, frozen=True):
    """What the log of a session's checkpoints says of the session's own log."""

    sums: Mapping[int, str] = {}  # by seq: the checksum of the state there
    pins: Mapping[int, int] = {}  # by seq: the number of the full checkpoint there
    log: Newest = Newest()  # where that log ends; 0: the session has none

    @property
    def last(self) -> int:
        """The last event that a checkpoint stands on."""
        return max(self.sums, default=0)


_Number: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,17}$")]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]


class _Place(msgspec.Struct, frozen=True):
    """Where the file of a checkpoint is: see `history.checkpoint_tiers`, which confines it."""

    tier: str
    file: str
    base: str | None = None
    schema_version: str | None = None


class _Row(msgspec.Struct, frozen=True):
    """A checkpoint, as the state of that log has it."""

    number: Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
    seq: Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
    checksum: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    full: bool
    trigger: str
    at_us: Annotated[int, msgspec.Meta(ge=TIME_US_MIN, le=TIME_US_MAX)]
    size: _Count
    place: _Place | None = None


class _State(msgspec.Struct, frozen=True):
    """The state of that log."""

    of: str
    last: _Count
    kept: dict[_Number, _Row]

    def __post_init__(self) -> None:
        rows = self.kept.items()
        if any([int(name) != row.number or row.number > self.last for name, row in rows]):
            raise ValueError("a checkpoint has another number than its name")


def marks_in(fields: FrozenDict, uid: str, log: Newest) -> Marks:
    """What the state of such a log says; nothing if it is of another session than `uid`."""
    if fields.get(facts.OF) != uid:
        return Marks()
    state = msgspec.convert(fields, _State)
    rows = {int(number): row for number, row in state.kept.items()}
    pins = {row.seq: number for number, row in sorted(rows.items()) if row.full}
    return Marks({row.seq: row.checksum for row in rows.values()}, pins, log)


async def load_log(store: Store, key: Key) -> Loaded | None:
    """The log of a session's checkpoints; None if it has none."""
    try:
        return await store.load(checkpoints_of(key), tail=0, scopes=False)
    except (SessionNotFound, SessionDeleted):
        return None


def marks_read(found: Loaded | None, uid: str) -> Marks:
    """What a loaded log of checkpoints says."""
    if found is None:
        return Marks()
    head = found.head
    return marks_in(found.fields, uid, Newest(head.version, head.link))


def pinned(
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


async def log_records(
    journal: Journal, key: Key, upto: int, after: int = 0
) -> AsyncIterator[tuple[ChainedEvent, ...]]:
    """The log of a session's checkpoints, up to an event, in pieces."""
    source, log = records_in(journal), checkpoints_of(key)
    while after < upto:
        found = await source.records(log, after=after, limit=min(PIECE_EVENTS, upto - after))
        check_whole(log, found, after)
        yield found
        after = found[-1].event.seq


async def newest_log(adopter: Adopter, key: Key) -> Newest:
    """Where the log of a session's checkpoints ends here. It may have ended with an earlier
    session under the key: then it begins again."""
    try:
        return await adopter.newest(checkpoints_of(key))
    except SessionDeleted:
        return Newest()


def log_piece(key: Key, records: Iterable[ChainedEvent]) -> Commit:
    """The commit that adopts these events of the log of a session's checkpoints."""
    return log_piece_at(checkpoints_of(key), records)


def log_piece_at(log: Key, records: Iterable[ChainedEvent]) -> Commit:
    """The same, where that log is under this key."""
    made = piece(log, records)
    origin = made.drafts[0].origin
    return msgspec.structs.replace(made, reuse=origin is not None and origin.seq == 1)
