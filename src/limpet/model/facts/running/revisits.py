"""Revisits: wake timers that a turn has asked for, with a reason and a priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.events import TIME_US_MAX, TIME_US_MIN, Fact, to_time
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts
from limpet.model.keys import unfit
from limpet.model.limits import NAME_CHARS_MAX, REASON_CHARS_MAX, TIMERS_MAX
from limpet.model.values import EMPTY, FrozenDict, described

REVISIT_SET: Final = "session.revisit_set"
TIMERS_TAKEN: Final = "session.timers_taken"
_PREFIX: Final = "revisit:"

RevisitPriority: TypeAlias = Literal["low", "normal", "high"]
_ORDER: Final = {"high": 0, "normal": 1, "low": 2}


class Revisit(msgspec.Struct, frozen=True):
    """A time at which a turn wanted to be woken; or a wake timer of the session."""

    key: str
    reason: str
    at_us: int
    priority: RevisitPriority = "normal"

    @property
    def at(self) -> datetime:
        return to_time(self.at_us)


def revisit_set(
    key: str, at_us: int, reason: str, *, priority: RevisitPriority, replace: bool
) -> Fact:
    """Come back at this time. One that is set under the same key stands, unless replaced.

    Raises InvalidEvent.
    """
    if priority not in _ORDER:
        raise InvalidEvent(f"a priority is 'low', 'normal' or 'high', not {described(priority)}")
    for what, text, most in (("key", key, NAME_CHARS_MAX), ("reason", reason, REASON_CHARS_MAX)):
        if why := unfit(text, most):
            raise InvalidEvent(f"the {what} of a revisit {why}")
    if not TIME_US_MIN <= at_us <= TIME_US_MAX:
        raise InvalidEvent("the time of a revisit is beyond the years that a datetime has")
    data = {"name": f"{_PREFIX}{key}", "at_us": at_us, "reason": reason}
    data |= {"priority": priority, "replace": replace}
    return Fact(type=REVISIT_SET, data=data)


def timers_taken(names: Iterable[str]) -> Fact:
    """These timers were due, and a turn has dealt with them."""
    return Fact(type=TIMERS_TAKEN, data={"names": list(names)})


def revisits_of(facts: Facts, names: Iterable[str], texts: Texts = NO_TEXTS) -> tuple[Revisit, ...]:
    """The timers of these names: the highest priority first, then the longest due."""
    timers = facts.get("timers", EMPTY)
    found = [_revisit(name, timers[name], texts) for name in names if name in timers]
    return tuple(sorted(found, key=lambda r: (_ORDER[r.priority], r.at_us, r.key)))


def without_revisits(facts: Facts) -> FrozenDict | None:
    """The timers that no turn has asked for; None if there are no others."""
    timers = facts.get("timers", EMPTY)
    return _kept({name: t for name, t in timers.items() if not is_revisit(t)})


def is_revisit(timer: Mapping[str, Any]) -> bool:
    """True if a turn has asked for this timer."""
    return "priority" in timer


def fold_set(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    timers, name = facts.get("timers", EMPTY), data["name"]
    if "interrupt" in facts.get("run", EMPTY):
        return {}  # the turn that asks was interrupted before its end was recorded
    if name in timers and not data["replace"]:
        return {}
    timer = {"at_us": data["at_us"], "kind": "wake", "seq": at.seq}
    timer["priority"] = data["priority"]
    return {"timers": FrozenDict({**timers, name: FrozenDict(timer)})}


def fold_taken(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    gone = set(data["names"])
    timers = facts.get("timers", EMPTY)
    return {"timers": _kept({name: t for name, t in timers.items() if name not in gone})}


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the session would have too many timers."""
    if len(after.get("timers", EMPTY)) > TIMERS_MAX:
        raise InvalidEvent(f"the session would have more than {TIMERS_MAX} timers and revisits")


def _revisit(name: str, timer: Mapping[str, Any], texts: Texts) -> Revisit:
    if not is_revisit(timer):
        return Revisit(name, "", timer["at_us"])
    said = {**timer, **texts.get(timer["seq"], EMPTY)}
    key = name.removeprefix(_PREFIX)
    return Revisit(key, said.get("reason", ""), timer["at_us"], timer["priority"])


def _kept(timers: dict[str, Any]) -> FrozenDict | None:
    return FrozenDict(timers) if timers else None
