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
    BackupRefused,
    CommitTooLarge,
    EventTooLarge,
    ExtraMissing,
    FollowerBehind,
    HoldfastError,
    InvalidCursor,
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
    ReservedType,
    SchemaViolation,
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
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreForked,
    StoreFull,
    StoreNewer,
    StoreOnNetwork,
    StoreReadOnly,
    StoreUnopened,
)
from holdfast.model import ops, reducers
from holdfast.model.due import deadline_at, runnable_at
from holdfast.model.events import Draft, Event
from holdfast.model.head import Head, Timer
from holdfast.model.keys import Key
from holdfast.model.lease import Lease
from holdfast.model.types import TTL, Ref, UnknownVariant
from holdfast.session.session import Session
from holdfast.session.sessions import Holdfast
from holdfast.store.protocol import Check, Diagnosis, Erasure, Finding, Page, Report, Seal

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from holdfast.model.state import Record, State
    from holdfast.session.sync import SyncHoldfast
    from holdfast.store.protocol import Progress

__version__ = "0.1.0"
__all__ = [
    "TTL",
    "ActorMissing",
    "BackupRefused",
    "Check",
    "CommitTooLarge",
    "Diagnosis",
    "Draft",
    "Erasure",
    "Event",
    "EventTooLarge",
    "ExtraMissing",
    "Finding",
    "FollowerBehind",
    "Head",
    "Holdfast",
    "HoldfastError",
    "InvalidCursor",
    "InvalidEvent",
    "InvalidInput",
    "InvalidKey",
    "InvalidOp",
    "InvalidQuery",
    "InvalidSchema",
    "InvalidURL",
    "InvalidValue",
    "Key",
    "Lease",
    "NotPending",
    "OpPathUnknown",
    "OpTypeMismatch",
    "Page",
    "Record",
    "Ref",
    "Report",
    "ReservedType",
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
    "SessionNotFound",
    "SessionNotLoaded",
    "State",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreForeign",
    "StoreForked",
    "StoreFull",
    "StoreNewer",
    "StoreOnNetwork",
    "StoreReadOnly",
    "StoreUnopened",
    "Timer",
    "UnknownVariant",
    "deadline_at",
    "open",
    "open_sync",
    "ops",
    "reducers",
    "restore",
    "runnable_at",
]


def open(url: str, *, seal: Seal | None = None) -> Holdfast:
    """Holdfast on the store that `url` names, for use as `async with holdfast.open(url) as hf`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal. `seal` encrypts stored bodies.
    """
    return Holdfast(url, seal=seal)


def open_sync(url: str, *, seal: Seal | None = None) -> SyncHoldfast:
    """The same without await, for scripts and notebooks: `with holdfast.open_sync(url) as hf`."""
    from holdfast.session.sync import SyncHoldfast

    return SyncHoldfast(url, seal=seal)


def restore(
    backup: str | Path, url: str, *, replace: bool = False, progress: Progress | None = None
) -> None:
    """Put a backup file in the place that `url` names. No process may have that place open.

    The backup is checked first. An existing database is only overwritten with replace=True.
    """
    from holdfast.store.open import restore_store

    restore_store(backup, url, replace=replace, progress=progress)


def __getattr__(name: str) -> Any:
    """State and Record stand on pydantic, which is imported when they are first asked for."""
    if name not in ("Record", "State"):
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    try:
        from holdfast.model import state
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pydantic"):
            raise
        raise ExtraMissing("pydantic", "state") from error
    found = globals()[name] = getattr(state, name)
    return found
