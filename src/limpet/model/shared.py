"""Shared names: values of an app or of a user, which many sessions write, each with its versions.

An event's operations on them are recorded with it; what they make of a value is computed here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from limpet.errors import SessionCorrupt
from limpet.model import ops
from limpet.model.events import Prepared
from limpet.model.values import ABSENT, EMPTY, FrozenDict

ScopeKey: TypeAlias = tuple[str, str, str]  # app, user ("" for the app's own), name with its prefix


class ScopeValue(msgspec.Struct, frozen=True, gc=False):
    """One app: or user: name at one version. A deleted name has no value and keeps its version."""

    version: int
    value: Any
    deleted: bool = False
    damage: str | None = None  # why the stored value could not be read; there is no value then


class ScopeWrite(msgspec.Struct, frozen=True, gc=False):
    """One more version of a scope name: the op that made it and what it now is."""

    key: ScopeKey
    at: ScopeValue
    op: ops.PlainOp
    seq: int
    whole: bytes  # the value, encoded; nothing if it was deleted


def scope_ops(draft: Prepared, app: str, user: str) -> list[tuple[ScopeKey, ops.PlainOp]]:
    """A draft's app: and user: operations with the full name of what each changes."""
    found: list[tuple[ScopeKey, ops.PlainOp]] = []
    if draft.scoped:
        for op in draft.plain_ops:
            name = str(op.path[0])
            scope = ops.scope_of(name)
            if scope == "app":
                found.append(((app, "", name), op))
            elif scope == "user":
                found.append(((app, user, name), op))
    return found


def scope_next(key: ScopeKey, before: ScopeValue | None, op: ops.PlainOp) -> ScopeValue:
    """The next version of a scope name. Raises InvalidInput if the op does not match its value."""
    name = key[2]
    fields, version = EMPTY, 1
    if before is not None:
        version = before.version + 1
        if before.damage is not None:
            if type(op) is not ops.Set or len(op.path) > 1:
                raise SessionCorrupt(f"{name} of {key[0]}", before.damage)
        elif not before.deleted:
            fields = FrozenDict({name: before.value})
    value = ops.apply(fields, (op,)).get(name, ABSENT)
    return ScopeValue(version, None, True) if value is ABSENT else ScopeValue(version, value)
