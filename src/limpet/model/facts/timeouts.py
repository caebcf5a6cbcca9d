"""Timeouts: how long a session may be idle, live, wait suspended, and be kept after its end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from limpet.errors import GuardFailed, InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.running.budgets import remaining
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import EMPTY, FrozenDict, described

TIMEOUTS_SET: Final = "session.timeouts_set"
RENEWED: Final = "session.renewed"
BACKGROUND: Final = "system."  # events that count as activity only if that is asked for
_MICROSECOND: Final = timedelta(microseconds=1)
_SPANS: Final = ("idle", "absolute", "grace", "archive", "expiry", "idle_max")
_SPAN_MAX: Final = timedelta(days=36_500)
SPAN_US_MAX: Final = _SPAN_MAX // _MICROSECOND
# The usual range of each timeout: doctor reports values outside it.
USUAL: Final[Mapping[str, tuple[timedelta, timedelta]]] = {
    "idle": (timedelta(minutes=5), timedelta(hours=24)),
    "absolute": (timedelta(hours=1), timedelta(days=30)),
    "grace": (timedelta(hours=1), timedelta(days=7)),
    "expiry": (timedelta(days=30), timedelta(days=365)),
}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Times after which a sweep suspends, terminates and deletes a session; None is never.

    `idle`: an active session without a user's input, an agent's action or a tool call is suspended.
    `absolute`: it is terminated this long after its creation. `grace`: it is terminated after being
    suspended this long. `archive`: it is archived this long after its end. `expiry`: it is deleted
    this long after its end. Renewing extends `idle`, up to `idle_max`. With `background`, system.*
    events count as activity too.
    """

    idle: timedelta | None = None
    absolute: timedelta | None = None
    grace: timedelta | None = None
    expiry: timedelta | None = None
    idle_max: timedelta | None = None
    background: bool = False
    archive: timedelta | None = None

    def __post_init__(self) -> None:
        for name in _SPANS:
            span = getattr(self, name)
            if span is None:
                continue
            if not isinstance(span, timedelta) or not timedelta(0) < span <= _SPAN_MAX:
                raise InvalidEvent(
                    f"the timeout {name!r} is a timedelta above 0 and up to {_SPAN_MAX.days:,} "
                    f"days, or None, not {described(span)}"
                )
        if self.idle and self.idle_max and self.idle > self.idle_max:
            raise InvalidEvent("the timeout 'idle' is longer than 'idle_max', which bounds it")


def timeouts_set(timeouts: Timeouts, *, actor: str | None = None) -> Fact:
    """Return the fact that these are the session's timeouts from now on. Raises InvalidEvent."""
    return Fact(type=TIMEOUTS_SET, data={"timeouts": timeouts_data(timeouts)}, actor=actor)


def renewed(idle: timedelta, *, actor: str | None = None) -> Fact:
    """The session may be idle for longer, up to its `idle_max`. Raises InvalidEvent."""
    if not isinstance(idle, timedelta) or not timedelta(0) < idle <= _SPAN_MAX:
        raise InvalidEvent(f"renewing adds a timedelta above 0, not {described(idle)}")
    return Fact(type=RENEWED, data={"idle_us": idle // _MICROSECOND}, actor=actor)


def timeouts_data(timeouts: Timeouts) -> dict[str, Any]:
    """Return timeouts in the form of event data: microseconds, without what is off."""
    if not isinstance(timeouts, Timeouts):
        raise InvalidEvent(
            f"timeouts are a limpet.Timeouts, as in Timeouts(idle=timedelta(minutes=30)), not "
            f"{described(timeouts)}"
        )
    spans = {f"{name}_us": getattr(timeouts, name) for name in _SPANS}
    data: dict[str, Any] = {n: s // _MICROSECOND for n, s in spans.items() if s is not None}
    if timeouts.background:
        data["background"] = True
    return data


def timeouts_in(facts: Facts) -> Timeouts | None:
    """The session's timeouts; None if it has none."""
    timeouts = facts.get("timeouts")
    if timeouts is None:
        return None
    spans = {n: timeouts[f"{n}_us"] * _MICROSECOND for n in _SPANS if f"{n}_us" in timeouts}
    return Timeouts(**spans, background=bool(timeouts.get("background")))


def fold_set(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"timeouts": FrozenDict(data["timeouts"]) or None}


def fold_renewed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    timeouts = facts.get("timeouts", EMPTY)
    if "idle_us" not in timeouts:
        return {}
    longer = timeouts["idle_us"] + data["idle_us"]
    return {"timeouts": FrozenDict({**timeouts, "idle_us": min(longer, _most(timeouts))})}


def check_renewed(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if there is nothing to renew, GuardFailed if no budget is left."""
    if "idle_us" not in before.get("timeouts", EMPTY):
        raise InvalidEvent(
            "the session has no idle timeout to renew; set one with s.lifecycle.set_timeouts"
        )
    if any([left is not None and left <= 0 for left in remaining(before)]):
        raise GuardFailed(before.get("phase", "active"), "renew", "its budget is used up")


def counts_background(facts: Facts) -> bool:
    """True if system.* events keep the session from being idle."""
    return bool(facts.get("timeouts", EMPTY).get("background"))


def unusual(facts: Facts) -> tuple[str, ...]:
    """The names of timeouts outside of what is usual."""
    timeouts = facts.get("timeouts", EMPTY)
    spans = {name: timeouts.get(f"{name}_us") for name in USUAL}
    return tuple(
        name
        for name, us in spans.items()
        if us is not None and not USUAL[name][0] <= us * _MICROSECOND <= USUAL[name][1]
    )


def _most(timeouts: Mapping[str, Any]) -> int:
    most: int = timeouts.get("idle_max_us", SPAN_US_MAX)
    return most
