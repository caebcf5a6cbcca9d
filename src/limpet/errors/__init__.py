"""Every error Limpet raises, under one root.

    LimpetError
    ├── InvalidInput        the request itself is wrong; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor · PositionUnknown
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ActorMissing
    │   ├── InvalidOp · ScopeUnknown · OpPathUnknown · OpTypeMismatch · NotPending
    │   └── InvalidSchema · SchemaViolation · FieldAccessDenied · InvalidDiff
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded · SessionTyped
    │   ├── SessionHasForks
    │   └── SessionCorrupt · FollowerBehind
    ├── StateError          stored state does not match what the call needs
    │   ├── IntegrityViolation · InvalidEnvelope · EnvelopeNewer · DiffMismatch · MergeConflict
    │   ├── ScopeFull
    │   └── MigrationError  (of a session: a SessionError too)
    │       ├── MigrationMissing      SessionMigrationMissing · CheckpointMigrationMissing
    │       ├── MigrationAmbiguous    SessionMigrationAmbiguous · CheckpointMigrationAmbiguous
    │       ├── MigrationFailed       SessionMigrationFailed · CheckpointMigrationFailed
    │       └── SchemaIncompatible    SessionSchemaIncompatible · CheckpointSchemaIncompatible
    └── StoreError          the store cannot serve the call
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── StoreUnopened · StoreForeign · StoreNewer · StoreOlder · StoreCorrupt · StoreOnNetwork
        └── BackupRefused · BackupDamaged · BundleRefused · BundleDamaged · ExtraMissing

Each class has a stable `code`, a `retryable` flag (the same call may succeed later), an HTTP
`status` and a command-line `exit_code`. Messages are built in this package only and end with the
next step.
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
    SessionHasForks,
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
    BundleDamaged,
    BundleRefused,
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
    "BundleDamaged",
    "BundleRefused",
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
    "SessionHasForks",
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
