"""Upgrade: the schema version that state is brought to, and the event that brings it there.

What a load and a migration of the whole store have in common. It reads and writes nothing itself.
Without a State class it needs no pydantic; `typed` adds the class, and with it a check of what
comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.errors import (
    InvalidInput,
    InvalidSchema,
    MigrationFailed,
    SchemaIncompatible,
    SchemaViolation,
    SessionSchemaViolation,
)
from limpet.model import Fact, FrozenDict, Head, PlainOp, scope_of
from limpet.model.diff.diff import diff
from limpet.model.facts import schema
from limpet.model.limits import OPS_PER_EVENT_MAX
from limpet.model.ops import Delete, Set
from limpet.model.state.migrations import (
    MigrationRegistry,
    NewerMinor,
    SchemaVersion,
    Way,
    check_registry,
)


class Upgrade:
    """A version to bring state to, and the migrations that lead there."""

    __slots__ = ("_fitting", "code", "migrations", "newer_minor")

    def __init__(
        self,
        code: SchemaVersion,
        migrations: MigrationRegistry,
        newer_minor: NewerMinor = "refuse",
    ) -> None:
        self.code, self.migrations = code, check_registry(migrations)
        if migrations.lifecycle != "session":
            raise InvalidInput(
                "these migrations are for checkpoints: their registry was made with "
                "lifecycle='checkpoint'. Pass a registry for sessions."
            )
        self.newer_minor = newer_minor
        self._fitting: tuple[str, int] | None = None  # a version that needs no step of so many

    def way(self, stored: str | None) -> Way:
        """The steps from a stored version; empty if its state is read as it is.

        Raises MigrationError: no state of this version can be brought forward.
        """
        if stored is None or (stored, len(self.migrations)) == self._fitting:
            return ()
        try:
            version, newer = SchemaVersion.parse(stored), self.newer_minor
            way = self.migrations.path(version, self.code, newer_minor=newer)
        except InvalidSchema as error:
            raise SchemaIncompatible("session", stored, str(self.code), error.reason) from error
        if not way:
            self._fitting = (stored, len(self.migrations))
        return way

    def check(self, head: Head) -> None:
        """Raise MigrationError unless state is read as it is: others may have migrated it since."""
        if self.way(head.schema_version):
            reason = "it was migrated since this object was loaded; refresh it first"
            raise SchemaIncompatible("session", str(head.schema_version), str(self.code), reason)

    def migration(self, head: Head, fields: FrozenDict) -> Fact | None:
        """The event that makes stored state what the code expects; None if it can be read.

        Checked before it is proposed: what comes out fits. Raises MigrationError,
        SessionSchemaViolation.
        """
        stored = head.schema_version
        if stored is None or not self.way(stored):
            return None
        migrated = self.migrations.migrate(fields, stored, self.code)
        for name in migrated.fields:
            unknown = ":" in name and name not in fields  # a scope that there is not
            if not name or scope_of(name) != "session" or unknown:
                reason = f"made {name!r}, which is not one of the session's own fields"
                step = migrated.path[-1].step
                raise MigrationFailed("session", stored, str(self.code), step, reason)
        try:
            self.fit(migrated.fields)
        except SchemaViolation as error:
            raise misfit(head, error) from error
        return schema.migrated(
            stored,
            str(self.code),
            [migration.step for migration in migrated.path],
            checksums=(migrated.checksum_before, migrated.checksum_after),
            ops=ops_between(fields, migrated.fields),
            field_policies=self.policies_after(head),
        )

    def policies_after(self, head: Head) -> Mapping[str, Any] | None:
        """The new field policies of a session; None if they stay as they are."""
        return None

    def fit(self, fields: Mapping[str, Any]) -> None:
        """Raise SchemaViolation if migrated fields are not what the code declares."""

    def undeclared(self, fields: Mapping[str, Any]) -> Iterable[str]:
        """Names that migrated fields hold and the code does not declare."""
        return ()


def misfit(head: Head, error: SchemaViolation) -> SessionSchemaViolation:
    """The error with its session, so that a worker's loop can go on with the others."""
    return SessionSchemaViolation(error.field, error.expected, error.actual, head.key)


def ops_between(before: FrozenDict, after: FrozenDict) -> tuple[PlainOp, ...]:
    """The smallest operations from one to the other; whole fields, where those are too many."""
    ops = diff(before, after).ops()
    if len(ops) <= OPS_PER_EVENT_MAX:
        return ops
    gone: list[PlainOp] = [Delete((name,)) for name in before if name not in after]
    changed = {op.path[0] for op in ops}
    return (*gone, *[Set((name,), after[name]) for name in after if name in changed])
