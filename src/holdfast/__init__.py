"""Holdfast: durable sessions for AI agents.

    async with holdfast.open("sqlite:///support.db") as hf:
        s = await hf.create("support", "ada", state={"step": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", set={"step": 1})

A session is an append-only log of events; every change to anything is one atomic commit to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import (
    ActorMissing,
    BackupDamaged,
    BackupRefused,
    CheckpointMigrationAmbiguous,
    CheckpointMigrationFailed,
    CheckpointMigrationMissing,
    CheckpointSchemaIncompatible,
    CommitTooLarge,
    DiffMismatch,
    EnvelopeNewer,
    EventTooLarge,
    ExtraMissing,
    FieldAccessDenied,
    FollowerBehind,
    HoldfastError,
    IntegrityViolation,
    InvalidCursor,
    InvalidDiff,
    InvalidEnvelope,
    InvalidEvent,
    InvalidInput,
    InvalidKey,
    InvalidOp,
    InvalidQuery,
    InvalidSchema,
    InvalidURL,
    InvalidValue,
    MergeConflict,
    MigrationAmbiguous,
    MigrationError,
    MigrationFailed,
    MigrationMissing,
    NotPending,
    OpPathUnknown,
    OpTypeMismatch,
    PositionUnknown,
    ReservedType,
    SchemaIncompatible,
    SchemaViolation,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionExists,
    SessionFenced,
    SessionLocked,
    SessionMigrationAmbiguous,
    SessionMigrationFailed,
    SessionMigrationMissing,
    SessionNotFound,
    SessionNotLoaded,
    SessionSchemaIncompatible,
    StateError,
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
from holdfast.model import ops
from holdfast.model.due import deadline_at, runnable_at
from holdfast.model.events import Draft, Event
from holdfast.model.head import Head, Timer
from holdfast.model.keys import Key
from holdfast.model.lease import Lease
from holdfast.model.values import ABSENT
from holdfast.session.session import Session
from holdfast.session.sessions import Holdfast
from holdfast.store.protocol import (
    Check,
    Diagnosis,
    Erasure,
    FeedEntry,
    Finding,
    Page,
    Report,
    Restored,
    Seal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model import envelope, reducers
    from holdfast.model.access import Access, access
    from holdfast.model.changes import Change, Kind
    from holdfast.model.diff import Diff, diff
    from holdfast.model.envelope import Envelope
    from holdfast.model.merge import Merged, Resolved, merge
    from holdfast.model.migrations import Migrated, Migration, MigrationRegistry
    from holdfast.model.policy import Conflict, LastWriter, Policy, Priority, escalate
    from holdfast.model.reducers import Replace
    from holdfast.model.semver import SchemaVersion
    from holdfast.model.state import Record, State, decode_fields, encode_fields
    from holdfast.model.types import TTL, Ref, UnknownVariant
    from holdfast.session.migrate import MigrationOutcome, MigrationPlan
    from holdfast.session.sync import SyncHoldfast, SyncSession
    from holdfast.store.protocol import Progress

__version__ = "0.1.0"
__all__ = [
    "ABSENT",
    "TTL",
    "Access",
    "ActorMissing",
    "BackupDamaged",
    "BackupRefused",
    "Change",
    "Check",
    "CheckpointMigrationAmbiguous",
    "CheckpointMigrationFailed",
    "CheckpointMigrationMissing",
    "CheckpointSchemaIncompatible",
    "CommitTooLarge",
    "Conflict",
    "Diagnosis",
    "Diff",
    "DiffMismatch",
    "Draft",
    "Envelope",
    "EnvelopeNewer",
    "Erasure",
    "Event",
    "EventTooLarge",
    "ExtraMissing",
    "FeedEntry",
    "FieldAccessDenied",
    "Finding",
    "FollowerBehind",
    "Head",
    "Holdfast",
    "HoldfastError",
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
    "Key",
    "Kind",
    "LastWriter",
    "Lease",
    "MergeConflict",
    "Merged",
    "Migrated",
    "Migration",
    "MigrationAmbiguous",
    "MigrationError",
    "MigrationFailed",
    "MigrationMissing",
    "MigrationOutcome",
    "MigrationPlan",
    "MigrationRegistry",
    "NotPending",
    "OpPathUnknown",
    "OpTypeMismatch",
    "Page",
    "Policy",
    "PositionUnknown",
    "Priority",
    "Record",
    "Ref",
    "Replace",
    "Report",
    "ReservedType",
    "Resolved",
    "Restored",
    "SchemaIncompatible",
    "SchemaVersion",
    "SchemaViolation",
    "Seal",
    "Session",
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
    "State",
    "StateError",
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
    "SyncHoldfast",
    "SyncSession",
    "Timer",
    "UnknownVariant",
    "access",
    "deadline_at",
    "decode_fields",
    "diff",
    "encode_fields",
    "envelope",
    "escalate",
    "merge",
    "open",
    "open_sync",
    "ops",
    "reducers",
    "restore",
    "runnable_at",
]

# Loaded when first asked for: most processes never compare, merge or migrate, and all of
# them start.
_LATER = {
    "Access": "model.access",
    "access": "model.access",
    "Envelope": "model.envelope",
    "Migrated": "model.migrations",
    "Migration": "model.migrations",
    "MigrationRegistry": "model.migrations",
    "Record": "model.state",
    "Ref": "model.types",
    "Replace": "model.reducers",
    "SchemaVersion": "model.semver",
    "State": "model.state",
    "TTL": "model.types",
    "UnknownVariant": "model.types",
    "decode_fields": "model.state",
    "encode_fields": "model.state",
    "envelope": "",
    "reducers": "",
    "Change": "model.changes",
    "Conflict": "model.policy",
    "Diff": "model.diff",
    "Kind": "model.changes",
    "LastWriter": "model.policy",
    "Merged": "model.merge",
    "Policy": "model.policy",
    "Priority": "model.policy",
    "Resolved": "model.merge",
    "diff": "model.diff",
    "escalate": "model.policy",
    "merge": "model.merge",
    "MigrationOutcome": "session.migrate",
    "MigrationPlan": "session.migrate",
    "SyncHoldfast": "session.sync",
    "SyncSession": "session.sync",
}


if not TYPE_CHECKING:  # a type checker that saw it would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(f"holdfast.{_LATER[name] or f'model.{name}'}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("pydantic"):
                raise
            raise ExtraMissing("pydantic", "state") from error
        found = globals()[name] = getattr(module, name) if _LATER[name] else module
        return found


def __dir__() -> list[str]:
    """Names that are loaded later are there to be found, too."""
    return sorted({*globals(), *__all__})


def open(url: str, *, seal: Seal | None = None, connections: int | None = None) -> Holdfast:
    """Holdfast on the store that `url` names, for use as `async with holdfast.open(url) as hf`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal · postgresql://user@host/database. `seal` encrypts stored bodies. No more than
    `connections` to a server are open at a time: 5 or more, 15 if not given.
    """
    return Holdfast(url, seal=seal, connections=connections)


def open_sync(
    url: str, *, seal: Seal | None = None, connections: int | None = None
) -> SyncHoldfast:
    """The same without await, for scripts and notebooks: `with holdfast.open_sync(url) as hf`."""
    from holdfast.session.sync import SyncHoldfast

    return SyncHoldfast(url, seal=seal, connections=connections)


def restore(
    backup: str | Path,
    url: str,
    *,
    replace: bool = False,
    damaged: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Put a backup file in the place that `url` names. No process may have that place open.

    Every session of the backup is verified first; with findings it is refused (BackupDamaged),
    unless damaged=True. An existing database is only overwritten with replace=True, and nothing
    but a Holdfast database ever is.
    """
    from holdfast.store.open import restore_store

    return restore_store(backup, url, replace=replace, damaged=damaged, progress=progress)
