"""Tools: which tools a session has bound, in its head. What they do is not stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.facts.writes import TOOLS_BOUND
from limpet.model.values import EMPTY, FrozenDict

TOOLS_MAX: Final = 128  # a head must stay small


def tools_bound(
    tools: Mapping[str, Mapping[str, Any]],
    *,
    degraded: Iterable[str] = (),
    substituted: Mapping[str, str] = EMPTY,
    actor: str | None = None,
) -> Fact:
    """These tools are bound from now on, and no others. Raises InvalidEvent."""
    if len(tools) > TOOLS_MAX:
        raise InvalidEvent(f"{len(tools)} tools, more than {TOOLS_MAX}")
    data: dict[str, Any] = {"tools": {name: dict(tool) for name, tool in tools.items()}}
    if missing := sorted(degraded):
        data["degraded"] = missing
    if substituted:
        data["substituted"] = dict(substituted)
    return Fact(type=TOOLS_BOUND, data=data, actor=actor)


def tools_in(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """What is bound: version, required, permission and so on, by name."""
    found: Mapping[str, Mapping[str, Any]] = facts.get("tools", EMPTY)
    return found


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"tools": FrozenDict(data["tools"]) or None}
