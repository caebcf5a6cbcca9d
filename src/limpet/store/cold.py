"""Cold segments: runs of old events, compressed together, that take the place of their rows.

A segment holds what the chain needs of each event, column by column, since columns compress well.
Digests and links are not in it: they are computed again from the link before it, and the link after
it stands beside it. So a segment that was changed shows, and its bytes are few. The bytes pass the
codec, as those of events do.

An input that is pending keeps its row, where it is marked when it is processed: the segment has all
of it but the body. Whoever opens a segment puts such rows into it (`filled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from limpet.model import Event, chain, decode_body, is_input
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.protocol import ChainedEvent, Place

EVENTS_MAX: Final = 2_048  # in one segment
BYTES_MAX: Final = 1 << 20  # of bodies in one segment, or one event that is larger
ID_BYTES: Final = 20  # about what the hash of an id takes, by which a repeat is recognised
EVENTS_MIN: Final = 256  # a smaller segment is joined with what comes next

_NO_ROW: Final = "was pending, and its row is not there"
Stored: TypeAlias = tuple[int, bytes, int]  # the flags, the body and the checksum of a segment
# Errors of bytes that are not ours; StopIteration, if there are too few salts.
_UNREADABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, StopIteration)


class Cold(msgspec.Struct, frozen=True):
    """An event of a segment, as it was recorded; `adopted`: by another store."""

    record: ChainedEvent
    adopted: bool


class SegmentDamaged(Damaged):
    """A segment of which nothing can be used. `problem` is said of it, the text of its events."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"is in a segment that {problem}")


class _Columns(msgspec.Struct, array_like=True):
    """A segment's events, column by column."""

    ids: list[str]
    types: list[str]
    actors: list[str]
    ats: list[int]  # the first, then the time since the one before
    causes: list[str | None]
    invocations: list[str | None]
    correlations: list[str | None]
    wakes: list[str | None]
    processed: list[tuple[int, int] | int | None]  # the seq and the time; 0: pending
    adopted: list[int]  # places of those that another store recorded
    salts: bytes
    raws: list[bytes | None]
    digests: dict[int, bytes]  # of bodies that were removed, by place


def place(uid: str, first: int, last: int) -> Place:
    """Return the place of a segment. Bound into its checksum and its seal."""
    return Place("segment", uid, f"{first}-{last}")


def mark(id: str) -> int:
    """Return the mark by which an id is found among those of segments; the segment itself has
    the answer."""
    return int.from_bytes(sha256(id.encode()).digest()[:8], "big", signed=True)


def encode(cold: Sequence[Cold]) -> bytes:
    """The bytes of a segment. Every body must be readable, or removed on purpose."""
    records = [each.record for each in cold]
    events = [record.event for record in records]
    before = [0, *[event.at_us for event in events[:-1]]]
    done: list[tuple[int, int] | int | None] = [
        (e.processed, e.processed_us or 0) if e.processed else e.processed for e in events
    ]
    return msgspec.msgpack.encode(
        _Columns(
            [event.id for event in events],
            [event.type for event in events],
            [event.actor for event in events],
            [event.at_us - was for event, was in zip(events, before, strict=True)],
            [event.cause for event in events],
            [event.invocation_id for event in events],
            [event.correlation_id for event in events],
            [event.wake_id for event in events],
            done,
            [at for at, each in enumerate(cold) if each.adopted],
            b"".join([r.salt for r in records if r.raw is not None]),
            [record.raw for record in records],
            {at: r.digest for at, r in enumerate(records) if r.raw is None},
        )
    )


def trimmed(cold: list[Cold]) -> list[Cold]:
    """The events up to the last that is not pending: a segment ends with one that it holds."""
    while cold and is_pending(cold[-1]):
        cold = cold[:-1]
    return cold


def is_pending(each: Cold) -> bool:
    return each.record.event.processed == 0


def hollowed(cold: Sequence[Cold]) -> list[Cold]:
    """Return the events as a segment holds them: without the bodies of pending ones."""
    return [_hollow(each) if is_pending(each) else each for each in cold]


def _hollow(each: Cold) -> Cold:
    record = each.record
    return Cold(ChainedEvent(record.event, None, b"", record.digest), each.adopted)


def lacks(cold: Sequence[Cold]) -> bool:
    """True if a segment has events whose rows are kept, or bodies that were removed."""
    return any([each.record.raw is None for each in cold])


def filled(cold: Sequence[Cold], kept: Mapping[int, Cold]) -> list[Cold]:
    """The events of a segment with the rows that are kept beside it. One that was pending and has
    no row is lost, not removed."""
    done = []
    for each in cold:
        row, event = kept.get(each.record.event.seq), each.record.event
        if row is None and each.record.raw is None and is_pending(each):
            lost = msgspec.structs.replace(event, removed=False, damage=_NO_ROW)
            row = Cold(ChainedEvent(lost, None, b"", each.record.digest), each.adopted)
        done.append(each if row is None else row)
    return done


def opened(
    codec: Codec, uid: str, seqs: tuple[int, int], stored: Stored, links: tuple[bytes, bytes]
) -> list[Cold]:
    """The events of a segment, from its first and last seq and the links before and after it.

    Raises SegmentDamaged.
    """
    first, last = seqs
    try:
        raw = codec.unpack(*stored, lambda: place(uid, first, last), bound=True)
        decoded = decode(raw, first, *links)
    except SegmentDamaged:
        raise
    except Damaged as error:
        raise SegmentDamaged(f"cannot be read: it {error}") from error
    except _UNREADABLE as error:
        raise SegmentDamaged(f"cannot be read ({error!r})") from error
    if len(decoded) != last - first + 1:
        raise SegmentDamaged("has another length")
    return decoded


def decode(raw: bytes, first: int, previous: bytes, last: bytes) -> list[Cold]:
    """The events in a segment's bytes. Raises SegmentDamaged if they do not lead to `last`."""
    columns = msgspec.msgpack.decode(raw, type=_Columns)
    cold: list[Cold] = []
    link, at_us, salts = previous, 0, iter(_pieces(columns.salts))
    adopted = set(columns.adopted)
    for number, body in enumerate(columns.raws):
        at_us += columns.ats[number]
        salt = b"" if body is None else next(salts)
        digest = columns.digests[number] if body is None else chain.body_digest(salt, body)
        event = _event(columns, number, first + number, at_us, link, digest)
        link = event.link
        cold.append(Cold(ChainedEvent(event, body, salt, digest), number in adopted))
    if link != last:
        raise SegmentDamaged("does not lead to the link after it")
    return cold


def _event(
    columns: _Columns, number: int, seq: int, at_us: int, previous: bytes, digest: bytes
) -> Event:
    names = (columns.ids[number], columns.types[number], columns.actors[number])
    causes = (columns.causes[number], columns.invocations[number])
    more = (columns.correlations[number], columns.wakes[number])
    done = columns.processed[number]
    by, by_us = done if isinstance(done, (tuple, list)) else (done, None)
    marked = by is not None and not is_input(names[1])
    header = chain.header_digest((*names, *causes, *more), marked=marked)
    body = columns.raws[number]
    content = None if body is None else decode_body(body)
    return Event(
        seq,
        *names,
        at_us,
        None if content is None else content.data,
        () if content is None else content.ops,
        *causes,
        *more,
        by,
        by_us,
        chain.link(previous, seq, at_us, header, digest),
        removed=body is None,
    )


def _pieces(salts: bytes) -> list[bytes]:
    size = chain.SALT_BYTES
    return [salts[at : at + size] for at in range(0, len(salts), size)]
