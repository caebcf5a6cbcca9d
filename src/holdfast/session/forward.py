"""Forward: the schema version that state is brought to, and the event that brings it there.

What a load and a migration of the whole store have in common. It reads and writes nothing itself.
Without a State class it needs no pydantic; `typed` adds the class, and with it a check of what
comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import (
    InvalidInput,
    InvalidSchema,
    SessionMigrationFailed,
    SessionSchemaIncompatible,
)
from holdfast.model.diff import diff
from holdfast.model.events import Draft
from holdfast.model.head import MIGRATED, Head
from holdfast.model.migrations import Migrated, MigrationRegistry, Way
from holdfast.model.ops import scope_of
from holdfast.model.semver import SchemaVersion
from holdfast.model.values import FrozenDict, described


class Forward:
    """A version to bring state to, and the migrations that lead there."""

    __slots__ = ("code", "migrations")

    def __init__(self, code: SchemaVersion, migrations: MigrationRegistry) -> None:
        self.code, self.migrations = code, check_registry(migrations)

    def way(self, stored: str) -> Way:
        """The steps from a stored version; empty if its state is read as it is.

        Raises MigrationError: no state of this version can be brought forward.
        """
        try:
            return self.migrations.path(SchemaVersion.parse(stored), self.code)
        except InvalidSchema as error:
            raise SessionSchemaIncompatible(stored, str(self.code), error.reason) from error

    def migration(self, head: Head, fields: FrozenDict) -> Draft | None:
        """The event that makes stored state what the code expects; None if it can be read.

        Checked before it is proposed: what comes out fits. Raises MigrationError, SchemaViolation.
        """
        migrated = self.migrated(head, fields)
        if migrated is None or not migrated.path:
            return None
        return Draft(
            type=MIGRATED,
            data={
                "from": head.schema_version,
                "to": str(self.code),
                "steps": [list(migration.step) for migration in migrated.path],
                "checksum_before": migrated.checksum_before,
                "checksum_after": migrated.checksum_after,
            },
            ops=diff(fields, migrated.fields).ops(),
        )

    def migrated(self, head: Head, fields: FrozenDict) -> Migrated | None:
        """The fields as the registered migrations make them; None if they are read as they are."""
        stored = head.schema_version
        if stored is None:
            return None
        if not len(self.migrations) and _major(stored) == self.code.major:
            return None
        migrated = self.migrations.migrate(fields, stored, self.code)
        if migrated.path:
            self._refuse_shared(stored, migrated)
            self.check(migrated.fields)
        return migrated

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raise SchemaViolation if migrated fields are not what the code declares."""

    def _refuse_shared(self, stored: str, migrated: Migrated) -> None:
        """A migration is of the session's own fields: what others see is not its to write."""
        for name in migrated.fields:
            if scope_of(name) != "session":
                reason = f"made {name!r}, which is no field of the session's own"
                step = migrated.path[-1].step
                raise SessionMigrationFailed(stored, str(self.code), step, reason)


def check_registry(migrations: object) -> MigrationRegistry:
    if not isinstance(migrations, MigrationRegistry):
        raise InvalidInput(
            f"{described(migrations)} is no registry. Pass a holdfast.MigrationRegistry."
        )
    return migrations


def _major(version: str) -> int | None:
    head, _, _ = version.partition(".")
    return int(head) if head.isdecimal() else None
