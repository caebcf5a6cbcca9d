"""Priority: due sessions with the highest priority are claimed first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.limits import PRIORITY_MAX
from limpet.model.values import EMPTY, described

PRIORITIZED: Final = "session.prioritized"


def prioritized(priority: int, *, actor: str | None = None) -> Fact:
    """Return the fact that sets how urgent the session is. Raises InvalidEvent."""
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        raise InvalidEvent(
            f"a priority is an integer from {-PRIORITY_MAX} to {PRIORITY_MAX}, "
            f"not {described(priority)}"
        )
    return Fact(type=PRIORITIZED, data={"priority": priority}, actor=actor)


def priority(facts: Facts) -> int:
    """The higher is claimed first. An interrupt that waits goes before everything else, and so
    does the turn that it begins."""
    run = facts.get("run", EMPTY)
    if "interrupt" in run or "redirect" in run:
        return PRIORITY_MAX
    return int(facts.get("priority", 0))


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"priority": data["priority"] or None}
