"""Forks of sessions, and logs that are adopted elsewhere, for the tests of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from limpet.model import (
    Base,
    Commit,
    Event,
    Fact,
    Key,
    Origin,
    Prepared,
    checksum,
    decode_body,
    is_input,
)
from limpet.model.facts.creation import forked
from limpet.store.protocol import ChainedEvent, Committed, Records, Store
from limpet.testing.commits import ALL, ready


class RecordStore(Store, Records, Protocol):
    """A store that also reads logs as they were recorded, as all of ours do."""


async def base_at(store: Store, parent: Key, floor: int) -> Base:
    """The state of a session after an event, for another log to begin on."""
    fold = await store.fold_at(parent, floor)
    head = (await store.load(parent, tail=0)).head
    return Base(
        parent,
        head.uid,
        floor,
        fold.head.link,
        fold.fields,
        fold.versions,
        checksum(fold.fields),
    )


def forking(of: Key, base: Base, *more: Prepared, **labels: str) -> Commit:
    """The commit that begins a session on a state."""
    named: dict[str, Any] = {"uid": base.uid, "floor": base.floor, "checksum": base.checksum}
    first = ready(forked(of, base.parent, labels=labels, **named))
    return Commit(of, (first, *more), 0, base=base)


async def fork(store: Store, of: Key, parent: Key, floor: int, *more: Prepared) -> Committed:
    """Begin a session on its parent's state after event `floor`."""
    (made,) = await store.commit([forking(of, await base_at(store, parent, floor), *more)])
    return made


async def recorded(store: RecordStore, of: Key) -> tuple[ChainedEvent, ...]:
    """A session's own events, just as they were recorded."""
    events: list[ChainedEvent] = []
    while page := await store.records(of, after=_last(events), limit=ALL):
        events += [opened(each) for each in page]
    return tuple(events)


def opened(record: ChainedEvent) -> ChainedEvent:
    """A record with what its body says of its event. How a store has it compressed is left out."""
    event = record.event
    if record.raw is not None:
        body = decode_body(record.raw)
        event = msgspec.structs.replace(event, data=body.data, ops=body.ops)
    return msgspec.structs.replace(record, event=event, compressed=None)


def _last(page: list[ChainedEvent]) -> int:
    return page[-1].event.seq if page else 0


def adopted(record: ChainedEvent) -> Prepared:
    """A draft of what another store recorded."""
    event = record.event
    assert record.raw is not None
    made = ready(
        Fact(
            type=event.type,
            data=event.data,
            ops=event.ops,
            actor=event.actor,
            id=event.id,
            cause=event.cause,
            invocation_id=event.invocation_id,
            correlation_id=event.correlation_id,
            wake_id=event.wake_id,
            input=event.processed is not None and not is_input(event.type),
        )
    )
    origin = Origin(event.seq, event.at_us, record.salt, event.link)
    return msgspec.structs.replace(made, raw=record.raw, origin=origin)


def adoption(of: Key, records: Sequence[ChainedEvent], base: Base | None = None) -> Commit:
    """The commit that takes over events of another store."""
    return Commit(of, tuple([adopted(record) for record in records]), base=base)


def plain(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """Return the chained part of events, comparable between stores."""
    return [(e.seq, e.id, e.type, e.actor, e.at_us, e.data, e.ops, e.link) for e in events]
