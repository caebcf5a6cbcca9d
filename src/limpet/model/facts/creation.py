"""Creation: the first event of every session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.facts import archive, labels as of_labels, phases, timeouts
from limpet.model.facts.running import budgets
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.values import EMPTY

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
    if labels != EMPTY:
        data |= of_labels.labels_data(labels)
    return Fact(type=CREATED, data=data, set=fields, actor=actor)


def _set_up(facts: Facts, setup: Mapping[str, Any], at: Moment) -> Changes:
    """Which agent runs it, where, and with which budget."""
    changes: Changes = {name: setup[name] for name in ("agent", "environment") if name in setup}
    if "budget" in setup:
        changes |= budgets.fold_granted(facts, setup["budget"], at)
    return changes


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = of_labels.fold(facts, data, at)
    if "schema_version" in data:
        changes["schema_version"] = data["schema_version"]
    if "phase" in data:
        changes |= phases.begin(data, at)
    if "archived" in data:
        changes |= archive.kept(data)
    if "setup" in data:
        changes |= _set_up(facts, data["setup"], at)
    if "timeouts" in data:
        changes |= timeouts.fold_set(facts, data, at)
    return changes
