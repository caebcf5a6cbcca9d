"""Limpet: durable sessions for AI agents.

    async with limpet.open("sqlite:///support.db") as lp:
        s = await lp.create("support", "ada", state={"step": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", set={"step": 1})

A session is an append-only log of events; every change to anything is one atomic commit to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from limpet.exports import lazy_exports
from limpet.session.limpet import Limpet as Limpet, bind_runtime
from limpet.store.imports import translate_imports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from limpet import (
        errors as errors,
        facts as facts,
        graph as graph,
        ops as ops,
        providers as providers,
    )
    from limpet.analytics.advice import (
        Advice as Advice,
        AdvicePolicy as AdvicePolicy,
        SignalEvidence as SignalEvidence,
    )
    from limpet.analytics.analytics import Analytics as Analytics, Score as Score
    from limpet.analytics.anomalies import Alert as Alert, Anomalies as Anomalies
    from limpet.analytics.compare import (
        Comparison as Comparison,
        MetricDifference as MetricDifference,
        Regression as Regression,
    )
    from limpet.analytics.metrics import (
        SessionAnalytics as SessionAnalytics,
        ToolUsage as ToolUsage,
    )
    from limpet.analytics.satisfaction import SatisfactionModel as SatisfactionModel
    from limpet.analytics.sets import FailingSet as FailingSet
    from limpet.analytics.tables import Table as Table
    from limpet.errors import (
        AccessDenied as AccessDenied,
        BudgetReached as BudgetReached,
        EffectFailed as EffectFailed,
        EffectUnknown as EffectUnknown,
        Interrupted as Interrupted,
        InvalidInput as InvalidInput,
        LimpetError as LimpetError,
        NotDone as NotDone,
        SessionConflict as SessionConflict,
        SessionEnded as SessionEnded,
        SessionError as SessionError,
        SessionExists as SessionExists,
        SessionMoved as SessionMoved,
        SessionNotFound as SessionNotFound,
        StoreError as StoreError,
        ToolDenied as ToolDenied,
    )
    from limpet.model import (
        Draft as Draft,
        Event as Event,
        Head as Head,
        Key as Key,
        Lease as Lease,
        Trace as Trace,
    )
    from limpet.model.diff.changes import Change as Change, Kind as Kind
    from limpet.model.diff.diff import Diff as Diff, diff as diff
    from limpet.model.diff.merge import (
        Conflict as Conflict,
        LastWriter as LastWriter,
        Merged as Merged,
        Policy as Policy,
        Priority as Priority,
        Resolved as Resolved,
        escalate as escalate,
        merge as merge,
    )
    from limpet.model.due import deadline_at as deadline_at, runnable_at as runnable_at
    from limpet.model.envelope import envelope as envelope
    from limpet.model.envelope.record import Envelope as Envelope
    from limpet.model.facts.isolation import FieldAccess as FieldAccess, Isolation as Isolation
    from limpet.model.facts.outcomes import Evaluation as Evaluation, Outcome as Outcome
    from limpet.model.facts.running.budgets import (
        Budget as Budget,
        BudgetView as BudgetView,
        Share as Share,
        Usage as Usage,
    )
    from limpet.model.facts.running.requests import Request as Request
    from limpet.model.facts.running.runs import RunFailure as RunFailure
    from limpet.model.facts.running.setup import Setup as Setup, SetupChange as SetupChange
    from limpet.model.facts.timeouts import Timeouts as Timeouts
    from limpet.model.facts.timers import Revisit as Revisit, Timer as Timer
    from limpet.model.state import reducers as reducers
    from limpet.model.state.migrations import (
        Migrated as Migrated,
        Migration as Migration,
        MigrationRegistry as MigrationRegistry,
        SchemaVersion as SchemaVersion,
    )
    from limpet.model.state.reducers import Replace as Replace
    from limpet.model.state.state import (
        Access as Access,
        Record as Record,
        State as State,
        access as access,
        decode_fields as decode_fields,
        encode_fields as encode_fields,
    )
    from limpet.model.state.types import TTL as TTL, Ref as Ref, UnknownVariant as UnknownVariant
    from limpet.model.values import ABSENT as ABSENT
    from limpet.runtime.agent import Agent as Agent
    from limpet.runtime.children import Child as Child, ChildResult as ChildResult
    from limpet.runtime.compensation import PastEffect as PastEffect
    from limpet.runtime.effects import idempotency_key as idempotency_key
    from limpet.runtime.managed_tools import ManagedTools as ManagedTools
    from limpet.runtime.model_call import (
        ModelRequest as ModelRequest,
        Piece as Piece,
        Reply as Reply,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        assemble as assemble,
    )
    from limpet.runtime.requests import Approval as Approval
    from limpet.runtime.tool import tool as tool
    from limpet.runtime.turn import Turn as Turn
    from limpet.runtime.worker import Worker as Worker
    from limpet.security.access import Principal as Principal
    from limpet.security.audit import AuditRecord as AuditRecord
    from limpet.security.certificates import check_certificate as check_certificate
    from limpet.security.keys import KeysStatus as KeysStatus
    from limpet.security.receipts import (
        Proof as Proof,
        Receipt as Receipt,
        check_receipt as check_receipt,
    )
    from limpet.security.tokens import Claims as Claims, TokenPolicy as TokenPolicy
    from limpet.session.audit import (
        AuditExport as AuditExport,
        AuditLog as AuditLog,
        check_audit as check_audit,
    )
    from limpet.session.citations import Cited as Cited
    from limpet.session.conversation.context import Context as Context
    from limpet.session.conversation.shapes import Message as Message
    from limpet.session.documents import (
        Document as Document,
        DocumentPage as DocumentPage,
        Documents as Documents,
    )
    from limpet.session.history.blame import Blame as Blame
    from limpet.session.history.branches import Lineage as Lineage, MergedFrom as MergedFrom
    from limpet.session.history.checkpoint_log import (
        Checkpoint as Checkpoint,
        CheckpointPage as CheckpointPage,
        CheckpointRef as CheckpointRef,
    )
    from limpet.session.history.checkpoint_policy import CheckpointPolicy as CheckpointPolicy
    from limpet.session.history.retention import (
        CompactReport as CompactReport,
        RetentionLimits as RetentionLimits,
    )
    from limpet.session.history.rewind import Rewound as Rewound
    from limpet.session.life.lifecycle_policy import Transition as Transition
    from limpet.session.life.memory import Remembered as Remembered
    from limpet.session.life.resumption import Briefing as Briefing, Resumption as Resumption
    from limpet.session.life.sweep import Swept as Swept, Unswept as Unswept
    from limpet.session.life.tools import Tool as Tool, ToolRegistry as ToolRegistry
    from limpet.session.life.transitions import Durations as Durations
    from limpet.session.limpet import App as App
    from limpet.session.move.arrivals import ArrivalPolicy as ArrivalPolicy
    from limpet.session.move.mirror import Mirrored as Mirrored
    from limpet.session.move.mover import (
        DrainReport as DrainReport,
        Moved as Moved,
        Prestaged as Prestaged,
    )
    from limpet.session.move.reclaim import Reclaimed as Reclaimed
    from limpet.session.move.routes import Home as Home
    from limpet.session.move.transfer import Copied as Copied, Refused as Refused
    from limpet.session.overview import StoreStatus as StoreStatus, Waiting as Waiting
    from limpet.session.relations import (
        Relation as Relation,
        SessionEdge as SessionEdge,
        SessionGraph as SessionGraph,
        SessionNode as SessionNode,
    )
    from limpet.session.runs.buffers import Buffer as Buffer, BufferInfo as BufferInfo, Note as Note
    from limpet.session.runs.delegation import Kin as Kin
    from limpet.session.runs.learnings import Gates as Gates, Learning as Learning
    from limpet.session.runs.promotion import (
        MemoryItem as MemoryItem,
        PromotionGates as PromotionGates,
        Proposal as Proposal,
    )
    from limpet.session.runs.runs import Harness, WakeOptions, Woken as Woken
    from limpet.session.runs.setup import VaultDocument as VaultDocument, Vaults as Vaults
    from limpet.session.runs.spawn import Children as Children
    from limpet.session.runs.switches import AppSwitches as AppSwitches, ToolSwitch as ToolSwitch
    from limpet.session.runs.traces import (
        Activation as Activation,
        Span as Span,
        WakeTrace as WakeTrace,
    )
    from limpet.session.schema.migrate import (
        MigrationOutcome as MigrationOutcome,
        MigrationPlan as MigrationPlan,
    )
    from limpet.session.services import Metric as Metric
    from limpet.session.session import Session as Session
    from limpet.session.sharing import ImportedContext as ImportedContext, Shared as Shared
    from limpet.session.sync.loop import SharedLimpet as SharedLimpet
    from limpet.session.sync.tokens import SyncTokens as SyncTokens
    from limpet.session.sync.verbs import (
        SyncApp as SyncApp,
        SyncDocuments as SyncDocuments,
        SyncLimpet as SyncLimpet,
        SyncSession as SyncSession,
    )
    from limpet.session.tokens import Tokens as Tokens
    from limpet.store.open import TLS
    from limpet.store.protocol import (
        Check as Check,
        Checked,
        Diagnosis as Diagnosis,
        Erasure as Erasure,
        ErasureCertificate as ErasureCertificate,
        Erasures as Erasures,
        FeedEntry as FeedEntry,
        Finding as Finding,
        Page as Page,
        Progress,
        Report as Report,
        Restored as Restored,
        Seal as Seal,
    )
    from limpet.store.remote.tls import Tls as Tls
    from limpet.store.tiers import (
        Choice as Choice,
        Price as Price,
        TierCost as TierCost,
        choose_tier as choose_tier,
    )

# Silent until the application configures logging: docs/logging.md.
logging.getLogger("limpet").addHandler(logging.NullHandler())

__version__ = "0.1.0"

# Every public name, by the module that it is loaded from at its first use.
_HOMES = {
    "limpet": "errors facts graph ops providers",
    "limpet.analytics.advice": "Advice AdvicePolicy SignalEvidence",
    "limpet.analytics.analytics": "Analytics Score",
    "limpet.analytics.anomalies": "Alert Anomalies",
    "limpet.analytics.compare": "Comparison MetricDifference Regression",
    "limpet.analytics.metrics": "SessionAnalytics ToolUsage",
    "limpet.analytics.tables": "Table",
    "limpet.analytics.satisfaction": "SatisfactionModel",
    "limpet.analytics.sets": "FailingSet",
    "limpet.errors": (
        "AccessDenied BudgetReached EffectFailed EffectUnknown Interrupted InvalidInput "
        "LimpetError NotDone SessionConflict SessionEnded SessionError SessionExists "
        "SessionMoved SessionNotFound StoreError ToolDenied"
    ),
    "limpet.model": "Draft Event Head Key Lease Trace",
    "limpet.model.diff.changes": "Change Kind",
    "limpet.model.diff.diff": "Diff diff",
    "limpet.model.diff.merge": "Conflict LastWriter Merged Policy Priority Resolved escalate merge",
    "limpet.model.due": "deadline_at runnable_at",
    "limpet.model.envelope": "envelope",
    "limpet.model.envelope.record": "Envelope",
    "limpet.model.facts.isolation": "FieldAccess Isolation",
    "limpet.model.facts.outcomes": "Evaluation Outcome",
    "limpet.model.facts.running.budgets": "Budget BudgetView Share Usage",
    "limpet.model.facts.running.requests": "Request",
    "limpet.model.facts.running.runs": "RunFailure",
    "limpet.model.facts.running.setup": "Setup SetupChange",
    "limpet.model.facts.timeouts": "Timeouts",
    "limpet.model.facts.timers": "Revisit Timer",
    "limpet.model.state": "reducers",
    "limpet.model.state.state": "Access Record State access decode_fields encode_fields",
    "limpet.model.state.migrations": "Migrated Migration MigrationRegistry SchemaVersion",
    "limpet.model.state.reducers": "Replace",
    "limpet.model.state.types": "TTL Ref UnknownVariant",
    "limpet.model.values": "ABSENT",
    "limpet.runtime.agent": "Agent",
    "limpet.runtime.children": "Child ChildResult",
    "limpet.runtime.compensation": "PastEffect",
    "limpet.runtime.effects": "idempotency_key",
    "limpet.runtime.managed_tools": "ManagedTools",
    "limpet.runtime.model_call": "ModelRequest Piece Reply ToolCall ToolResult assemble",
    "limpet.runtime.requests": "Approval",
    "limpet.runtime.tool": "tool",
    "limpet.runtime.turn": "Turn",
    "limpet.runtime.worker": "Worker",
    "limpet.security.access": "Principal",
    "limpet.security.audit": "AuditRecord",
    "limpet.security.certificates": "check_certificate",
    "limpet.security.keys": "KeysStatus",
    "limpet.security.receipts": "Proof Receipt check_receipt",
    "limpet.security.tokens": "Claims TokenPolicy",
    "limpet.session.limpet": "App Limpet",
    "limpet.session.audit": "AuditExport AuditLog check_audit",
    "limpet.session.citations": "Cited",
    "limpet.session.conversation.context": "Context",
    "limpet.session.conversation.shapes": "Message",
    "limpet.session.documents": "Document DocumentPage Documents",
    "limpet.session.history.blame": "Blame",
    "limpet.session.history.branches": "Lineage MergedFrom",
    "limpet.session.history.checkpoint_log": "CheckpointRef Checkpoint CheckpointPage",
    "limpet.session.history.checkpoint_policy": "CheckpointPolicy",
    "limpet.session.history.retention": "CompactReport RetentionLimits",
    "limpet.session.history.rewind": "Rewound",
    "limpet.session.life.memory": "Remembered",
    "limpet.session.life.lifecycle_policy": "Transition",
    "limpet.session.life.resumption": "Briefing Resumption",
    "limpet.session.life.sweep": "Swept Unswept",
    "limpet.session.life.tools": "Tool ToolRegistry",
    "limpet.session.life.transitions": "Durations",
    "limpet.session.services": "Metric",
    "limpet.session.move.arrivals": "ArrivalPolicy",
    "limpet.session.move.mirror": "Mirrored",
    "limpet.session.move.mover": "DrainReport Moved Prestaged",
    "limpet.session.move.reclaim": "Reclaimed",
    "limpet.session.move.routes": "Home",
    "limpet.session.move.transfer": "Copied Refused",
    "limpet.session.overview": "StoreStatus Waiting",
    "limpet.session.relations": "Relation SessionEdge SessionGraph SessionNode",
    "limpet.session.runs.buffers": "Buffer BufferInfo Note",
    "limpet.session.runs.delegation": "Kin",
    "limpet.session.runs.learnings": "Gates Learning",
    "limpet.session.runs.promotion": "MemoryItem PromotionGates Proposal",
    "limpet.session.runs.runs": "Woken",
    "limpet.session.runs.setup": "VaultDocument Vaults",
    "limpet.session.runs.switches": "AppSwitches ToolSwitch",
    "limpet.session.runs.spawn": "Children",
    "limpet.session.runs.traces": "Activation Span WakeTrace",
    "limpet.session.session": "Session",
    "limpet.session.sharing": "ImportedContext Shared",
    "limpet.session.sync.loop": "SharedLimpet",
    "limpet.session.sync.verbs": "SyncApp SyncDocuments SyncLimpet SyncSession",
    "limpet.session.sync.tokens": "SyncTokens",
    "limpet.session.tokens": "Tokens",
    "limpet.session.schema.migrate": "MigrationOutcome MigrationPlan",
    "limpet.store.protocol": (
        "Check Diagnosis Erasure ErasureCertificate Erasures FeedEntry Finding Page Report "
        "Restored Seal"
    ),
    "limpet.store.remote.tls": "Tls",
    "limpet.store.tiers": "Choice Price TierCost choose_tier",
}

if not TYPE_CHECKING:  # a type checker that saw it would believe in any name
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__, _HOMES, own=("open", "open_sync", "restore")
    )


async def _run_turn(
    lp: Limpet, key: Key, harness: Harness, options: WakeOptions, *, lease_seconds: float
) -> Woken:
    """Import the runtime at the first turn: a process that only keeps a log does without it."""
    from limpet.runtime.wake import wake

    return await wake(lp, key, harness, options, lease_seconds=lease_seconds)


bind_runtime(_run_turn)
translate_imports()


def open(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    archive: str | None = None,
    check: Checked | None = None,
    keys: str | None = None,
    keyring: str | None = None,
    token: str | None = None,
    tls: TLS | None = None,
    seal_for: str | None = None,
    policies: str | Path | None = None,
    node: str | None = None,
    nodes: Mapping[str, str | Limpet] | None = None,
    follow_moves: bool = False,
) -> Limpet:
    """Open the store that `url` names: `async with limpet.open(url) as lp`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal · postgresql://user@host/database · http://host:8420, a server (limpet serve):
    `token` is the key to enter with, `tls` a limpet.Tls or the file of a CA; with `seal_for`, the
    public key of the server's store (lp.keys.public_key), calls are sealed for it. `keys` encrypts
    stored bodies: env:NAME, file:///path, vault://host/mount/key, pkcs11:token/key or memory: name
    the master keys, and `keyring` is the URL of the ring of wrapped keys. `seal` is a seal of your
    own. No more than `connections` to a server are open at a time: 5 or more, 15 if not given.
    `archive` is where archived sessions go: file:///directory or s3://bucket/prefix. With
    check="chain" loads compare events with the chain, as they do if there is a seal; "crc" compares
    their checksums alone.

    `policies` is a .cedar file, or a directory of them, which lp.acting_as asks besides roles and
    isolation. `node` is the name of this store among those that sessions move between, `nodes` maps
    the names of others to their URLs; with follow_moves=True `get` opens a session that has moved
    where it is now.

    Returns at once; entering the block opens the store. Raises InvalidURL, InvalidInput; on
    entering, StoreUnopened, StoreNewer, StoreForeign, EntryRefused, SealUnavailable, ExtraMissing.
    """
    return Limpet(
        url,
        seal=seal,
        connections=connections,
        archive=archive,
        check=check,
        keys=keys,
        keyring=keyring,
        token=token,
        tls=tls,
        seal_for=seal_for,
        policies=policies,
        node=node,
        nodes=nodes,
        follow_moves=follow_moves,
    )


def open_sync(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    archive: str | None = None,
    check: Checked | None = None,
    keys: str | None = None,
    keyring: str | None = None,
    token: str | None = None,
    tls: TLS | None = None,
    seal_for: str | None = None,
    policies: str | Path | None = None,
    node: str | None = None,
    nodes: Mapping[str, str | Limpet] | None = None,
    follow_moves: bool = False,
) -> SyncLimpet:
    """Open the store as `open` does, without await: `with limpet.open_sync(url) as lp`.

    For scripts and notebooks. Returns a SyncLimpet, whose verbs are those of Limpet. Raises as
    `open` does.
    """
    from limpet.session.sync.verbs import SyncLimpet

    return SyncLimpet(
        url,
        seal=seal,
        connections=connections,
        archive=archive,
        check=check,
        keys=keys,
        keyring=keyring,
        token=token,
        tls=tls,
        seal_for=seal_for,
        policies=policies,
        node=node,
        nodes=nodes,
        follow_moves=follow_moves,
    )


def restore(
    backup: str | Path,
    url: str,
    *,
    replace: bool = False,
    damaged: bool = False,
    progress: Progress | None = None,
    keys: str | None = None,
    keyring: str | None = None,
) -> Restored:
    """Put a backup file in the place that `url` names, and return what was restored.

    No process may have that place open. Every session of the backup is verified first; with
    findings it is refused (BackupDamaged), unless damaged=True. An existing database is only
    overwritten with replace=True, and nothing but a Limpet database ever is. With `keys` the key
    ring of a sealed store accepts its sessions as they are now, so that `verify` does not take the
    restored store for one that was rolled back. Raises BackupDamaged, BackupRefused, InvalidURL.
    """
    from limpet.store.open import restore_store

    done = restore_store(backup, url, replace=replace, damaged=damaged, progress=progress)
    if keys is not None:
        with open_sync(url, keys=keys, keyring=keyring) as lp:
            lp.keys.anchor()
    return done
