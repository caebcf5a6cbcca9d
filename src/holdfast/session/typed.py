"""Typed sessions: a session's own fields, seen and changed through a State class.

Stands between a session and the pure parts (state, update, migrations): says how the stored schema
version stands to the class's, and makes the drafts that bring state forward. pydantic is imported
here, so nothing that runs without typed state may import this module at its top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from holdfast.errors import (
    InvalidInput,
    InvalidSchema,
    SchemaViolation,
    SessionSchemaIncompatible,
)
from holdfast.model.diff import diff
from holdfast.model.events import Draft
from holdfast.model.head import MIGRATED, Head
from holdfast.model.limits import OPS_PER_EVENT_MAX
from holdfast.model.migrations import MigrationRegistry, Way
from holdfast.model.ops import Delete, PlainOp, Set, apply
from holdfast.model.semver import SchemaVersion, relation
from holdfast.model.state import State, decode_fields, encode_fields
from holdfast.model.update import Planned, plan_update
from holdfast.model.values import FrozenDict, described

S = TypeVar("S", bound=State)


class Typed(Generic[S]):
    """One State class over one session. Holds the last view, so that reading twice costs once."""

    __slots__ = ("_fitting", "_seen", "_view", "code", "migrations", "of")

    def __init__(self, of: type[S], migrations: MigrationRegistry | None = None) -> None:
        if not (isinstance(of, type) and issubclass(of, State)):
            raise InvalidInput(f"{described(of)} is no State. Pass a class made of holdfast.State.")
        if migrations is not None and not isinstance(migrations, MigrationRegistry):
            raise InvalidInput(
                f"{described(migrations)} is no registry. Pass a holdfast.MigrationRegistry."
            )
        self.of = of
        self.code = SchemaVersion.parse(of.schema_version)
        self.migrations = MigrationRegistry() if migrations is None else migrations
        self._fitting: tuple[str, int] | None = None  # a version that needs no step of so many
        self._seen: FrozenDict | None = None
        self._view: S

    def view(self, head: Head, fields: FrozenDict) -> S:
        """The typed form of the fields. Raises MigrationError, SchemaViolation."""
        if fields is not self._seen:
            self.check(head)
            self._view = decode_fields(self.of, fields)
            self._seen = fields
        return self._view

    def plan(self, fields: FrozenDict, update: Mapping[str, Any]) -> Planned:
        return plan_update(self.of, fields, update)

    def raising(self, head: Head, fields: FrozenDict, update: tuple[PlainOp, ...]) -> Draft | None:
        """The fact that newer code writes now, if that is so: nothing else need be changed.

        A version is a promise about the whole state, so this once all of it is checked as the
        update leaves it. Raises SchemaViolation.
        """
        stored = head.schema_version
        if stored is None or relation(SchemaVersion.parse(stored), self.code) == "older_minor":
            decode_fields(self.of, apply(fields, update))
            return Draft(type=MIGRATED, data={"from": stored, "to": str(self.code), "steps": []})
        return None

    def way(self, head: Head) -> Way:
        """The migrations that stored state needs: none, if it is read as it is.

        Raises MigrationError.
        """
        stored = head.schema_version
        if stored is None:
            return ()
        known = (stored, len(self.migrations))
        if known == self._fitting:
            return ()
        try:
            way = self.migrations.path(stored, self.code)
        except InvalidSchema as error:
            kind = SessionSchemaIncompatible
            raise kind(stored, str(self.code), error.reason) from error
        if not way:
            self._fitting = known
        return way

    def check(self, head: Head) -> None:
        """Raise MigrationError unless state is read as it is: others may have migrated it since."""
        if self.way(head):
            reason = "it was migrated since this object was loaded; refresh it first"
            raise SessionSchemaIncompatible(str(head.schema_version), str(self.code), reason)

    def migration(self, head: Head, fields: FrozenDict) -> Draft | None:
        """The event that makes stored state what the class declares; None if it can be read.

        Checked before it is proposed: what comes out fits the class. Raises MigrationError,
        SchemaViolation.
        """
        if not self.way(head):
            return None
        assert head.schema_version is not None  # or there would be no way
        migrated = self.migrations.migrate(fields, head.schema_version, self.code)
        decode_fields(self.of, migrated.fields)
        return Draft(
            type=MIGRATED,
            data={
                "from": head.schema_version,
                "to": str(self.code),
                "steps": [list(migration.step) for migration in migrated.path],
                "checksum_before": migrated.checksum_before,
                "checksum_after": migrated.checksum_after,
            },
            ops=_ops(fields, migrated.fields),
        )


def encoded(state: object) -> tuple[dict[str, Any], str]:
    """The fields of a State and the version of its class. Raises SchemaViolation."""
    if not isinstance(state, State):
        raise SchemaViolation("state", "a dict or a State", described(state))
    return encode_fields(state), type(state).schema_version


def _ops(before: FrozenDict, after: FrozenDict) -> tuple[PlainOp, ...]:
    """The smallest operations from one to the other; whole fields, where those are too many."""
    ops = diff(before, after).ops()
    if len(ops) <= OPS_PER_EVENT_MAX:
        return ops
    gone: list[PlainOp] = [Delete((name,)) for name in before if name not in after]
    changed = {op.path[0] for op in ops}
    return (*gone, *[Set((name,), after[name]) for name in after if name in changed])
