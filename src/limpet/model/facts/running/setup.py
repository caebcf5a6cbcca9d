"""Setup: what a session runs with, each by the version of its document.

The agent and the environment are named when the session is created; resources, vaults and
permissions are attached. Together with the bound tools they are its setup, whose fingerprint is the
same for the same setup in every process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.isolation import agent_tools
from limpet.model.facts.running.children import delegation
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict, FrozenList, canonical

ATTACHED: Final = "session.attached"
ATTACHED_MAX: Final = 64  # of each kind: a head must stay small


class SetupChange(msgspec.Struct, frozen=True):
    """One difference between two setups; None where it is missing."""

    what: str  # agent, environment, permissions, tool, resource, vault or limit
    name: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what} {self.name} was added ({_show(self.after)})"
        if self.after is None:
            return f"{self.what} {self.name} was removed ({_show(self.before)})"
        return f"{self.what} {self.name}: {_show(self.before)} → {_show(self.after)}"


class Setup(msgspec.Struct, frozen=True):
    """The setup that a session runs with. Documents are `name@version`."""

    agent: str | None = None
    environment: str | None = None
    permissions: str | None = None
    tools: Mapping[str, Mapping[str, Any]] = EMPTY
    resources: tuple[str, ...] = ()
    vaults: tuple[str, ...] = ()
    limits: Mapping[str, str] = EMPTY  # permissions by tool, of the sessions that it works for

    @property
    def fingerprint(self) -> str:
        """A hash that is the same for the same setup, in hex."""
        parts: dict[str, Any] = {"agent": self.agent, "environment": self.environment}
        parts |= {"permissions": self.permissions, "resources": sorted(self.resources)}
        parts |= {"tools": self.tools, "vaults": sorted(self.vaults)}
        if self.limits:
            parts["limits"] = self.limits
        return sha256(canonical(parts)).hexdigest()

    def compare(self, other: Setup) -> tuple[SetupChange, ...]:
        """Return the changes from this setup to another, by kind and name; empty if equal."""
        mine, theirs = self._parts(), other._parts()
        names = sorted({*mine, *theirs})
        pairs = [(of, mine.get(of), theirs.get(of)) for of in names]
        return tuple([SetupChange(*of, then, now) for of, then, now in pairs if then != now])

    def _parts(self) -> dict[tuple[str, str], Any]:
        parts: dict[tuple[str, str], Any] = {}
        for what in ("agent", "environment", "permissions"):
            if (one := getattr(self, what)) is not None:
                parts[what, _name(one)] = one
        for what, several in (("resource", self.resources), ("vault", self.vaults)):
            parts |= {(what, _name(each)): each for each in several}
        parts |= {("limit", name): permission for name, permission in self.limits.items()}
        return parts | {("tool", name): dict(tool) for name, tool in self.tools.items()}


def attached(
    *,
    resources: Iterable[str] | None = None,
    vaults: Iterable[str] | None = None,
    permissions: str | None = None,
    limits: Mapping[str, str] | None = None,
) -> Fact:
    """Return the fact that it has these from now on, each as `name@version`; what is None stays as
    it was.

    `limits` are permissions by tool that a child has from its parent.
    """
    data: dict[str, Any] = {}
    for name, several in (("resources", resources), ("vaults", vaults)):
        if several is not None:
            data[name] = sorted(set(several))
            if len(data[name]) > ATTACHED_MAX:
                raise InvalidEvent(f"{len(data[name])} {name}, more than {ATTACHED_MAX}")
    if permissions is not None:
        data["permissions"] = permissions
    if limits:
        data["limits"] = dict(limits)
    return Fact(type=ATTACHED, data=data)


def setup_in(facts: Facts) -> Setup:
    """Return the setup in the head of a session."""
    kept = facts.get("setup", EMPTY)
    return Setup(
        facts.get("agent"),
        facts.get("environment"),
        kept.get("permissions"),
        tools_in(facts),
        tuple(kept.get("resources", ())),
        tuple(kept.get("vaults", ())),
        kept.get("limits", EMPTY),
    )


def agent_in(key: Key, facts: Facts) -> str:
    """Return the agent of a session: that of its setup, in any version, or else its app, which has
    one harness for all of them."""
    agent = facts.get("agent")  # with its version; an app may have an @ too
    return key.app if agent is None else _name(str(agent))


def usable_tools(facts: Facts) -> Collection[str] | None:
    """The names of the tools that a session may use: those it has bound, or those that a child
    whose parent has bound none was given by name, and a fork of that child too. None: nothing is
    said of tools."""
    if "tools" in facts:
        return tools_in(facts)
    given: Collection[str] | None = (delegation(facts) or EMPTY).get("tools", facts.get("given"))
    return given


def is_usable(facts: Facts, name: str, agent: str | None) -> bool:
    """True if a session may use this tool, and so may this agent of it."""
    usable, own = usable_tools(facts), agent_tools(facts, agent)
    return (usable is None or name in usable) and (own is None or name in own)


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    kept = {**facts.get("setup", EMPTY)}
    for name in ("resources", "vaults"):
        if name in data:
            kept[name] = FrozenList(data[name])
    if "permissions" in data:
        kept["permissions"] = data["permissions"]
    if "limits" in data:
        kept["limits"] = FrozenDict(data["limits"])
    return {"setup": FrozenDict(kept) or None}


def _name(versioned: str) -> str:
    return versioned.partition("@")[0]


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"version {value.get('version')}, {value.get('permission', 'always_allow')}"
    return str(value)


TOOLS_BOUND: Final = "session.tools_bound"
TOOLS_MAX: Final = 128  # a head must stay small
_OPTIONAL: Final = FrozenDict({"required": False})


def tools_bound(
    tools: Mapping[str, Mapping[str, Any]],
    *,
    degraded: Mapping[str, Mapping[str, Any]] = EMPTY,
    substituted: Mapping[str, str] = EMPTY,
    actor: str | None = None,
) -> Fact:
    """Return the fact that these tools are bound from now on, and no others. Raises InvalidEvent.

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
    tools: Mapping[str, Mapping[str, Any]] = facts.get("tools", EMPTY)
    return tools


def degraded_in(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Optional tools that were wanted and are not bound, as they would have been, by name."""
    degraded: Mapping[str, Mapping[str, Any]] = facts.get("degraded", EMPTY)
    return degraded


def fold_bound(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    # Earlier releases recorded only the names of what was left out.
    wanted = data.get("wanted") or dict.fromkeys(data.get("degraded", ()), _OPTIONAL)
    return {"tools": FrozenDict(data["tools"]), "degraded": FrozenDict(wanted) or None}
