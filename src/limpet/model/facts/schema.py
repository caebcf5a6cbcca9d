"""Schema: the version of typed state, and the updates that its class planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.model.events import Draft, Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.ops import Op
from limpet.model.values import FrozenDict

MIGRATED: Final = "state.migrated"
UPDATED: Final = "state.updated"


def migrated(
    stored: str | None,
    code: str,
    steps: Iterable[tuple[str, str]] = (),
    *,
    checksums: tuple[str, str] | None = None,
    ops: Iterable[Op] = (),
    field_policies: Mapping[str, Any] | None = None,
    actor: str | None = None,
) -> Fact:
    """State was migrated from one version to another, by these steps and operations.

    `field_policies` replace those of the class; with None they stay as they are.
    """
    data: dict[str, Any] = {"from": stored, "to": code, "steps": [list(step) for step in steps]}
    if checksums is not None:
        data |= {"checksum_before": checksums[0], "checksum_after": checksums[1]}
    if field_policies is not None:
        data["field_policies"] = field_policies
    return Fact(type=MIGRATED, data=data, ops=ops, actor=actor)


def drafted(
    type: str | None,
    data: Mapping[str, Any],
    actor: str | None,
    id: str | None,
    ops: Iterable[Op] = (),
) -> Draft:
    """An update of state: an event of the caller's own type, or else a state.updated."""
    if type is None:
        return Fact(type=UPDATED, data=data, actor=actor, id=id, ops=ops)
    return Draft(type=type, data=data, actor=actor, id=id, ops=ops)


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes: Changes = {"schema_version": data["to"]}
    if "field_policies" in data:
        changes["field_policies"] = FrozenDict(data["field_policies"]) or None
    return changes
