"""Timers: named times at which a session is due or should end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.events import TIME_US_MAX, TIME_US_MIN, Fact, to_time, to_us
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts
from limpet.model.keys import unfit
from limpet.model.limits import NAME_CHARS_MAX, REASON_CHARS_MAX, TIMERS_MAX
from limpet.model.values import EMPTY, FrozenDict, described

TIMER_SET: Final = "session.timer_set"
TIMER_CLEARED: Final = "session.timer_cleared"

TimerKind: TypeAlias = Literal["wake", "deadline"]


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A time at which the session should be woken or should end."""

    at_us: int
    kind: TimerKind = "wake"
    seq: int = 0  # of the event that set it

    @property
    def at(self) -> datetime:
        """The time at which it is due."""
        return to_time(self.at_us)


def timer_set(
    name: str, at: datetime, *, kind: TimerKind = "wake", actor: str | None = None
) -> Fact:
    """Set a timer to an aware datetime, replacing a timer of that name. Raises InvalidEvent."""
    _check_name(name)
    if not isinstance(at, datetime):
        raise InvalidEvent(f"a timer's time is an aware datetime, not {described(at)}")
    if kind not in ("wake", "deadline"):
        raise InvalidEvent(f"a timer's kind is 'wake' or 'deadline', not {kind!r}")
    data = {"name": name, "at_us": to_us(at), "kind": kind}
    return Fact(type=TIMER_SET, data=data, actor=actor)


def timer_cleared(name: str, *, actor: str | None = None) -> Fact:
    """Clear a timer. Raises InvalidEvent."""
    _check_name(name)
    return Fact(type=TIMER_CLEARED, data={"name": name}, actor=actor)


def timers_in(facts: Facts) -> dict[str, Timer]:
    """The timers that are set, by name."""
    return {
        name: Timer(timer["at_us"], timer["kind"], timer["seq"])
        for name, timer in facts.get("timers", EMPTY).items()
    }


def first_us(facts: Facts, kind: TimerKind) -> int | None:
    """Return when the first timer of this kind is due."""
    if "timers" not in facts:  # of most sessions, and every commit asks
        return None
    timers = facts["timers"].values()
    return min((timer["at_us"] for timer in timers if timer["kind"] == kind), default=None)


def fold_timer_set(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    timer = FrozenDict({"at_us": data["at_us"], "kind": data["kind"], "seq": at.seq})
    return {"timers": FrozenDict({**facts.get("timers", EMPTY), data["name"]: timer})}


def fold_timer_cleared(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    left = {n: t for n, t in facts.get("timers", EMPTY).items() if n != data["name"]}
    return {"timers": FrozenDict(left) if left else None}


def check_timers(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the session would have too many timers: a head must stay small."""
    if len(after.get("timers", EMPTY)) > TIMERS_MAX:
        raise InvalidEvent(f"the session would have more than {TIMERS_MAX} timers and revisits")


def _check_name(name: str) -> None:
    if reason := unfit(name, NAME_CHARS_MAX):
        raise InvalidEvent(f"the timer's name {reason}")


REVISIT_SET: Final = "session.revisit_set"
TIMERS_TAKEN: Final = "session.timers_taken"
_PREFIX: Final = "revisit:"

RevisitPriority: TypeAlias = Literal["low", "normal", "high"]
_ORDER: Final = {"high": 0, "normal": 1, "low": 2}


class Revisit(msgspec.Struct, frozen=True):
    """A time at which a turn asked to be woken, or a wake timer of the session."""

    key: str
    reason: str
    at_us: int
    priority: RevisitPriority = "normal"

    @property
    def at(self) -> datetime:
        """The time of the wake."""
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
    """Return the fact that these timers were due, and a turn has dealt with them."""
    return Fact(type=TIMERS_TAKEN, data={"names": list(names)})


def revisits_of(facts: Facts, names: Iterable[str], texts: Texts = NO_TEXTS) -> tuple[Revisit, ...]:
    """The timers of these names: the highest priority first, then the longest due."""
    timers = facts.get("timers", EMPTY)
    revisits = [_revisit(name, timers[name], texts) for name in names if name in timers]
    return tuple(sorted(revisits, key=lambda r: (_ORDER[r.priority], r.at_us, r.key)))


def without_revisits(facts: Facts) -> FrozenDict | None:
    """The timers that no turn has asked for; None if there are no others."""
    timers = facts.get("timers", EMPTY)
    return _kept({name: t for name, t in timers.items() if not is_revisit(t)})


def is_revisit(timer: Mapping[str, Any]) -> bool:
    """True if a turn has asked for this timer."""
    return "priority" in timer


def fold_revisit_set(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
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


def _revisit(name: str, timer: Mapping[str, Any], texts: Texts) -> Revisit:
    if not is_revisit(timer):
        return Revisit(name, "", timer["at_us"])
    said = {**timer, **texts.get(timer["seq"], EMPTY)}
    key = name.removeprefix(_PREFIX)
    return Revisit(key, said.get("reason", ""), timer["at_us"], timer["priority"])


def _kept(timers: dict[str, Any]) -> FrozenDict | None:
    return FrozenDict(timers) if timers else None
