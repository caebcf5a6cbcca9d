"""Retention: how much of its history a session keeps hot, where that is not as its app says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import FrozenDict, described

RETENTION_SET: Final = "session.retention_set"
_MICROSECOND: Final = timedelta(microseconds=1)


def retention_set(
    *, events: int | None = None, age: timedelta | None = None, actor: str | None = None
) -> Fact:
    """The newest `events` stay hot, and nothing older than `age`; without either, as the app says.

    Raises InvalidEvent.
    """
    return Fact(type=RETENTION_SET, data={"retention": limits_data(events, age)}, actor=actor)


def limits_data(events: int | None, age: timedelta | None) -> dict[str, int]:
    """Limits in the form of event data, without what is off. Raises InvalidEvent."""
    if events is not None and (type(events) is not int or events < 1):
        raise InvalidEvent(f"events is how many stay hot, from 1 on, not {described(events)}")
    if age is not None and not (isinstance(age, timedelta) and age >= timedelta(0)):
        raise InvalidEvent(f"age is a timedelta, not {described(age)}")
    limits = {"events": events, "age_us": None if age is None else age // _MICROSECOND}
    return {name: value for name, value in limits.items() if value is not None}


def retention_in(facts: Facts) -> Mapping[str, int] | None:
    """The session's own limits; None if those of its app apply."""
    retention: Mapping[str, int] | None = facts.get("retention")
    return retention


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"retention": FrozenDict(data["retention"]) or None}
