"""Every error Limpet raises, under one root.

    LimpetError
    ├── InvalidInput        what was asked cannot be done as asked; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor · PositionUnknown
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ActorMissing
    │   ├── InvalidOp · ScopeUnknown · OpPathUnknown · OpTypeMismatch · NotPending
    │   └── InvalidSchema · SchemaViolation · FieldAccessDenied · InvalidDiff
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded · SessionTyped
    │   └── SessionCorrupt · FollowerBehind
    ├── StateError          stored state and what is asked of it do not agree
    │   ├── IntegrityViolation · InvalidEnvelope · EnvelopeNewer · DiffMismatch · MergeConflict
    │   ├── ScopeFull
    │   └── MigrationError  (of a session: a SessionError too)
    │       ├── MigrationMissing      SessionMigrationMissing · CheckpointMigrationMissing
    │       ├── MigrationAmbiguous    SessionMigrationAmbiguous · CheckpointMigrationAmbiguous
    │       ├── MigrationFailed       SessionMigrationFailed · CheckpointMigrationFailed
    │       └── SchemaIncompatible    SessionSchemaIncompatible · CheckpointSchemaIncompatible
    └── StoreError          the store cannot serve
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── StoreUnopened · StoreForeign · StoreNewer · StoreOlder · StoreCorrupt · StoreOnNetwork
        └── BackupRefused · BackupDamaged · ExtraMissing

A class carries a stable `code`, whether the same call may succeed later (`retryable`), and what
the doors answer (`status` for HTTP, `exit_code` for the command line). The message is built here,
in one place, and ends with what to do next.
"""

from __future__ import annotations

from limpet.errors.input import (
    ActorMissing,
    CommitTooLarge,
    EventTooLarge,
    FieldAccessDenied,
    InvalidCursor,
    InvalidDiff,
    InvalidEvent,
    InvalidInput,
    InvalidKey,
    InvalidOp,
    InvalidQuery,
    InvalidSchema,
    InvalidURL,
    InvalidValue,
    NotPending,
    OpPathUnknown,
    OpTypeMismatch,
    PositionUnknown,
    ReservedType,
    SchemaViolation,
    ScopeUnknown,
)
from limpet.errors.migration import (
    CheckpointMigrationAmbiguous,
    CheckpointMigrationFailed,
    CheckpointMigrationMissing,
    CheckpointSchemaIncompatible,
    Lifecycle,
    MigrationAmbiguous,
    MigrationError,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
    SessionMigrationAmbiguous,
    SessionMigrationFailed,
    SessionMigrationMissing,
    SessionSchemaIncompatible,
    Step,
)
from limpet.errors.root import (
    LimpetError,
)
from limpet.errors.session import (
    FollowerBehind,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionExists,
    SessionFenced,
    SessionLocked,
    SessionNotFound,
    SessionNotLoaded,
    SessionTyped,
)
from limpet.errors.state import (
    DiffMismatch,
    EnvelopeNewer,
    IntegrityViolation,
    InvalidEnvelope,
    MergeConflict,
    ScopeFull,
    StateError,
)
from limpet.errors.store import (
    Asked,
    BackupDamaged,
    BackupRefused,
    ExtraMissing,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreForked,
    StoreFull,
    StoreNewer,
    StoreOlder,
    StoreOnNetwork,
    StoreReadOnly,
    StoreUnopened,
)

__all__ = [
    "ActorMissing",
    "Asked",
    "BackupDamaged",
    "BackupRefused",
    "CheckpointMigrationAmbiguous",
    "CheckpointMigrationFailed",
    "CheckpointMigrationMissing",
    "CheckpointSchemaIncompatible",
    "CommitTooLarge",
    "DiffMismatch",
    "EnvelopeNewer",
    "EventTooLarge",
    "ExtraMissing",
    "FieldAccessDenied",
    "FollowerBehind",
    "IntegrityViolation",
    "InvalidCursor",
    "InvalidDiff",
    "InvalidEnvelope",
    "InvalidEvent",
    "InvalidInput",
    "InvalidKey",
    "InvalidOp",
    "InvalidQuery",
    "InvalidSchema",
    "InvalidURL",
    "InvalidValue",
    "Lifecycle",
    "LimpetError",
    "MergeConflict",
    "MigrationAmbiguous",
    "MigrationError",
    "MigrationFailed",
    "MigrationMissing",
    "NotPending",
    "OpPathUnknown",
    "OpTypeMismatch",
    "PositionUnknown",
    "ReservedType",
    "SchemaIncompatible",
    "SchemaViolation",
    "ScopeFull",
    "ScopeUnknown",
    "SessionConflict",
    "SessionCorrupt",
    "SessionDeleted",
    "SessionErased",
    "SessionError",
    "SessionExists",
    "SessionFenced",
    "SessionLocked",
    "SessionMigrationAmbiguous",
    "SessionMigrationFailed",
    "SessionMigrationMissing",
    "SessionNotFound",
    "SessionNotLoaded",
    "SessionSchemaIncompatible",
    "SessionTyped",
    "StateError",
    "Step",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreForeign",
    "StoreForked",
    "StoreFull",
    "StoreNewer",
    "StoreOlder",
    "StoreOnNetwork",
    "StoreReadOnly",
    "StoreUnopened",
]
