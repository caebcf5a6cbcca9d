"""Creation: the first event of every session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.facts import isolation as of_isolation, labels as of_labels, phases, timeouts
from limpet.model.facts.running import budgets, setup
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict, FrozenList

CREATED: Final = "session.created"


def created(
    key: Key,
    *,
    labels: Mapping[str, str] = EMPTY,
    schema_version: str | None = None,
    fields: Mapping[str, Any] = EMPTY,
    phase: phases.Phase = phases.ACTIVE,
    limits: timeouts.Timeouts | None = None,
    setup: Mapping[str, Any] = EMPTY,
    isolation: of_isolation.Isolation | of_isolation.InheritedIsolation | None = None,
    field_policies: Mapping[str, Any] = EMPTY,
    actor: str | None = None,
) -> Fact:
    """The session was created. The event names its key, so that a changed row shows."""
    data: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    if phase != phases.ACTIVE:
        data["phase"] = phases.check_first(phase)
    if limits is not None:
        data["timeouts"] = timeouts.timeouts_data(limits)
    if setup:
        data["setup"] = setup
    if schema_version is not None:
        data["schema_version"] = schema_version
    if isolated := of_isolation.isolation_data(isolation, key):
        data["isolation"] = isolated
    if field_policies:
        data["field_policies"] = field_policies
    if labels != EMPTY:
        data |= of_labels.labels_data(labels)
    return Fact(type=CREATED, data=data, set=fields, actor=actor)


def _set_up(facts: Facts, setup: Mapping[str, Any], at: Moment) -> Changes:
    """Fold the agent, environment and budget that it was created with."""
    changes: Changes = {name: setup[name] for name in ("agent", "environment") if name in setup}
    if "budget" in setup:
        changes |= budgets.fold_granted(facts, setup["budget"], at)
    return changes


def fold_created(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = of_labels.fold(facts, data, at)
    if "schema_version" in data:
        changes["schema_version"] = data["schema_version"]
    if "phase" in data:
        changes |= phases.begin(data, at)
    if "archived" in data:
        changes |= phases.stub_facts(data)
    if "setup" in data:
        changes |= _set_up(facts, data["setup"], at)
    if "timeouts" in data:
        changes |= timeouts.fold_set(facts, data, at)
    return changes | of_isolation.fold(data, changes.get("labels") or EMPTY)


FORKED: Final = "session.forked"


def forked(
    key: Key,
    parent: Key,
    *,
    uid: str,
    floor: int,
    checksum: bytes,
    labels: Mapping[str, str] = EMPTY,
    schema_version: str | None = None,
    inherits: Mapping[str, Any] = EMPTY,
    actor: str | None = None,
) -> Fact:
    """The session began as a fork of `parent` (whose uid this is) after its event `floor`.

    `checksum` is that of the state it begins on, and `inherits` what it may not do (`inherited`).
    Inputs that the parent had pending are not pending here, and its timers are not set: this event
    stands for their end.
    """
    data: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    data["parent"] = {"app": parent.app, "user": parent.user, "id": parent.id, "uid": uid}
    data |= {"at": floor, "base": checksum.hex()}
    if schema_version is not None:
        data["schema_version"] = schema_version
    if labels != EMPTY:
        data |= of_labels.labels_data(labels)
    if inherits:
        data["inherits"] = inherits
    return Fact(type=FORKED, data=data, actor=actor)


def inherited(facts: Facts) -> dict[str, Any]:
    """Return what a fork has of a session with these facts: the tools it has bound, or was given by
    name, its permissions, and those of the sessions it works for; its timeouts; its isolation; and
    its limits, with nothing in them."""
    kept = facts.get("setup", EMPTY)
    permissions = {name: kept[name] for name in ("permissions", "limits") if name in kept}
    budget = budgets.empty_limits(facts)
    setup_data = {"setup": permissions, "budget": budget, "timeouts": facts.get("timeouts", EMPTY)}
    setup_data = {name: value for name, value in setup_data.items() if value}
    setup_data |= of_isolation.inherited_isolation(facts)
    if "tools" in facts:  # a binding without tools allows none
        setup_data |= {"tools": setup.tools_in(facts), "wanted": setup.degraded_in(facts)}
    elif (given := setup.usable_tools(facts)) is not None:
        setup_data["given"] = list(given)
    return setup_data


def fold_forked(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = of_labels.fold(EMPTY, data, at)
    changes["parent"] = FrozenDict({**data["parent"], "at": data["at"]})
    if "schema_version" in data:
        changes["schema_version"] = data["schema_version"]
    inherits = data.get("inherits", EMPTY)
    if "setup" in inherits:
        changes |= setup.fold(EMPTY, inherits["setup"], at)
    if "tools" in inherits:
        changes |= setup.fold_bound(EMPTY, inherits, at)
    if "given" in inherits:
        changes["given"] = FrozenList(inherits["given"])
    if "timeouts" in inherits:
        changes |= timeouts.fold_set(EMPTY, inherits, at)
    if "budget" in inherits:
        changes |= budgets.fold_granted(EMPTY, inherits["budget"], at)
    return changes | of_isolation.fold(inherits, changes.get("labels") or EMPTY)
