"""Rewind: one event that makes the state what it was. Nothing is deleted, so it can be rewound.

The session's own fields become exactly those of then. An app: or user: name goes back to what it
was before this session first changed it, but only if no other session changed it since. The event
also says whether the conversation goes back: what `messages` and `context` then leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.errors import SessionConflict, SessionCorrupt, SessionTyped, TurnUnderway
from limpet.model import (
    Delete,
    Event,
    Fact,
    Fold,
    FrozenDict,
    PlainOp,
    Set,
    checksum,
    is_leased,
    same,
    scope_of,
)
from limpet.model.facts.history import rewound
from limpet.model.facts.running.runs import is_interrupted, turn_in
from limpet.model.limits import PAGE_MAX
from limpet.session.conversation.messages import read_spoken
from limpet.session.conversation.timeline import STRUCTURE, in_view
from limpet.session.history.point_in_time import fields_of
from limpet.session.schema.upgrade import ops_between
from limpet.session.writer import Writer
from limpet.store.protocol import NameSince


class Rewound(msgspec.Struct, frozen=True):
    """The result of a rewind."""

    event: Event | None  # None: state and conversation were the same: nothing was recorded
    restored: tuple[str, ...]  # names whose values are now those of then
    left: tuple[str, ...]  # app: and user: names that another session changed too

    def __str__(self) -> str:
        left = f"; left, since others changed them too: {', '.join(self.left)}" if self.left else ""
        if self.event is None:
            return f"nothing to restore{left}"
        restored = ", ".join(self.restored) or "the conversation"
        return f"event {self.event.seq} restored {restored}{left}"


async def rewind(
    writer: Writer,
    fold: Fold,
    *,
    actor: str | None,
    data: Mapping[str, Any],
    messages: bool,
    damaged: bool = False,
    repairs: bool = False,
) -> Rewound:
    """Make the state that of a fold of the past. `data` is added to the event's.

    With `messages`, the conversation too. If `damaged`, also where an event since cannot be read:
    every field is then written whole, and shared names are left as they are. One that `repairs` a
    session may come during a turn.
    Raises SessionTyped, MigrationError, SchemaViolation; TurnUnderway; SessionConflict if others
    never pause.
    """
    made: list[Rewound] = []

    async def attempt() -> Event | None:
        if not damaged:
            writer.known.check_whole()
        if not repairs:
            _check_no_turn(writer, messages=messages)
        made[:] = [await _attempt(writer, fold, actor, data, messages=messages)]
        return made[0].event

    try:
        await writer.load_whole()
    except SessionCorrupt:  # perhaps an old event, which a kept state stands for
        await writer.load(tail=0)
    await writer.persist(attempt, whole=False)
    return made[0]


def replacing(writer: Writer, fold: Fold, data: Mapping[str, Any]) -> Fact:
    """The fact that makes the session's own fields those of a fold, whatever happened since.

    For a commit on the version that is known. Shared names are left as they are. Raises
    SessionTyped, SchemaViolation.
    """
    target = fields_of(writer.typed, fold)
    _check_typed(writer, fold)
    said = {**data, "at": fold.head.version, "checksum": checksum(target).hex()}
    return rewound(said, _replacing(writer.known.fields, target))


async def _attempt(
    writer: Writer, fold: Fold, actor: str | None, data: Mapping[str, Any], *, messages: bool
) -> Rewound:
    known, seq = writer.known, fold.head.version
    fields, version = known.fields, known.version  # of one moment: others may move it on meanwhile
    target = fields_of(writer.typed, fold)
    _check_typed(writer, fold)
    own = _replacing(fields, target) if known.damaged else ops_between(fields, target)
    since = {} if known.damaged else await _changed_since(writer, seq)
    shared, left = _shared_ops(writer, since)
    said_less = messages and await _changes_conversation(writer, seq)
    if not own and not shared and not said_less:
        return Rewound(None, (), left)
    said = {**data, "at": seq, "checksum": checksum(target).hex()}
    if messages:
        said["messages"] = True
    draft = writer.journal.prepare(rewound(said, (*own, *shared)), actor)
    guards = {str(op.path[0]): since[str(op.path[0])].version for op in shared}
    if writer.typed is not None:
        writer.typed.fit_after(fields, (draft,))  # and whether this actor may write them
    schema = known.head.schema_version
    (event,) = await writer.commit((draft,), version, guards, schema, classless=False)
    names = {str(op.path[0]) for op in (*own, *shared)}
    return Rewound(event, tuple(sorted(names)), left)


def _check_no_turn(writer: Writer, *, messages: bool) -> None:
    """Raise TurnUnderway while a turn goes on: what it has recorded would lie in the past of what
    it does next. Its own harness may take back state."""
    head, lease = writer.known.head, writer.lease
    is_begun = turn_in(head.facts) is not None
    if lease is not None and not (is_begun and messages):
        return
    is_running = is_leased(head, writer.journal.now_us())
    if is_running or (is_begun and not is_interrupted(head.facts)):
        raise TurnUnderway(writer.known.key)


async def _changes_conversation(writer: Writer, at: int) -> bool:
    """True if the conversation after event `at` is another one than now."""
    key, store = writer.known.key, writer.journal.store

    async def read(*, after: int, limit: int, types: tuple[str, ...]) -> tuple[Event, ...]:
        return await store.read(key, after=after, limit=limit, reverse=False, types=types)

    events = await read_spoken(read, 0)
    then = in_view([event for event in events if event.seq <= at])
    now = in_view(events)
    return [e.seq for e in then if e.type not in STRUCTURE] != [
        e.seq for e in now if e.type not in STRUCTURE
    ]


def _replacing(fields: FrozenDict, target: FrozenDict) -> tuple[PlainOp, ...]:
    """Return operations that leave just the target, whatever an unreadable event did."""
    gone: list[PlainOp] = [Delete((name,)) for name in fields if name not in target]
    return (*gone, *[Set((name,), value) for name, value in target.items()])


def _check_typed(writer: Writer, fold: Fold) -> None:
    """Check that both have the same schema version: without its class, typed state cannot be
    migrated."""
    now = writer.known.head.schema_version
    if writer.classless and now is not None and fold.head.schema_version != now:
        raise SessionTyped(writer.known.key, now)


async def _changed_since(writer: Writer, seq: int) -> Mapping[str, NameSince]:
    """The shared names that this session itself has changed since an event."""
    known, store = writer.known, writer.journal.store
    if not known.scopes:
        return {}
    names: set[str] = set()
    after = max(seq, known.head.floor)  # what is below its floor, another session wrote
    while page := await store.read(
        known.key, after=after, limit=PAGE_MAX, reverse=False, types=None
    ):
        paths = [str(op.path[0]) for event in page for op in event.ops]
        names.update([name for name in paths if scope_of(name) != "session"])
        after = page[-1].seq
    return await store.names_since(known.key, seq, sorted(names)) if names else {}


def _shared_ops(
    writer: Writer, since: Mapping[str, NameSince]
) -> tuple[tuple[PlainOp, ...], tuple[str, ...]]:
    """Return the operations that take shared names back, and the names left as they are."""
    known = writer.known
    assert known.scopes is not None
    ops: list[PlainOp] = []
    left: list[str] = []
    for name, was in since.items():
        before, now = was.before, known.scopes[name]
        if now.version != was.version:  # written since this object read it: read again
            raise SessionConflict(known.key, "name", now.version, was.version, name)
        if was.others or now.damage is not None or (before is not None and before.damage):
            left.append(name)
        elif before is None or before.deleted:
            ops += [] if now.deleted else [Delete((name,))]
        elif now.deleted or not same(FrozenDict(v=before.value), FrozenDict(v=now.value)):
            ops.append(Set((name,), before.value))
    return tuple(ops), tuple(sorted(left))
