"""Stored state cannot be migrated to the schema version that the code expects."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self, TypeAlias

from limpet.errors.input import InvalidInput, SchemaViolation
from limpet.errors.root import LimpetError
from limpet.errors.session import SessionError
from limpet.errors.state import StateError

Lifecycle: TypeAlias = Literal["session", "checkpoint"]  # whose state it is
Step: TypeAlias = tuple[str, str]  # one migration: from which version, to which
_WRITER_OR_MIGRATION: Final = "Run the code that wrote it, or register a migration from its version"


class MigrationError(StateError):
    """Stored state cannot be migrated to the version that the code declares.

    `category` is the stable name of the kind of failure. Each kind has two variants: one for a
    session's state, which is also a SessionError, and one for a checkpoint's. `of` picks one.
    """

    code = "migration.error"
    category: ClassVar[str] = "state_migration_error"
    lifecycle: ClassVar[Lifecycle | None] = None

    @classmethod
    def of(cls, lifecycle: Lifecycle) -> type[Self]:
        """The variant of this error for one lifecycle."""
        for flavour in cls.__subclasses__():
            if flavour.lifecycle == lifecycle:
                return flavour
        raise InvalidInput(
            f"{lifecycle!r} is not a lifecycle with state. Pass 'session' or 'checkpoint'."
        )


class MigrationMissing(MigrationError):
    code = "migration.missing"
    category = "state_migration_missing"

    def __init__(
        self,
        from_version: str,
        to_version: str,
        registered_migrations_count: int,
        registry_description: str,
        advice: str = "Pass migrations=registry with the state_type",
    ) -> None:
        self.from_version, self.to_version = from_version, to_version
        self.registered_migrations_count = registered_migrations_count
        self.registry_description, self.advice = registry_description, advice
        way = f"from schema {_shown(from_version)} to {_shown(to_version)}"
        super().__init__(
            f"no migration path leads {way} "
            f"(registered migrations: {registered_migrations_count:,}); nothing was changed. "
            "Register the missing migration; error.registry_description lists the others."
            if registered_migrations_count
            else f"no migration path leads {way}: no migrations were given; nothing was changed. "
            f"{advice}."
        )


class MigrationAmbiguous(MigrationError):
    code = "migration.ambiguous"
    category = "state_migration_chain_ambiguous"

    def __init__(
        self, from_version: str, to_version: str, paths: tuple[tuple[Step, ...], ...]
    ) -> None:
        self.from_version, self.to_version, self.paths = from_version, to_version, paths
        ways = "; or ".join(
            ", ".join(f"{_shown(a)} → {_shown(b)}" for a, b in path) for path in paths
        )
        source, target = _shown(from_version), _shown(to_version)
        twice = len(set(paths)) < len(paths)
        super().__init__(
            f"{source} → {target} is already registered. Keep one function for it."
            if twice
            else f"several equally good migration paths lead from schema {source} to {target}: "
            f"{ways}. Remove one of them, or register a shorter one."
        )


class MigrationFailed(MigrationError):
    code = "migration.failed"
    category = "state_migration_failed"
    status = 500

    def __init__(self, from_version: str, to_version: str, step: Step, reason: str) -> None:
        self.from_version, self.to_version = from_version, to_version
        self.step, self.reason = step, reason
        super().__init__(
            f"migrating from schema {_shown(from_version)} to {_shown(to_version)}, the step "
            f"{_shown(step[0])} → {_shown(step[1])} {reason}. No later step ran and the stored "
            "state is unchanged: fix the function, then load again."
        )


class SchemaIncompatible(MigrationError):
    code = "schema.incompatible"
    category = "state_incompatible"

    def __init__(
        self, stored: str, wanted: str, reason: str, advice: str = _WRITER_OR_MIGRATION
    ) -> None:
        self.stored, self.wanted, self.reason, self.advice = stored, wanted, reason, advice
        super().__init__(
            f"state stored under schema {_shown(stored)} cannot be used as {_shown(wanted)}: "
            f"{reason}. {advice}."
        )


class SessionMigrationMissing(MigrationMissing, SessionError):
    code, category, lifecycle = (
        "session.migration_missing",
        "session_state_migration_missing",
        "session",
    )


class CheckpointMigrationMissing(MigrationMissing):
    code, category, lifecycle = (
        "checkpoint.migration_missing",
        "checkpoint_state_migration_missing",
        "checkpoint",
    )


class SessionMigrationAmbiguous(MigrationAmbiguous, SessionError):
    code, category, lifecycle = (
        "session.migration_ambiguous",
        "session_state_migration_chain_ambiguous",
        "session",
    )


class CheckpointMigrationAmbiguous(MigrationAmbiguous):
    code, category, lifecycle = (
        "checkpoint.migration_ambiguous",
        "checkpoint_state_migration_chain_ambiguous",
        "checkpoint",
    )


class SessionMigrationFailed(MigrationFailed, SessionError):
    code, category, lifecycle = (
        "session.migration_failed",
        "session_state_migration_failed",
        "session",
    )


class CheckpointMigrationFailed(MigrationFailed):
    code, category, lifecycle = (
        "checkpoint.migration_failed",
        "checkpoint_state_migration_failed",
        "checkpoint",
    )


class SessionSchemaIncompatible(SchemaIncompatible, SessionError):
    code, category, lifecycle = (
        "session.schema_incompatible",
        "session_state_incompatible",
        "session",
    )


class CheckpointSchemaIncompatible(SchemaIncompatible):
    code, category, lifecycle = (
        "checkpoint.schema_incompatible",
        "checkpoint_state_incompatible",
        "checkpoint",
    )


class SessionSchemaViolation(SchemaViolation, SessionError):
    """State in the store, or as a migration would leave it, does not fit the class."""

    code, status, exit_code = "session.schema_violation", 409, 3

    def __init__(self, key: object, field: str, expected: str, actual: str) -> None:
        self.key, self.field, self.expected, self.actual = key, field, expected, actual
        LimpetError.__init__(
            self,
            f"{field} must be {expected}; found {actual}. The state of session {key} does not fit "
            "its class: register a migration that repairs it, or read it with untyped=True.",
        )


def _shown(version: str) -> str:
    """A version in a sentence: the empty one, which a state without a version has, as quotes."""
    return version or '""'
