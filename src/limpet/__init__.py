"""Limpet: durable sessions for AI agents.

    async with limpet.open("sqlite:///support.db") as lp:
        s = await lp.create("support", "ada", state={"step": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", set={"step": 1})

A session is an append-only log of events; every change to anything is one atomic commit to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from limpet import ops
from limpet.errors import (
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
    LimpetError,
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
    ScopeFull,
    ScopeUnknown,
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
    SessionTyped,
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
from limpet.model.due import deadline_at, runnable_at
from limpet.model.events import Draft, Event
from limpet.model.head import Head, Timer
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.values import ABSENT
from limpet.session.app import App
from limpet.session.session import Session
from limpet.session.sessions import Limpet
from limpet.store.protocol import (
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

    from limpet.model import envelope, reducers
    from limpet.model.access import Access, access
    from limpet.model.changes import Change, Kind
    from limpet.model.diff import Diff, diff
    from limpet.model.envelope import Envelope
    from limpet.model.merge import Merged, Resolved, merge
    from limpet.model.migrations import Migrated, Migration, MigrationRegistry
    from limpet.model.policy import Conflict, LastWriter, Policy, Priority, escalate
    from limpet.model.reducers import Replace
    from limpet.model.semver import SchemaVersion
    from limpet.model.state import Record, State, decode_fields, encode_fields
    from limpet.model.types import TTL, Ref, UnknownVariant
    from limpet.session.migrate import MigrationOutcome, MigrationPlan
    from limpet.session.sync import SyncApp, SyncLimpet, SyncSession
    from limpet.store.protocol import Progress

# Silent until the application configures logging: docs/logging.md.
logging.getLogger("limpet").addHandler(logging.NullHandler())

__version__ = "0.1.0"
__all__ = [
    "ABSENT",
    "TTL",
    "Access",
    "ActorMissing",
    "App",
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
    "Limpet",
    "LimpetError",
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
    "ScopeFull",
    "ScopeUnknown",
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
    "SessionTyped",
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
    "SyncApp",
    "SyncLimpet",
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
    "SyncApp": "session.sync",
    "SyncLimpet": "session.sync",
    "SyncSession": "session.sync",
}


if not TYPE_CHECKING:  # a type checker that saw it would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(f"limpet.{_LATER[name] or f'model.{name}'}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("pydantic"):
                raise
            raise ExtraMissing("pydantic", "state") from error
        found = globals()[name] = getattr(module, name) if _LATER[name] else module
        return found


def __dir__() -> list[str]:
    """Names that are loaded later are there to be found, too."""
    return sorted({*globals(), *__all__})


def open(url: str, *, seal: Seal | None = None, connections: int | None = None) -> Limpet:
    """Limpet on the store that `url` names, for use as `async with limpet.open(url) as lp`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal · postgresql://user@host/database. `seal` encrypts stored bodies. No more than
    `connections` to a server are open at a time: 5 or more, 15 if not given.
    """
    return Limpet(url, seal=seal, connections=connections)


def open_sync(url: str, *, seal: Seal | None = None, connections: int | None = None) -> SyncLimpet:
    """The same without await, for scripts and notebooks: `with limpet.open_sync(url) as lp`."""
    from limpet.session.sync import SyncLimpet

    return SyncLimpet(url, seal=seal, connections=connections)


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
    but a Limpet database ever is.
    """
    from limpet.store.open import restore_store

    return restore_store(backup, url, replace=replace, damaged=damaged, progress=progress)
