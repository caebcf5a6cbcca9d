"""Blame: which events changed a value, the newest first, back to the beginning.

Fields have versions: the seq of the event that last changed each. So a kept state names the last
change before it, and the kept state before that change the one before: the cost grows with the
changes and not with the log. Between a kept state and a change, and where the field was not there,
the store looks for events that name it.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput, SessionCorrupt
from limpet.model import EMPTY, Event, Fold, Path, PlainOp, described, ops as op
from limpet.model.limits import PAGE_MAX
from limpet.session.history.point_in_time import event_at, first_readable, head_now
from limpet.session.writer import Writer


class Blame(msgspec.Struct, frozen=True):
    """One change of a value: the event, who acted, when, and the operation."""

    event: Event
    actor: str
    at: datetime
    op: PlainOp


# A name, an index, or a name in quotes, as `ops.show` writes them.
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]'"]+)|\[(?P<within>[0-9]{1,9}|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
)


def path_of(path: object) -> Path:
    """A path as a caller writes it, "plan.steps.0", or as a diff shows it, "plan.steps[0]"; or a
    tuple if a name has a dot in it."""
    steps: Sequence[Any] = ()
    if isinstance(path, str):
        with suppress(SyntaxError, ValueError):  # '\\x' in quotes, half a pair, or an index 007
            steps = _steps(path)
    elif isinstance(path, (tuple, list)):
        steps = path
    named = bool(steps) and isinstance(steps[0], str) and steps[0] != ""
    if named and all([type(step) in (str, int) for step in steps]):
        return tuple(steps)
    said, more = described(path), ", or a tuple of names and indexes"
    if isinstance(path, str):
        said, more = said.removeprefix("str "), ""
    dotted = f"names with dots between them, as in plan.steps or plan.steps[0]{more}"
    raise InvalidInput(f"{said} is not a path. Pass {dotted}.")


def _steps(text: str) -> list[Any]:
    """Return names and indexes; empty if the text has anything else in it."""
    steps: list[Any] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or (step["name"] and (at == 0) == text.startswith(".", at)):
            return []
        steps.append(step["name"] or literal_eval(step["within"]))
        at = step.end()
    return steps


async def blame(writer: Writer, path: Path) -> tuple[Blame, ...]:
    """Every change of what is at the path. An operation on a part of it counts; so does one that
    replaces what it is a part of."""
    name, changes = str(path[0]), list[Blame]()
    head = await head_now(writer)
    store, key, at = writer.journal.store, head.key, head.version
    first = await first_readable(store, head)
    while at >= first:
        rung = await store.rung(key, at) if op.scope_of(name) == "session" else None
        changed = None if rung is None else rung.versions.get(name)
        low = 0 if rung is None or changed is None else rung.head.version
        changes += await _between(writer, path, low, at + 1)
        if changed is None:
            break
        changes += await _of_event(writer, await event_at(store, key, changed), path)
        at = changed - 1
    return tuple(changes)


async def _between(writer: Writer, path: Path, after: int, before: int) -> list[Blame]:
    """The changes in a part of the history: the events that name the field are looked at."""
    blamed: list[Blame] = []
    store, key, name = writer.journal.store, writer.known.key, str(path[0])
    while page := await store.naming(key, name, before=before, after=after, limit=PAGE_MAX):
        for event in page:
            blamed += await _of_event(writer, event, path)
        before = page[-1].seq
    return blamed


async def _of_event(writer: Writer, event: Event | None, path: Path) -> list[Blame]:
    """The operations of an event that changed what is at the path, the last first."""
    if event is None or event.removed:
        return []
    if event.data is None:
        raise SessionCorrupt(writer.known.key, f"event {event.seq} cannot be read")
    plain = [op.resolve(each, event.data) for each in event.ops]
    hits: list[PlainOp] = []
    for place, each in enumerate(plain):
        depth = len(each.path)
        above = depth < len(path) and _same_steps(each.path, path[:depth])
        if isinstance(each, op.Add) and above:
            before = await _fields_before(writer, event, plain[:place])
            hits += [each] if _adds(each, before, path) else []
        elif _touches(each, path):
            hits.append(each)
    return [Blame(event, event.actor, event.at, each) for each in reversed(hits)]


def _touches(each: PlainOp, path: Path) -> bool:
    """True if an operation changes the value at a path, or may have."""
    depth = min(len(each.path), len(path))
    if not _same_steps(each.path[:depth], path[:depth]):
        return False
    if len(each.path) >= len(path):
        return True  # the value itself, or a part of it
    if isinstance(each, op.Merge):
        return str(path[depth]) in each.value
    if isinstance(each, (op.Insert, op.Cut)):
        first = each.at if isinstance(each, op.Insert) else each.start
        return _index(path[depth]) >= first  # items from there on moved
    return True


def _adds(each: PlainOp, before: Any, path: Path) -> bool:
    """True if one of the items that an operation adds is the one that the path goes into."""
    assert isinstance(each, op.Add)
    held: Any = before
    for step in each.path:
        try:
            held = held[step]
        except (LookupError, TypeError):
            held = ()
    index, length = _index(path[len(each.path)]), len(held)
    return length <= index < length + len(each.items)


async def _fields_before(writer: Writer, event: Event, plain: list[PlainOp]) -> Any:
    """The fields before one operation of an event."""
    fields = EMPTY
    if event.seq > 1:
        fold: Fold = await writer.journal.store.fold_at(writer.known.key, event.seq - 1)
        fields = fold.fields
    own = [each for each in plain if op.scope_of(str(each.path[0])) == "session"]
    return op.apply(fields, own)


def _same_steps(one: Path, other: Path) -> bool:
    return [str(step) for step in one] == [str(step) for step in other]


def _index(step: str | int) -> int:
    text = str(step)
    return int(text) if text.isdecimal() else -1
