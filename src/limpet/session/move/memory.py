"""The memory of a session on its way: the logs of its documents travel after its checkpoints.

Session and episodic memory, and what a delegated session wrote over its parent's, belong to one
session alone. Each document is adopted like any other log, so versions, and which checkpoint each
of them follows, arrive as they were recorded. What a session has promoted belongs to its user, and
stays: a file must not put anything in front of the user's other sessions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from limpet.errors import SessionDeleted
from limpet.model import Commit, Head, Key
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
from limpet.store.protocol import ChainedEvent


class MemoryEvent(msgspec.Struct, frozen=True):
    """An event of the log of a document that a session remembers."""

    name: str
    record: ChainedEvent


def logs_of(journal: Journal, key: Key) -> AsyncIterator[Head]:
    """The logs of what a session remembers, in the order of a file."""
    return memory_logs(journal, key, own_places(key.id))


async def newest_of(journal: Journal, key: Key) -> dict[str, Newest]:
    """Where each log of what a session remembers ends here, by name."""
    return {h.key.id: Newest(h.version, h.link) async for h in logs_of(journal, key)}


def is_own(key: Key, name: str) -> bool:
    """Whether a document belongs to this session alone."""
    return name.startswith(own_places(key.id))


async def memory_records(
    journal: Journal, log: Head, after: int = 0
) -> AsyncIterator[tuple[ChainedEvent, ...]]:
    """The log of one document in pieces, up to where it stood."""
    source = records_in(journal)
    while after < log.version:
        limit = min(PIECE_EVENTS, log.version - after)
        found = await source.records(log.key, after=after, limit=limit)
        check_whole(log.key, found, after)
        yield found
        after = found[-1].event.seq


async def here_of(adopter: Adopter, log: Key) -> Newest:
    """Where the log of a document ends here. It may have ended with an earlier session under the
    key: then it begins again."""
    try:
        return await adopter.newest(log)
    except SessionDeleted:
        return Newest()


def memory_piece(log: Key, records: Iterable[ChainedEvent]) -> Commit:
    """The commit that adopts these events of the log of a document."""
    made = piece(log, records)
    origin = made.drafts[0].origin
    return msgspec.structs.replace(made, reuse=origin is not None and origin.seq == 1)
