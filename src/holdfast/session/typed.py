"""Typed sessions: a session's own fields, seen and changed through a State class.

Stands between a session and the pure parts (state, update): says how the stored schema version
stands to the class's. How state is brought forward it has from `forward`. pydantic is imported
here, so nothing that runs without typed state may import this module at its top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from holdfast.errors import InvalidInput, SchemaViolation
from holdfast.model.events import Draft
from holdfast.model.head import MIGRATED, Head
from holdfast.model.migrations import MigrationRegistry
from holdfast.model.semver import SchemaVersion, relation
from holdfast.model.state import State, decode_fields, encode_fields
from holdfast.model.update import Planned, plan_update
from holdfast.model.values import FrozenDict, described
from holdfast.session.forward import Forward

S = TypeVar("S", bound=State)


class Typed(Forward, Generic[S]):
    """One State class over one session. Holds the last view, so that reading twice costs once."""

    __slots__ = ("_seen", "_view", "of")

    def __init__(self, of: type[S], migrations: MigrationRegistry | None = None) -> None:
        if not (isinstance(of, type) and issubclass(of, State)):
            raise InvalidInput(f"{described(of)} is no State. Pass a class made of holdfast.State.")
        registry = MigrationRegistry() if migrations is None else migrations
        super().__init__(SchemaVersion.parse(of.schema_version), registry)
        self.of = of
        self._seen: FrozenDict | None = None
        self._view: S

    def view(self, fields: FrozenDict) -> S:
        """The typed form of the fields. Raises SchemaViolation."""
        if fields is not self._seen:
            self._view = decode_fields(self.of, fields)
            self._seen = fields
        return self._view

    def plan(self, fields: FrozenDict, update: Mapping[str, Any]) -> Planned:
        return plan_update(self.of, fields, update)

    def raising(self, head: Head) -> Draft | None:
        """The fact that newer code writes now, if that is so: nothing else need be changed."""
        stored = head.schema_version
        if stored is None or relation(SchemaVersion.parse(stored), self.code) == "older_minor":
            return Draft(type=MIGRATED, data={"from": stored, "to": str(self.code), "steps": []})
        return None

    def check(self, fields: Mapping[str, Any]) -> None:
        decode_fields(self.of, fields)


def encoded(state: object) -> tuple[dict[str, Any], str]:
    """The fields of a State and the version of its class. Raises SchemaViolation."""
    if not isinstance(state, State):
        raise SchemaViolation("state", "a dict or a State", described(state))
    return encode_fields(state), type(state).schema_version
