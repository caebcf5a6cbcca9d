"""Every error Limpet raises, under one root.

    LimpetError
    ├── InvalidInput        the request itself is wrong; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor · PositionUnknown
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ReservedApp · ActorMissing · BlobTooLarge
    │   ├── InvalidOp · ScopeUnknown · OpPathUnknown · OpTypeMismatch · NotPending
    │   └── InvalidSchema · SchemaViolation · FieldAccessDenied · InvalidDiff
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded · SessionTyped
    │   ├── SessionHasForks · DocumentNotFound · DocumentConflict · BlobNotFound · UploadLost
    │   ├── SessionSuspended · SessionEnded · SessionArchived · InvalidTransition · GuardFailed
    │   ├── InsufficientTokenBudget · SessionIntegrity · MemoryConflict · PromotionRefused
    │   ├── ToolAuthorizationFailed · RequiredToolUnavailable · ToolLocked
    │   ├── NoCheckpoint · NoFullCheckpoint · CheckpointIntegrity
    │   ├── SessionCorrupt · FollowerBehind · SessionSchemaViolation (a SchemaViolation too)
    │   └── TurnError           Interrupted · TurnMismatch · TurnMisused · EffectFailed
    │                           EffectUnknown · ToolDenied · ToolFailed · BudgetReached
    │                           RequestNotFound · RequestAnswered · RequestMismatch
    │                           ChildNotFound
    ├── StateError          stored state does not match what the call needs
    │   ├── IntegrityViolation · InvalidEnvelope · EnvelopeNewer · DiffMismatch · MergeConflict
    │   ├── ScopeFull
    │   └── MigrationError  (of a session: a SessionError too)
    │       ├── MigrationMissing      SessionMigrationMissing · CheckpointMigrationMissing
    │       ├── MigrationAmbiguous    SessionMigrationAmbiguous · CheckpointMigrationAmbiguous
    │       ├── MigrationFailed       SessionMigrationFailed · CheckpointMigrationFailed
    │       └── SchemaIncompatible    SessionSchemaIncompatible · CheckpointSchemaIncompatible
    ├── GraphError          a graph cannot be compiled, run, resumed or bound to a session
    │   ├── GraphInvalid          NoDeclaredEntry · UnreachableNode · DanglingEdge
    │   │                         MultipleOutgoingEdges · ConflictingReducers
    │   │                         MappingReferencesUndeclaredField · ConflictingProjectionForms
    │   │                         ReducerConfigurationInvalid · FanOutFieldNotList
    │   │                         FanOutCountModeAmbiguous · FanOutDegradedUpdate
    │   │                         ParallelBranchesNoBranches · ParallelBranchesInvalidBranchSpec
    │   │                         (all: an InvalidInput too)
    │   ├── GraphMisused          (an InvalidInput too)
    │   ├── GraphRunError         NodeException · EdgeException · ReducerError · RoutingError
    │   │                         StateValidationError · FanOutEmpty · ParallelBranchesBranchFailed
    │   │                         StepLimitReached
    │   ├── CheckpointError       CheckpointNotFound · CheckpointRecordInvalid
    │   │                         CheckpointInUse · CheckpointSuperseded
    │   │                         CheckpointSaveFailed · CheckpointLoadFailed
    │   ├── SuspensionError       SuspensionPersistenceFailed · SuspensionRecordInvalid
    │   │                         SuspensionResumePayloadInvalid · SuspensionInUnsupportedContext
    │   └── SessionStoreError     SessionLoadFailed · SessionSaveFailed · SessionWriteConflict
    │                             (a SessionError too)
    └── StoreError          the store cannot serve the call
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── StoreRefused · SealUnavailable · QueueFull · FlushFailed
        ├── StoreUnopened · StoreForeign · StoreNewer · StoreOlder · StoreCorrupt · StoreOnNetwork
        ├── BackupRefused · BackupDamaged · BundleRefused · BundleDamaged · ExtraMissing
        └── ArchiveFailed · ArchiveSealed · ArchiveDamaged

Each class has a stable `code`, a `retryable` flag (the same call may succeed later), an HTTP
`status` and a command-line `exit_code`. Messages are built in this package only and end with the
next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.errors.input import (
    ActorMissing,
    BlobTooLarge,
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
    ReservedApp,
    ReservedType,
    SchemaViolation,
    ScopeUnknown,
)
from limpet.errors.root import (
    LimpetError,
)
from limpet.errors.session import (
    BlobNotFound,
    CheckpointIntegrity,
    DocumentConflict,
    DocumentNotFound,
    FollowerBehind,
    GuardFailed,
    InsufficientTokenBudget,
    InvalidTransition,
    MemoryConflict,
    NoCheckpoint,
    NoFullCheckpoint,
    PromotionRefused,
    RequiredToolUnavailable,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionError,
    SessionExists,
    SessionFenced,
    SessionHasForks,
    SessionIntegrity,
    SessionLocked,
    SessionNotFound,
    SessionNotLoaded,
    SessionSuspended,
    SessionTyped,
    ToolAuthorizationFailed,
    ToolLocked,
    UploadLost,
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
    ArchiveDamaged,
    ArchiveFailed,
    ArchiveSealed,
    Asked,
    BackupDamaged,
    BackupRefused,
    BundleDamaged,
    BundleRefused,
    ExtraMissing,
    FlushFailed,
    QueueFull,
    SealUnavailable,
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
    StoreRefused,
    StoreUnopened,
    Unrecorded,
)

if TYPE_CHECKING:
    from limpet.errors.graph import (
        ConflictingProjectionForms,
        ConflictingReducers,
        DanglingEdge,
        EdgeException,
        FanOutCountModeAmbiguous,
        FanOutDegradedUpdate,
        FanOutEmpty,
        FanOutFieldNotList,
        GraphError,
        GraphInvalid,
        GraphMisused,
        GraphRunError,
        MappingReferencesUndeclaredField,
        MultipleOutgoingEdges,
        NoDeclaredEntry,
        NodeException,
        ParallelBranchesBranchFailed,
        ParallelBranchesInvalidBranchSpec,
        ParallelBranchesNoBranches,
        ReducerConfigurationInvalid,
        ReducerError,
        RoutingError,
        StateValidationError,
        StepLimitReached,
        UnreachableNode,
    )
    from limpet.errors.invocation import (
        CheckpointError,
        CheckpointInUse,
        CheckpointLoadFailed,
        CheckpointNotFound,
        CheckpointRecordInvalid,
        CheckpointSaveFailed,
        CheckpointSuperseded,
        SessionLoadFailed,
        SessionSaveFailed,
        SessionStoreError,
        SessionWriteConflict,
        SuspensionError,
        SuspensionInUnsupportedContext,
        SuspensionPersistenceFailed,
        SuspensionRecordInvalid,
        SuspensionResumePayloadInvalid,
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
        SessionSchemaViolation,
        Step,
    )
    from limpet.errors.runtime import (
        BudgetReached,
        ChildNotFound,
        EffectFailed,
        EffectUnknown,
        Interrupted,
        RequestAnswered,
        RequestMismatch,
        RequestNotFound,
        ToolDenied,
        ToolFailed,
        TurnError,
        TurnMismatch,
        TurnMisused,
    )

__all__ = [
    "ActorMissing",
    "ArchiveDamaged",
    "ArchiveFailed",
    "ArchiveSealed",
    "Asked",
    "BackupDamaged",
    "BackupRefused",
    "BlobNotFound",
    "BlobTooLarge",
    "BudgetReached",
    "BundleDamaged",
    "BundleRefused",
    "CheckpointError",
    "CheckpointInUse",
    "CheckpointIntegrity",
    "CheckpointLoadFailed",
    "CheckpointMigrationAmbiguous",
    "CheckpointMigrationFailed",
    "CheckpointMigrationMissing",
    "CheckpointNotFound",
    "CheckpointRecordInvalid",
    "CheckpointSaveFailed",
    "CheckpointSchemaIncompatible",
    "CheckpointSuperseded",
    "ChildNotFound",
    "CommitTooLarge",
    "ConflictingProjectionForms",
    "ConflictingReducers",
    "DanglingEdge",
    "DiffMismatch",
    "DocumentConflict",
    "DocumentNotFound",
    "EdgeException",
    "EffectFailed",
    "EffectUnknown",
    "EnvelopeNewer",
    "EventTooLarge",
    "ExtraMissing",
    "FanOutCountModeAmbiguous",
    "FanOutDegradedUpdate",
    "FanOutEmpty",
    "FanOutFieldNotList",
    "FieldAccessDenied",
    "FlushFailed",
    "FollowerBehind",
    "GraphError",
    "GraphInvalid",
    "GraphMisused",
    "GraphRunError",
    "GuardFailed",
    "InsufficientTokenBudget",
    "IntegrityViolation",
    "Interrupted",
    "InvalidCursor",
    "InvalidDiff",
    "InvalidEnvelope",
    "InvalidEvent",
    "InvalidInput",
    "InvalidKey",
    "InvalidOp",
    "InvalidQuery",
    "InvalidSchema",
    "InvalidTransition",
    "InvalidURL",
    "InvalidValue",
    "Lifecycle",
    "LimpetError",
    "MappingReferencesUndeclaredField",
    "MemoryConflict",
    "MergeConflict",
    "MigrationAmbiguous",
    "MigrationError",
    "MigrationFailed",
    "MigrationMissing",
    "MultipleOutgoingEdges",
    "NoCheckpoint",
    "NoDeclaredEntry",
    "NoFullCheckpoint",
    "NodeException",
    "NotPending",
    "OpPathUnknown",
    "OpTypeMismatch",
    "ParallelBranchesBranchFailed",
    "ParallelBranchesInvalidBranchSpec",
    "ParallelBranchesNoBranches",
    "PositionUnknown",
    "PromotionRefused",
    "QueueFull",
    "ReducerConfigurationInvalid",
    "ReducerError",
    "RequestAnswered",
    "RequestMismatch",
    "RequestNotFound",
    "RequiredToolUnavailable",
    "ReservedApp",
    "ReservedType",
    "RoutingError",
    "SchemaIncompatible",
    "SchemaViolation",
    "ScopeFull",
    "ScopeUnknown",
    "SealUnavailable",
    "SessionArchived",
    "SessionConflict",
    "SessionCorrupt",
    "SessionDeleted",
    "SessionEnded",
    "SessionErased",
    "SessionError",
    "SessionExists",
    "SessionFenced",
    "SessionHasForks",
    "SessionIntegrity",
    "SessionLoadFailed",
    "SessionLocked",
    "SessionMigrationAmbiguous",
    "SessionMigrationFailed",
    "SessionMigrationMissing",
    "SessionNotFound",
    "SessionNotLoaded",
    "SessionSaveFailed",
    "SessionSchemaIncompatible",
    "SessionSchemaViolation",
    "SessionStoreError",
    "SessionSuspended",
    "SessionTyped",
    "SessionWriteConflict",
    "StateError",
    "StateValidationError",
    "Step",
    "StepLimitReached",
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
    "StoreRefused",
    "StoreUnopened",
    "SuspensionError",
    "SuspensionInUnsupportedContext",
    "SuspensionPersistenceFailed",
    "SuspensionRecordInvalid",
    "SuspensionResumePayloadInvalid",
    "ToolAuthorizationFailed",
    "ToolDenied",
    "ToolFailed",
    "ToolLocked",
    "TurnError",
    "TurnMismatch",
    "TurnMisused",
    "UnreachableNode",
    "Unrecorded",
    "UploadLost",
]

# Loaded when first asked for: most processes run no turn, no migration and no graph, and all of
# them start.
_LATER = ("runtime", "migration", "graph", "invocation")

if not TYPE_CHECKING:  # a type checker that saw it would believe in any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module in _LATER if name in __all__ else ():
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names that are loaded later are there to be found, too."""
    return sorted({*globals(), *__all__})
