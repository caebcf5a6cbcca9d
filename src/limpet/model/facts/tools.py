"""Tools: which tools a session has bound, in its head. What they do is not stored.

A head without `tools` has never been bound: then nothing is said of tools. One whose binding is
empty has none that it may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.facts.writes import TOOLS_BOUND
from limpet.model.values import EMPTY, FrozenDict

TOOLS_MAX: Final = 128  # a head must stay small
_OPTIONAL: Final = FrozenDict({"required": False})


def tools_bound(
    tools: Mapping[str, Mapping[str, Any]],
    *,
    degraded: Mapping[str, Mapping[str, Any]] = EMPTY,
    substituted: Mapping[str, str] = EMPTY,
    actor: str | None = None,
) -> Fact:
    """These tools are bound from now on, and no others. Raises InvalidEvent.

    `degraded` are those that were wanted and left out, as they would have been bound: they are
    bound when they are there again.
    """
    if (number := len(tools) + len(degraded)) > TOOLS_MAX:
        raise InvalidEvent(f"{number} tools, more than {TOOLS_MAX}")
    data: dict[str, Any] = {"tools": {name: dict(tool) for name, tool in tools.items()}}
    if degraded:
        data["degraded"] = sorted(degraded)
        data["wanted"] = {name: dict(tool) for name, tool in degraded.items()}
    if substituted:
        data["substituted"] = dict(substituted)
    return Fact(type=TOOLS_BOUND, data=data, actor=actor)


def tools_in(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Return the bound tools: version, required, permission and so on, by name."""
    found: Mapping[str, Mapping[str, Any]] = facts.get("tools", EMPTY)
    return found


def degraded_in(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Optional tools that were wanted and are not bound, as they would have been, by name."""
    found: Mapping[str, Mapping[str, Any]] = facts.get("degraded", EMPTY)
    return found


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    # Earlier releases recorded only the names of what was left out.
    wanted = data.get("wanted") or dict.fromkeys(data.get("degraded", ()), _OPTIONAL)
    return {"tools": FrozenDict(data["tools"]), "degraded": FrozenDict(wanted) or None}
