"""At: a place in a session's history, and the session as it was there.

A place is a seq, an aware datetime (the last event recorded by then) or a CheckpointRef; or the
text of one, as people write it: "12", "2026-05-01T10:00:00Z", "#3". The past does not change: what
is read here stays true whatever is recorded meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from limpet.errors import CheckpointIntegrity, InvalidInput, NoCheckpoint
from limpet.model import Event, Fold, FrozenDict, Head, Key, checksum, described
from limpet.model.head import check_present
from limpet.model.ops import apply
from limpet.session.arguments import moment_us
from limpet.session.history.checkpoint_log import CheckpointRef, read_ref
from limpet.session.writer import Writer
from limpet.store.protocol import Store

if TYPE_CHECKING:
    from limpet.session.schema.typed import Typed
    from limpet.session.schema.upgrade import Upgrade

When: TypeAlias = int | datetime | CheckpointRef | str
_PLACES: Final = (
    "Pass a seq (12), a time with its zone (2026-05-01T10:00:00Z) or a checkpoint (its "
    "CheckpointRef, or #3)."
)
_TEXTS: Final = "Pass a seq (12), a time (2026-05-01T10:00:00Z) or a checkpoint (#3)."
_DIGITS_MAX: Final = 18
Predicate: TypeAlias = Callable[[Any], "bool | Awaitable[bool]"]


async def head_now(writer: Writer) -> Head:
    """The newest head. Raises SessionDeleted if the key belongs to another session by now,
    SessionArchived if its log is in the archive."""
    loaded = await writer.journal.store.load(writer.known.key, tail=0, scopes=False)
    check_present(loaded.head, writer.known.uid)
    return loaded.head


async def place_of(writer: Writer, text: str) -> int | datetime | CheckpointRef:
    """The place that a text names. Raises InvalidInput, NoCheckpoint."""
    digits = text.removeprefix("#")
    if digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        number = int(digits)
        if digits == text:
            return number
        head = await head_now(writer)
        ref = await read_ref(writer.journal.store, head, number)
        if ref is None:
            raise NoCheckpoint(head.key, number)
        return ref
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        said = described(text).removeprefix("str ")
        raise InvalidInput(f"{said} is not a place in a history. {_TEXTS}") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


async def seq_at(writer: Writer, when: int | datetime | CheckpointRef) -> int:
    """The seq of the last event that belongs to a place. Raises InvalidInput."""
    head = await head_now(writer)
    key = head.key
    if isinstance(when, CheckpointRef):
        if when.key != key:
            raise InvalidInput(
                f"the checkpoint is of {when.key}, not of {key}. Pass a checkpoint of this session."
            )
        when = when.seq
    if isinstance(when, datetime):
        at_us = moment_us("when", when)
        assert at_us is not None
        low, high = 0, head.version  # the event `low` is not later; those beyond `high` are
        if head.updated_us <= at_us:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            event = await event_at(writer.journal.store, head.key, middle)
            if event is not None and event.at_us <= at_us:
                low = middle
            else:
                high = middle - 1
        if low == 0:
            raise InvalidInput(
                f"session {head.key} began after {when.isoformat()}. Pass a later time, or a seq."
            )
        return low
    if not isinstance(when, int) or isinstance(when, bool):
        raise InvalidInput(f"{described(when)} is not a place in a history. {_PLACES}")
    if not 1 <= when <= head.version:
        raise InvalidInput(
            f"session {key} has no event {when}. Pass a seq from 1 to {head.version}."
        )
    return when


async def fold_of(writer: Writer, when: When) -> Fold:
    """The session's own fields, their versions and its head as they were at a place.

    Raises CheckpointIntegrity if the log gives another state than a checkpoint names.
    """
    if isinstance(when, str):
        when = await place_of(writer, when)
    seq = await seq_at(writer, when)
    fold = await writer.journal.store.fold_at(writer.known.key, seq)
    if not isinstance(when, CheckpointRef) or writer.view is not None:  # it has no checksum then
        return fold
    if checksum(fold.fields).hex() != when.checksum:
        raise CheckpointIntegrity(when.key, when.number, "the log gives another state")
    return fold


def fields_of(upgrade: Upgrade | None, fold: Fold) -> FrozenDict:
    """The fields of a fold, brought to the version of the code without recording it.

    Raises MigrationError, SchemaViolation.
    """
    if upgrade is None:
        return fold.fields
    draft = upgrade.migration(fold.head, fold.fields)
    return fold.fields if draft is None else apply(fold.fields, tuple(draft.ops))  # type: ignore[arg-type]  # a migration has plain operations


def state_of(typed: Typed[Any] | None, fold: Fold) -> Any:
    """The state that a session object would have shown then."""
    fields = fields_of(typed, fold)
    return fields if typed is None else typed.fresh(fields)


async def event_at(store: Store, key: Key, seq: int) -> Event | None:
    """One event of a history, through to the parents'."""
    page = await store.read(key, after=seq - 1, limit=1, reverse=False, types=None)
    return page[0] if page and page[0].seq == seq else None


async def first_readable(store: Store, head: Head) -> int:
    """The first event that can be read: those of a session above that was erased cannot be, nor
    those before them. Where a parent is left, its own events can: halves are ruled out one by one.
    """
    low, high = 1, head.floor + 1  # those from `high` on can be read
    while low < high:
        middle = (low + high) // 2 if low > 1 or high < head.floor + 1 else 1  # mostly the first
        event = await event_at(store, head.key, middle)
        if event is not None and event.removed:
            low = middle + 1
        else:
            high = middle
    return low


async def bisect(writer: Writer, predicate: Predicate) -> Event | None:
    """The first event after which `predicate(state)` is false; None if it is true now.

    It is asked at most ceil(log2 n) + 1 times for n events, once for each state that is read. It
    has to stay false once it is: otherwise some event after which it becomes false is found.
    """
    head, store = await head_now(writer), writer.journal.store
    if await _holds(writer, predicate, head.version):
        return None
    low, high = await first_readable(store, head), head.version  # false after `high`
    while low < high:
        middle = (low + high) // 2
        if await _holds(writer, predicate, middle):
            low = middle + 1
        else:
            high = middle
    return await event_at(store, head.key, high)


async def _holds(writer: Writer, predicate: Predicate, seq: int) -> bool:
    fold = await writer.journal.store.fold_at(writer.known.key, seq)
    answer = predicate(state_of(writer.typed, fold))
    return bool(await answer if inspect.isawaitable(answer) else answer)
