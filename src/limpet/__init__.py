"""Limpet: durable sessions for AI agents.

    async with limpet.open("sqlite:///support.db") as lp:
        s = await lp.create("support", "ada", state={"step": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", set={"step": 1})

A session is an append-only log of events; every change to anything is one atomic commit to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from limpet import errors, facts, ops
from limpet.errors import (
    BudgetReached,
    EffectFailed,
    EffectUnknown,
    Interrupted,
    InvalidInput,
    LimpetError,
    SessionConflict,
    SessionEnded,
    SessionError,
    SessionExists,
    SessionNotFound,
    StoreError,
    ToolDenied,
)
from limpet.model import Draft, Event, Head, Key, Lease, Trace
from limpet.model.due import deadline_at, runnable_at
from limpet.model.facts.timeouts import Timeouts
from limpet.model.facts.timers import Timer
from limpet.model.values import ABSENT
from limpet.session.app import App
from limpet.session.conversing.message import Message
from limpet.session.documents import Document, DocumentPage, Documents
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.life.policy import Transition
from limpet.session.limpet import Limpet, bind_runtime
from limpet.session.runs.runs import Harness, WakeOptions, Woken
from limpet.session.session import Session
from limpet.store.protocol import (
    Check,
    Diagnosis,
    Erasure,
    Erasures,
    FeedEntry,
    Finding,
    Page,
    Report,
    Restored,
    Seal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from limpet import providers
    from limpet.model.diff.changes import Change, Kind
    from limpet.model.diff.diff import Diff, diff
    from limpet.model.diff.merge import Merged, Resolved, merge
    from limpet.model.diff.policy import Conflict, LastWriter, Policy, Priority, escalate
    from limpet.model.envelope import envelope
    from limpet.model.envelope.record import Envelope
    from limpet.model.facts.outcomes import Evaluation, Outcome
    from limpet.model.facts.running.budgets import Budget, BudgetView, Share, Usage
    from limpet.model.facts.running.requests import Request
    from limpet.model.facts.running.revisits import Revisit
    from limpet.model.facts.running.runs import RunFailure
    from limpet.model.facts.running.setup import Setup, SetupChange
    from limpet.model.state import reducers
    from limpet.model.state.access import Access, access
    from limpet.model.state.migrations import Migrated, Migration, MigrationRegistry
    from limpet.model.state.reducers import Replace
    from limpet.model.state.semver import SchemaVersion
    from limpet.model.state.state import Record, State, decode_fields, encode_fields
    from limpet.model.state.types import TTL, Ref, UnknownVariant
    from limpet.runtime.agent import Agent
    from limpet.runtime.children import Child
    from limpet.runtime.compensation import PastEffect
    from limpet.runtime.effects import idempotency_key
    from limpet.runtime.managed_tools import ManagedTools
    from limpet.runtime.model_call import ModelRequest, Piece, Reply, ToolCall, ToolResult, assemble
    from limpet.runtime.requests import Approval
    from limpet.runtime.tool import tool
    from limpet.runtime.turn import Turn
    from limpet.runtime.worker import Worker
    from limpet.session.conversing.context import Context
    from limpet.session.history.blame import Blame
    from limpet.session.history.branches import Lineage, MergedFrom
    from limpet.session.history.checkpoint_log import Checkpoint, CheckpointPage
    from limpet.session.history.checkpoint_policy import CheckpointPolicy
    from limpet.session.history.retention import CompactReport
    from limpet.session.history.rewind import Rewound
    from limpet.session.life.memory import Remembered
    from limpet.session.life.resumption import Briefing, Resumption
    from limpet.session.life.sweep import Swept, Unswept
    from limpet.session.life.tools import Tool, ToolRegistry
    from limpet.session.life.transitions import Durations
    from limpet.session.metrics import Metric
    from limpet.session.move.mirror import Mirrored
    from limpet.session.move.transfer import Copied, Refused
    from limpet.session.runs.buffers import Buffer, BufferInfo, Note
    from limpet.session.runs.delegation import Kin
    from limpet.session.runs.learnings import Gates, Learning
    from limpet.session.runs.setup import VaultDocument, Vaults
    from limpet.session.runs.traces import Activation, Span, WakeTrace
    from limpet.session.sync.shared import SharedLimpet
    from limpet.session.sync.verbs import SyncApp, SyncDocuments, SyncLimpet, SyncSession
    from limpet.session.typing.migrate import MigrationOutcome, MigrationPlan
    from limpet.store.answers import Checked
    from limpet.store.protocol import Progress

# Silent until the application configures logging: docs/logging.md.
logging.getLogger("limpet").addHandler(logging.NullHandler())

__version__ = "0.1.0"
__all__ = [
    "ABSENT",
    "TTL",
    "Access",
    "Activation",
    "Agent",
    "App",
    "Approval",
    "Blame",
    "Briefing",
    "Budget",
    "BudgetReached",
    "BudgetView",
    "Buffer",
    "BufferInfo",
    "Change",
    "Check",
    "Checkpoint",
    "CheckpointPage",
    "CheckpointPolicy",
    "CheckpointRef",
    "Child",
    "CompactReport",
    "Conflict",
    "Context",
    "Copied",
    "Diagnosis",
    "Diff",
    "Document",
    "DocumentPage",
    "Documents",
    "Draft",
    "Durations",
    "EffectFailed",
    "EffectUnknown",
    "Envelope",
    "Erasure",
    "Erasures",
    "Evaluation",
    "Event",
    "FeedEntry",
    "Finding",
    "Gates",
    "Head",
    "Interrupted",
    "InvalidInput",
    "Key",
    "Kin",
    "Kind",
    "LastWriter",
    "Learning",
    "Lease",
    "Limpet",
    "LimpetError",
    "Lineage",
    "ManagedTools",
    "Merged",
    "MergedFrom",
    "Message",
    "Metric",
    "Migrated",
    "Migration",
    "MigrationOutcome",
    "MigrationPlan",
    "MigrationRegistry",
    "Mirrored",
    "ModelRequest",
    "Note",
    "Outcome",
    "Page",
    "PastEffect",
    "Piece",
    "Policy",
    "Priority",
    "Record",
    "Ref",
    "Refused",
    "Remembered",
    "Replace",
    "Reply",
    "Report",
    "Request",
    "Resolved",
    "Restored",
    "Resumption",
    "Revisit",
    "Rewound",
    "RunFailure",
    "SchemaVersion",
    "Seal",
    "Session",
    "SessionConflict",
    "SessionEnded",
    "SessionError",
    "SessionExists",
    "SessionNotFound",
    "Setup",
    "SetupChange",
    "Share",
    "SharedLimpet",
    "Span",
    "State",
    "StoreError",
    "Swept",
    "SyncApp",
    "SyncDocuments",
    "SyncLimpet",
    "SyncSession",
    "Timeouts",
    "Timer",
    "Tool",
    "ToolCall",
    "ToolDenied",
    "ToolRegistry",
    "ToolResult",
    "Trace",
    "Transition",
    "Turn",
    "UnknownVariant",
    "Unswept",
    "Usage",
    "VaultDocument",
    "Vaults",
    "WakeTrace",
    "Woken",
    "Worker",
    "access",
    "assemble",
    "deadline_at",
    "decode_fields",
    "diff",
    "encode_fields",
    "envelope",
    "errors",
    "escalate",
    "facts",
    "idempotency_key",
    "merge",
    "open",
    "open_sync",
    "ops",
    "providers",
    "reducers",
    "restore",
    "runnable_at",
    "tool",
]

# Loaded when first asked for: most processes never compare, merge or migrate, and all of
# them start.
_LATER = {
    "Access": "model.state.access",
    "access": "model.state.access",
    "Envelope": "model.envelope.record",
    "Migrated": "model.state.migrations",
    "Migration": "model.state.migrations",
    "MigrationRegistry": "model.state.migrations",
    "Record": "model.state.state",
    "Ref": "model.state.types",
    "Replace": "model.state.reducers",
    "SchemaVersion": "model.state.semver",
    "State": "model.state.state",
    "TTL": "model.state.types",
    "UnknownVariant": "model.state.types",
    "decode_fields": "model.state.state",
    "encode_fields": "model.state.state",
    "envelope": "model.envelope.envelope",
    "reducers": "model.state.reducers",
    "Change": "model.diff.changes",
    "Conflict": "model.diff.policy",
    "Diff": "model.diff.diff",
    "Kind": "model.diff.changes",
    "LastWriter": "model.diff.policy",
    "Merged": "model.diff.merge",
    "Policy": "model.diff.policy",
    "Priority": "model.diff.policy",
    "Resolved": "model.diff.merge",
    "diff": "model.diff.diff",
    "escalate": "model.diff.policy",
    "merge": "model.diff.merge",
    "Blame": "session.history.blame",
    "Lineage": "session.history.branches",
    "MergedFrom": "session.history.branches",
    "Rewound": "session.history.rewind",
    "Checkpoint": "session.history.checkpoint_log",
    "CheckpointPage": "session.history.checkpoint_log",
    "CheckpointPolicy": "session.history.checkpoint_policy",
    "CompactReport": "session.history.retention",
    "Metric": "session.metrics",
    "MigrationOutcome": "session.typing.migrate",
    "MigrationPlan": "session.typing.migrate",
    "Context": "session.conversing.context",
    "Copied": "session.move.transfer",
    "Mirrored": "session.move.mirror",
    "Durations": "session.life.transitions",
    "Remembered": "session.life.memory",
    "Briefing": "session.life.resumption",
    "Resumption": "session.life.resumption",
    "Swept": "session.life.sweep",
    "Tool": "session.life.tools",
    "ToolRegistry": "session.life.tools",
    "Unswept": "session.life.sweep",
    "Refused": "session.move.transfer",
    "SharedLimpet": "session.sync.shared",
    "SyncApp": "session.sync.verbs",
    "SyncDocuments": "session.sync.verbs",
    "SyncLimpet": "session.sync.verbs",
    "SyncSession": "session.sync.verbs",
    "Approval": "runtime.requests",
    "Activation": "session.runs.traces",
    "Span": "session.runs.traces",
    "WakeTrace": "session.runs.traces",
    "Budget": "model.facts.running.budgets",
    "BudgetView": "model.facts.running.budgets",
    "Share": "model.facts.running.budgets",
    "Buffer": "session.runs.buffers",
    "BufferInfo": "session.runs.buffers",
    "Kin": "session.runs.delegation",
    "Gates": "session.runs.learnings",
    "Learning": "session.runs.learnings",
    "Note": "session.runs.buffers",
    "Setup": "model.facts.running.setup",
    "SetupChange": "model.facts.running.setup",
    "VaultDocument": "session.runs.setup",
    "Vaults": "session.runs.setup",
    "Outcome": "model.facts.outcomes",
    "Evaluation": "model.facts.outcomes",
    "RunFailure": "model.facts.running.runs",
    "Child": "runtime.children",
    "PastEffect": "runtime.compensation",
    "Request": "model.facts.running.requests",
    "Revisit": "model.facts.running.revisits",
    "ManagedTools": "runtime.managed_tools",
    "Turn": "runtime.turn",
    "Agent": "runtime.agent",
    "ModelRequest": "runtime.model_call",
    "Piece": "runtime.model_call",
    "Reply": "runtime.model_call",
    "ToolCall": "runtime.model_call",
    "ToolResult": "runtime.model_call",
    "assemble": "runtime.model_call",
    "tool": "runtime.tool",
    "providers": "providers",
    "Usage": "model.facts.running.budgets",
    "Worker": "runtime.worker",
    "idempotency_key": "runtime.effects",
}

_MODULES = ("envelope", "providers", "reducers")  # of these the module itself

if not TYPE_CHECKING:  # a type checker that saw it would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(f"limpet.{_LATER[name]}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("pydantic"):
                raise
            raise errors.ExtraMissing("pydantic", "state") from error
        found = globals()[name] = module if name in _MODULES else getattr(module, name)
        return found


def __dir__() -> list[str]:
    """Names that are loaded later are there to be found, too."""
    return sorted({*globals(), *__all__})


async def _run_turn(
    lp: Limpet, key: Key, harness: Harness, options: WakeOptions, *, lease_seconds: float
) -> Woken:
    """Import the runtime at the first turn: a process that only keeps a log does without it."""
    from limpet.runtime.wake import wake

    return await wake(lp, key, harness, options, lease_seconds=lease_seconds)


bind_runtime(_run_turn)


def open(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    archive: str | None = None,
    check: Checked | None = None,
) -> Limpet:
    """Limpet on the store that `url` names, for use as `async with limpet.open(url) as lp`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal · postgresql://user@host/database. `seal` encrypts stored bodies. No more than
    `connections` to a server are open at a time: 5 or more, 15 if not given. `archive` is where
    archived sessions go: file:///directory or s3://bucket/prefix. With check="chain" loads compare
    events with the chain, as they do if there is a seal; "crc" compares their checksums alone.
    """
    return Limpet(url, seal=seal, connections=connections, archive=archive, check=check)


def open_sync(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    archive: str | None = None,
    check: Checked | None = None,
) -> SyncLimpet:
    """The same without await, for scripts and notebooks: `with limpet.open_sync(url) as lp`."""
    from limpet.session.sync.verbs import SyncLimpet

    return SyncLimpet(url, seal=seal, connections=connections, archive=archive, check=check)


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
