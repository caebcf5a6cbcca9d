"""What earlier runs of a turn have recorded, found by kind, name and occurrence.

A call of the turn looks here first. What it finds is returned instead of done again; if the call
has other arguments than the record, the turn stops. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import EffectFailed, InvalidInput, InvalidValue, SessionCorrupt, TurnMismatch
from limpet.model import CHILD_ENDED, NAME_CHARS_MAX, Event, Key, canonical, settle, unfit
from limpet.model.facts.running import (
    ANSWERS,
    CHILD_CREATED,
    CUSTOM_TOOL_USE,
    ERROR,
    INTENDED,
    OUTCOMES,
    RESERVED,
    SETTLED,
    STEP,
    TOOL_USE,
)

EffectState: TypeAlias = Literal["intended", "succeeded", "failed", "unknown"]
_DIGITS: Final = 32
_CAUSES_MAX: Final = 64  # of an error, looked through
_EFFECTS: Final = "effect."  # their events, and those of compensations
_CALLS: Final = frozenset(
    (STEP, TOOL_USE, CUSTOM_TOOL_USE, *ANSWERS, CHILD_CREATED, CHILD_ENDED, ERROR)
)


class EffectRecord(msgspec.Struct):
    """How far an effect has come."""

    key: str
    args_hash: str
    state: EffectState = "intended"
    tries: int = 0
    result: Any = None
    error: str = ""
    span: str = ""
    wake: str = ""
    args: Any = None  # of the last try; None: the log does not have them


class Records:
    """The records of one turn, and which of them this run has reached."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.steps: dict[tuple[str, int], Event] = {}
        self.effects: dict[tuple[str, int], EffectRecord] = {}
        self.events: dict[str, Event] = {}  # what the harness recorded under an id of the turn
        self.asked: dict[str, Event] = {}
        self.newest: dict[str, str] = {}  # of a request, the one that stands for it by now
        self.outcomes: set[str] = set()  # requests whose outcome is about to be recorded
        self.answers: dict[str, Mapping[str, Any]] = {}  # their data
        self.children: dict[tuple[str, int], Event] = {}
        self.ended: dict[str, Event] = {}
        self.reserved: dict[str, Literal["open", "settled", "cut"]] = {}  # blocks and calls, by id
        self._counts: dict[tuple[str, str], int] = {}
        self._reached: set[tuple[str, int]] = set()
        self._raised: list[EffectFailed] = []
        for event in events:
            self.add(event)

    def occurrence(self, kind: str, name: str) -> int:
        """The number of this call among those of its kind and name in this run, from 1.

        Raises InvalidInput for what cannot be a name.
        """
        if why := unfit(name, NAME_CHARS_MAX):
            raise InvalidInput(f"turn.{kind} takes a name first, and it {why}.")
        number = self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        return number

    def reach(self, name: str, occurrence: int) -> EffectRecord | None:
        """The record of an effect, which this run has reached."""
        self._reached.add((name, occurrence))
        return self.effects.get((name, occurrence))

    def not_reached(self) -> tuple[str, int] | None:
        """A recorded effect that this run has passed by."""
        left = [of for of in self.effects if of not in self._reached]
        return left[0] if left else None

    def failure(self, name: str, occurrence: int, error: str) -> EffectFailed:
        """The error of an effect of this turn, to be raised in the harness."""
        self._raised.append(EffectFailed(name, occurrence, error))
        return self._raised[-1]

    def raised(self, error: BaseException) -> list[tuple[str, int]]:
        """The failed effects of this turn that an error comes from. Another session's effect, or
        one that a harness made up, may have the same name and is not among them."""
        found: dict[tuple[str, int], None] = {}
        left, seen = [error], set[int]()
        while left and len(seen) < _CAUSES_MAX:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, EffectFailed) and any(each is own for own in self._raised):
                found[each.name, each.occurrence] = None
            if isinstance(each, BaseExceptionGroup):
                left += each.exceptions
            cause = each.__cause__ or each.__context__
            left += [] if cause is None else [cause]
        return list(found)

    def dangling(self) -> list[tuple[tuple[str, int], EffectRecord]]:
        """Effects that were begun and have no outcome."""
        return [(of, record) for of, record in self.effects.items() if record.state == "intended"]

    @property
    def accepted(self) -> bool | None:
        """Whether somebody has said that the turn goes on although it takes another way."""
        if not self.asked:
            return None
        asked = [id for id, event in self.asked.items() if event.data["awaits"] == "mismatch"]
        said = [self.answers[id].get("allow") is True for id in asked if id in self.answers]
        return said[-1] if said else None

    def add(self, event: Event) -> None:
        """Take note of an event of the turn."""
        data, type = event.data, event.type
        if data is None:
            return
        if type == STEP:
            self.steps[data["name"], data["occurrence"]] = event
        elif type == INTENDED or type in OUTCOMES:
            self._add_effect(event)
        elif type in (TOOL_USE, CUSTOM_TOOL_USE) and "awaits" in data:
            self.asked[data["request_id"]] = event
            if (old := data.get("replaces")) is not None:
                first = next((f for f, last in self.newest.items() if last == old), old)
                self.newest[first] = data["request_id"]
        elif type in ANSWERS:
            self.answers.setdefault(str(data.get("request_id")), data)
        elif type == CHILD_CREATED:
            self.children[data["name"], data["occurrence"]] = event
        elif type == CHILD_ENDED:
            self.ended[data["child"]] = event
        elif type == RESERVED:
            self.reserved[data["reservation"]] = "open"
        elif type == SETTLED:
            self.reserved[data["reservation"]] = "cut" if "cut" in data else "settled"
        elif type == ERROR:
            for name, occurrence in data.get("effects", ()):
                record = self.effects.get((name, occurrence))
                if record is not None and record.state == "failed":
                    record.error = ""  # to be tried again
        else:
            self.events[event.id] = event

    def _add_effect(self, event: Event) -> None:
        data, of = event.data, (event.data["name"], event.data["occurrence"])
        record = self.effects.get(of)
        if record is None:
            record = self.effects[of] = EffectRecord(data["key"], data["args_hash"])
        if event.type == INTENDED:
            record.tries, record.state = data["tries"], "intended"
            record.args_hash, record.args = data["args_hash"], data.get("args")
            record.span, record.wake = data["span_id"], event.wake_id or ""
            return
        record.state = OUTCOMES[event.type]  # type: ignore[assignment]  # one of its states
        record.result, record.error = data.get("result"), data.get("error", "")


def identity(*parts: object) -> str:
    """A short id that is the same whenever the same call of the same turn is made."""
    return sha256(canonical([str(part) for part in parts])).hexdigest()[:_DIGITS]


def args_hash(*args: Any) -> str:
    """The hash of a call's arguments. Of one that cannot be stored, its type counts."""
    return sha256(canonical([plain(arg) for arg in args])).hexdigest()


def check_readable(key: Key, events: Iterable[Event]) -> None:
    """Raise SessionCorrupt if the record of a call cannot be read, perhaps only for now: what it
    says was done would be done again."""
    for event in events:
        if event.data is None and (event.type in _CALLS or event.type.startswith(_EFFECTS)):
            raise SessionCorrupt(key, f"event {event.seq} ({event.type}) cannot be read")


def check_same(
    what: str,
    name: str,
    occurrence: int,
    hashes: tuple[str, str],
    values: tuple[Any, Any],
) -> None:
    """Raise TurnMismatch if a call has other arguments than its record. Of both, the record's come
    first."""
    recorded, now = hashes
    if recorded != now:
        why = f"was recorded with other arguments (hash {recorded[:8]}, now {now[:8]})"
        raise TurnMismatch(what, name, occurrence, why, *values)


def plain(value: Any) -> Any:
    """A value that can be stored, with the names of types where it cannot."""
    try:
        return settle(value, "an argument")
    except InvalidInput:
        pass
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return {"$type": f"{type(value).__module__}.{type(value).__qualname__}"}


@contextmanager
def result_of(what: str) -> Iterator[None]:
    """Name what returned a value that cannot be recorded: its caller knows no `data`."""
    try:
        yield
    except InvalidValue as error:
        where = error.where.replace("data['result']", f"the result of {what}", 1)
        raise InvalidValue(where, error.reason) from error
