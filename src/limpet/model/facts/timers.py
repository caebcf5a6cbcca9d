"""Timers: named times at which a session is due or should end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.events import Fact, to_time, to_us
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import unfit
from limpet.model.limits import NAME_CHARS_MAX, TIMERS_MAX
from limpet.model.values import EMPTY, FrozenDict, described

TIMER_SET: Final = "session.timer_set"
TIMER_CLEARED: Final = "session.timer_cleared"

TimerKind: TypeAlias = Literal["wake", "deadline"]


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A time at which the session should be woken, or should end."""

    at_us: int
    kind: TimerKind = "wake"
    seq: int = 0  # of the event that set it

    @property
    def at(self) -> datetime:
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
    """When the first timer of this kind is due."""
    timers = facts.get("timers", EMPTY).values()
    return min((timer["at_us"] for timer in timers if timer["kind"] == kind), default=None)


def fold_set(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    timer = FrozenDict({"at_us": data["at_us"], "kind": data["kind"], "seq": at.seq})
    return {"timers": FrozenDict({**facts.get("timers", EMPTY), data["name"]: timer})}


def fold_cleared(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    left = {n: t for n, t in facts.get("timers", EMPTY).items() if n != data["name"]}
    return {"timers": FrozenDict(left) if left else None}


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the session would have too many timers: a head must stay small."""
    if len(after.get("timers", EMPTY)) > TIMERS_MAX:
        raise InvalidEvent(f"the session would have more than {TIMERS_MAX} timers")


def _check_name(name: str) -> None:
    if reason := unfit(name, NAME_CHARS_MAX):
        raise InvalidEvent(f"the timer's name {reason}")
