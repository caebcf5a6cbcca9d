"""The synchronous verbs for a type checker. Written by tools/sync_stub.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from limpet.model import ops as op
from limpet.model.diff.diff import Diff
from limpet.model.diff.policy import Policy
from limpet.model.envelope.envelope import Format
from limpet.model.envelope.record import Envelope
from limpet.model.events import Draft, Event, Fact, Trace
from limpet.model.facts.outcomes import Evaluation, Grade, Outcome
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.budgets import Budget, BudgetView, Usage
from limpet.model.facts.running.requests import Request
from limpet.model.facts.running.runs import RunFailure, Status, StopReason
from limpet.model.facts.running.setup import Setup, SetupChange
from limpet.model.facts.timeouts import Timeouts
from limpet.model.facts.timers import TimerKind
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.state.migrations import MigrationRegistry
from limpet.model.state.state import State
from limpet.model.state.types import Ref
from limpet.session.arguments import AnyKey
from limpet.session.blobs import AnyRef, Content
from limpet.session.conversing.context import Context, Count, Summarize
from limpet.session.conversing.message import Message
from limpet.session.conversing.shapes import Shape
from limpet.session.documents import Document, DocumentPage
from limpet.session.history.blame import Blame
from limpet.session.history.branches import Lineage, MergedSession
from limpet.session.history.checkpoint_log import CheckpointPage, CheckpointRef
from limpet.session.history.checkpoint_policy import CheckpointPolicy
from limpet.session.history.point_in_time import Predicate, When
from limpet.session.history.retention import CompactReport
from limpet.session.history.rewind import Rewound
from limpet.session.life.memory import LayerName, Remembered
from limpet.session.life.policy import Cleanup, Function, Transition
from limpet.session.life.resumption import Resumption, Retrieve
from limpet.session.life.sweep import Swept
from limpet.session.life.tools import ToolRegistry
from limpet.session.life.transitions import Durations
from limpet.session.metrics import Hook
from limpet.session.move.mirror import Mirrored
from limpet.session.move.transfer import Copied
from limpet.session.runs.buffers import BufferInfo, Note
from limpet.session.runs.delegation import Kin
from limpet.session.runs.learnings import Gates, Learning
from limpet.session.runs.outcomes import Evaluator
from limpet.session.runs.runs import Harness, OnMismatch, Woken
from limpet.session.runs.setup import Permission, VaultDocument
from limpet.session.runs.traces import Activation, WakeTrace
from limpet.session.typing.migrate import Failure, MigrationPlan
from limpet.store.protocol import (
    Checked,
    Diagnosis,
    Erasure,
    Erasures,
    FeedEntry,
    Forks,
    Order,
    Page,
    Progress,
    Report,
    Seal,
)

S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", covariant=True)
A = TypeVar("A")

class SyncCommit:
    events: tuple[Event, ...]
    token: str
    documents: tuple[Document, ...]
    def __enter__(self) -> SyncCommit: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: Mapping[str, Any] | Envelope | State = ...,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        migrations: MigrationRegistry | None = None,
        untyped: bool = False,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
    ) -> SyncSession[Any]: ...
    def expect(self, session: SyncSession[Any], version: int) -> None: ...
    def guard(self, session: SyncSession[Any], name: str, version: int) -> None: ...
    def release(self, lease: Lease) -> None: ...
    def append(
        self,
        session: SyncSession[Any],
        type: str,
        data: Mapping[str, Any] = ...,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = ...,
        merge: Mapping[str, Mapping[str, Any]] = ...,
        add: Mapping[str, Sequence[Any]] = ...,
        inc: Mapping[str, int | float] = ...,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        trace: Trace | None = None,
        expect: int | None = None,
        input: bool = False,
    ) -> None: ...
    def apply(
        self,
        session: SyncSession[Any],
        update: Mapping[str, Any],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> None: ...
    def record(self, session: SyncSession[Any], *facts: Fact) -> None: ...
    def put(
        self,
        documents: SyncDocuments,
        name: str,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
    ) -> None: ...

class SyncSession(Generic[S_co]):
    key: Key
    actor: str | None
    @property
    def app(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def lease(self) -> Lease | None: ...
    @property
    def head(self) -> Head: ...
    @property
    def version(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def state(self) -> S_co: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def events(self) -> tuple[Event, ...]: ...
    @property
    def status(self) -> Status: ...
    @property
    def stop_reason(self) -> StopReason | None: ...
    @property
    def blocked_on(self) -> tuple[Request, ...]: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def history(self) -> SyncHistory[S_co]: ...
    @property
    def lifecycle(self) -> SyncLifecycle: ...
    @property
    def tools(self) -> SyncTools: ...
    @property
    def runs(self) -> SyncRuns: ...
    @property
    def blobs(self) -> SyncBlobs: ...
    @property
    def outcome(self) -> SyncOutcome: ...
    @property
    def setup(self) -> SyncSetup: ...
    @property
    def memory(self) -> SyncMemory: ...
    def refresh(self, *, tail: int = 20) -> SyncSession[S_co]: ...
    def envelope(self, *, format: Format = "json") -> bytes: ...
    def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        reverse: bool | None = None,
        types: Iterable[str] | None = None,
    ) -> tuple[Event, ...]: ...
    def read_ids(self, ids: Iterable[str]) -> tuple[Event, ...]: ...
    def follow(
        self, *, after: int = 0, types: Iterable[str] | None = None, partials: bool = True
    ) -> Iterator[Event]: ...
    def pending(self, *, limit: int = 100) -> tuple[Event, ...]: ...
    def messages(self, *, correlation_id: str | None = None) -> list[Message]: ...
    def context(
        self,
        *,
        tokens: int | None = None,
        shape: Shape = "openai",
        count: Count | None = None,
        system: str = "",
        pinned: Iterable[int] = (),
        summarize: Summarize | None = None,
        correlation_id: str | None = None,
    ) -> Context: ...
    def append(
        self,
        type: str,
        data: Mapping[str, Any] = ...,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = ...,
        merge: Mapping[str, Mapping[str, Any]] = ...,
        add: Mapping[str, Sequence[Any]] = ...,
        inc: Mapping[str, int | float] = ...,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        trace: Trace | None = None,
        expect: int | None = None,
        input: bool = False,
        partial: bool = False,
        attempt: int = 1,
    ) -> Event: ...
    def append_many(
        self, drafts: Iterable[Draft], *, actor: str | None = None, expect: int | None = None
    ) -> tuple[Event, ...]: ...
    def update(
        self,
        change: Callable[[S_co], Mapping[str, Any] | None],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Event | None: ...
    @overload
    def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
        expect: int | None = None,
    ) -> Event: ...
    @overload
    def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
        expect: int | None = None,
    ) -> Event | None: ...
    def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]: ...
    def append_soon(
        self,
        type: str,
        data: Mapping[str, Any] = ...,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = ...,
        merge: Mapping[str, Mapping[str, Any]] = ...,
        add: Mapping[str, Sequence[Any]] = ...,
        inc: Mapping[str, int | float] = ...,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        trace: Trace | None = None,
        input: bool = False,
    ) -> str: ...
    def label(self, labels: Mapping[str, str | None], *, actor: str | None = None) -> Event: ...
    def mark_processed(self, seqs: Iterable[int], *, actor: str | None = None) -> Event: ...
    def confirm(
        self, request_id: str, *, allow: bool, note: str | None = None, actor: str | None = None
    ) -> Event: ...
    def answer(
        self, request_id: str, output: Any, *, is_error: bool = False, actor: str | None = None
    ) -> Event: ...
    def resolve(
        self,
        request_id: str,
        *,
        happened: Any = ...,
        run_again: bool = False,
        give_up: bool = False,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event: ...
    def interrupt(self, note: str | None = None, *, actor: str | None = None) -> Event: ...
    def fork(
        self,
        at: When | None = None,
        *,
        id: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str | None = None,
    ) -> Self: ...
    def rewind(self, when: When, *, actor: str | None = None) -> Rewound: ...
    def merge(
        self,
        other: SyncSession[Any] | AnyKey,
        *,
        policy: Policy | None = None,
        policies: Mapping[str | Path, Policy] | None = None,
        actor: str | None = None,
    ) -> MergedSession: ...
    def checkpoint(
        self, trigger: str = "manual", *, full: bool | None = None, actor: str | None = None
    ) -> CheckpointRef: ...
    def activate(self, *, actor: str | None = None) -> Transition: ...
    def suspend(self, reason: str | None = None, *, actor: str | None = None) -> Transition: ...
    def resume(self, *, activate: bool = True, actor: str | None = None) -> Transition: ...
    def complete(self, output: Any = None, *, actor: str | None = None) -> Transition: ...
    def terminate(self, reason: str | None = None, *, actor: str | None = None) -> Transition: ...
    def archive(self, *, actor: str | None = None) -> Transition: ...

class SyncHistory(Generic[S_co]):
    def at(self, when: When) -> S_co: ...
    def diff(self, before: When, after: When | None = None) -> Diff: ...
    def blame(self, path: str | Sequence[str | int]) -> tuple[Blame, ...]: ...
    def bisect(self, predicate: Predicate) -> Event | None: ...
    @property
    def checkpoint_seq(self) -> int: ...
    @property
    def last_checkpoint_at(self) -> datetime | None: ...
    def checkpoints(self, *, limit: int = 50, cursor: str | None = None) -> CheckpointPage: ...
    def restore(
        self, ref: CheckpointRef, *, fallback: bool = False, actor: str | None = None
    ) -> Rewound: ...
    def unpin(self, ref: CheckpointRef, *, actor: str | None = None) -> None: ...
    def retention(
        self, *, events: int | None = None, age: timedelta | None = None, actor: str | None = None
    ) -> Event: ...
    def lineage(self) -> Lineage: ...
    @property
    def damaged(self) -> tuple[int, ...]: ...

class SyncLifecycle:
    @property
    def timeouts(self) -> Timeouts | None: ...
    def set_timeouts(self, timeouts: Timeouts, *, actor: str | None = None) -> Event: ...
    def renew(self, *, idle: timedelta, actor: str | None = None) -> Event: ...
    @property
    def durations(self) -> Durations: ...
    @property
    def suspended_often(self) -> bool: ...
    def set_timer(
        self,
        name: str,
        at: datetime | timedelta,
        *,
        kind: TimerKind = "wake",
        actor: str | None = None,
    ) -> Event: ...
    def clear_timer(self, name: str, *, actor: str | None = None) -> Event: ...
    def set_priority(self, priority: int, *, actor: str | None = None) -> Event: ...

class SyncTools:
    @property
    def bound(self) -> Mapping[str, Mapping[str, Any]]: ...
    def bind(
        self, registry: ToolRegistry, *names: str, actor: str | None = None
    ) -> Mapping[str, Mapping[str, Any]]: ...
    def lock(self, name: str, *, seconds: float = 30) -> Lease: ...

class SyncRuns:
    @property
    def usage(self) -> Usage: ...
    @property
    def budget(self) -> BudgetView | None: ...
    def grant(self, budget: Budget | float, *, actor: str | None = None) -> Event: ...
    @property
    def failure(self) -> RunFailure | None: ...
    def wakes(self, *, limit: int = 20) -> tuple[Event, ...]: ...
    def activations(self, *, limit: int = 20) -> tuple[Activation, ...]: ...
    def trace(self, wake_id: str) -> WakeTrace: ...
    @property
    def parent(self) -> Key | None: ...
    def children(self) -> tuple[Key, ...]: ...
    def tree(self) -> Kin: ...

class SyncBlobs:
    def put(self, content: Content, media_type: str = ...) -> Ref[Any]: ...
    def get(self, ref: AnyRef) -> bytes: ...
    def stream(self, ref: AnyRef) -> Iterator[bytes]: ...

class SyncOutcome:
    @property
    def current(self) -> Outcome | None: ...
    def define(
        self,
        title: str,
        detail: str | None = None,
        criteria: Iterable[str] = (),
        *,
        actor: str | None = None,
    ) -> Event: ...
    def grade(self) -> Grade: ...
    def evaluate(
        self, evaluator: Evaluator | None = None, *, actor: str | None = None
    ) -> Evaluation: ...
    def unmet(self, gates: Gates) -> tuple[str, ...]: ...
    def history(self, *, limit: int = 50) -> tuple[Event, ...]: ...

class SyncSetup:
    @property
    def current(self) -> Setup: ...
    def attach(
        self,
        *,
        resources: Iterable[str] | None = None,
        vaults: Iterable[str] | None = None,
        permissions: str | None = None,
        actor: str | None = None,
    ) -> Event: ...
    def compare(self, other: Setup | None = None) -> tuple[SetupChange, ...]: ...
    def environment(self) -> Document | None: ...
    def resources(self) -> tuple[Document, ...]: ...
    def vaults(self) -> dict[str, tuple[str, ...]]: ...
    def permissions(self) -> dict[str, Permission]: ...
    def check_permission(self, tool: str) -> Permission: ...

class SyncWork:
    def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30, app: str | None = None
    ) -> tuple[Lease, ...]: ...
    @overload
    def renew(self, lease: Lease, *, lease_seconds: float | None = None) -> Lease: ...
    @overload
    def renew(
        self, lease: Iterable[Lease], *, lease_seconds: float | None = None
    ) -> tuple[Lease | None, ...]: ...
    def release(self, lease: Lease, *, retry_seconds: float | None = None) -> bool: ...
    def lock(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        worker: str,
        lease_seconds: float = 30,
    ) -> Lease: ...
    def dead_letters(self, *, app: str, limit: int = 50, cursor: str | None = None) -> Page: ...
    def requeue(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        *,
        actor: str | None = None,
    ) -> Event: ...
    def sweep(self, *, limit: int = 1000) -> Swept: ...

class SyncMaintenance:
    def verify(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        progress: Progress | None = None,
    ) -> Report: ...
    def doctor(self, *, progress: Progress | None = None) -> Diagnosis: ...
    def backup(self, target: str | Path, *, progress: Progress | None = None) -> None: ...
    def compact(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        progress: Progress | None = None,
    ) -> CompactReport: ...
    def migrate(
        self,
        migrations: MigrationRegistry,
        state_type: type[State] | None = None,
        *,
        app: str | None = None,
        apply: bool = False,
        actor: str | None = None,
        failure: Failure | None = None,
        progress: Progress | None = None,
    ) -> MigrationPlan: ...
    def mirror(
        self,
        directory: str | Path,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
    ) -> Mirrored: ...
    def on_metric(self, hook: Hook) -> None: ...

class SyncPolicies:
    def lifecycle(
        self,
        app: str,
        *,
        guards: Mapping[tuple[Phase, str], Function] | None = None,
        before: Mapping[tuple[Phase, Phase], Function] | None = None,
        after: Mapping[tuple[Phase, Phase], Function] | None = None,
        exit_criteria: Sequence[Function] = (),
        compensate: Sequence[Function] = (),
        compensations: Mapping[str, Function] | None = None,
        cleanup: Mapping[Cleanup, Function] | None = None,
        cleanup_seconds: float = ...,
        resume_on_input: bool = True,
        timeouts: Timeouts | None = None,
        tools: ToolRegistry | None = None,
        suspensions_per_day: float = ...,
    ) -> None: ...
    def checkpointing(
        self, app: str, policy: CheckpointPolicy | None, *, actor: str | None = None
    ) -> None: ...
    def retention(
        self,
        app: str,
        *,
        events: int | None = None,
        age: timedelta | None = None,
        every: timedelta | None = None,
        actor: str | None = None,
    ) -> None: ...
    def gates(self, agent: str, gates: Gates | None, *, actor: str | None = None) -> None: ...
    def gates_of(self, agent: str) -> Gates: ...

class SyncWorking:
    def put(self, name: str, value: Any) -> Remembered: ...
    def get(self, name: str) -> Any: ...
    def list(self, prefix: str = "") -> tuple[Remembered, ...]: ...
    def search(self, text: str, *, limit: int = 10) -> tuple[Remembered, ...]: ...
    def reset(self) -> None: ...

class SyncLayer:
    def put(self, name: str, value: Any, *, actor: str | None = None) -> Remembered: ...
    def get(self, name: str) -> Any: ...
    def list(self, prefix: str = "") -> tuple[Remembered, ...]: ...
    def search(self, text: str, *, limit: int = 10) -> tuple[Remembered, ...]: ...

class SyncOverlay(SyncLayer):
    def get(self, name: str) -> Any: ...
    def list(self, prefix: str = "") -> tuple[Remembered, ...]: ...

class SyncEpisodes(SyncLayer):
    def get(self, name: str) -> Any: ...
    def put(self, name: str, value: Any, *, actor: str | None = None) -> Remembered: ...
    def list(self, prefix: str = "") -> tuple[Remembered, ...]: ...

class SyncBuffer:
    name: str
    def read(self, version: int | None = None) -> Note | None: ...
    def write(
        self,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Note: ...
    def append(
        self,
        more: str | list[Any],
        *,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Note: ...
    def history(self, *, limit: int = 50) -> tuple[Note, ...]: ...

class SyncMemory:
    @property
    def working(self) -> SyncWorking: ...
    @property
    def session(self) -> SyncLayer: ...
    @property
    def episodic(self) -> SyncLayer: ...
    @property
    def semantic(self) -> SyncLayer: ...
    @property
    def procedural(self) -> SyncLayer: ...
    def layer(self, name: LayerName) -> SyncWorking | SyncLayer: ...
    @property
    def session_state(self) -> SyncBuffer: ...
    @property
    def working_buffer(self) -> SyncBuffer: ...
    @property
    def shell_state(self) -> SyncBuffer: ...
    def buffers(self) -> tuple[BufferInfo, ...]: ...

class SyncApp(Generic[A]):
    name: str
    state_type: type[A] | None
    migrations: MigrationRegistry | None
    actor: str | None
    def create(
        self,
        user: str,
        id: str | None = None,
        *,
        state: A | None = None,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> SyncSession[A]: ...
    def get(
        self,
        user: str,
        id: str,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        at_least: str = "",
        archived: bool = False,
    ) -> SyncSession[A]: ...
    def find(
        self,
        user: str,
        id: str,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        at_least: str = "",
        archived: bool = False,
    ) -> SyncSession[A] | None: ...
    def get_or_create(
        self,
        user: str,
        id: str,
        *,
        state: A | None = None,
        labels: Mapping[str, str] = ...,
        tail: int = 20,
        actor: str | None = None,
    ) -> SyncSession[A]: ...
    def session(
        self, user: str, id: str, *, actor: str | None = None, lease: Lease | None = None
    ) -> SyncSession[A]: ...
    def list(
        self,
        *,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        order: Order = "created",
        reverse: bool = True,
        prefix: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page: ...
    def watch(
        self, *, key: AnyKey | None = None, after: str | None = None
    ) -> Iterator[FeedEntry]: ...
    def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30
    ) -> tuple[Lease, ...]: ...

class SyncDocuments:
    collection: str
    owner: tuple[str, str] | None
    actor: str | None
    def put(
        self,
        name: str,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
    ) -> Document: ...
    def get(self, name: str, version: int | None = None) -> Document: ...
    def find(self, name: str, version: int | None = None) -> Document | None: ...
    def list(
        self, prefix: str = "", *, limit: int = 50, cursor: str | None = None
    ) -> DocumentPage: ...
    def history(
        self, name: str, *, limit: int = 100, before: int | None = None
    ) -> tuple[Document, ...]: ...
    def recorded(
        self, name: str, *, limit: int = 100, before: int | None = None
    ) -> tuple[Event, ...]: ...
    def delete(self, name: str, *, expect: int | None = None, actor: str | None = None) -> bool: ...
    def purge(self, name: str) -> bool: ...
    def key(self, name: str) -> Key: ...
    def check(self, value: Any) -> None: ...
    def shown(self, document: Document) -> Document: ...

class SyncVaults(SyncDocuments):
    def check(self, value: Any) -> None: ...
    def shown(self, document: Document) -> VaultDocument: ...

class SyncPermissions(SyncDocuments):
    def check(self, value: Any) -> None: ...

class SyncLimpet:
    url: str
    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        archive: str | None = None,
        check: Checked | None = None,
    ) -> None: ...
    def __enter__(self) -> SyncLimpet: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...
    @property
    def work(self) -> SyncWork: ...
    @property
    def maintenance(self) -> SyncMaintenance: ...
    @property
    def policies(self) -> SyncPolicies: ...
    @property
    def agents(self) -> SyncDocuments: ...
    @property
    def environments(self) -> SyncDocuments: ...
    @property
    def resources(self) -> SyncDocuments: ...
    @property
    def permissions(self) -> SyncPermissions: ...
    @property
    def vaults(self) -> SyncVaults: ...
    def documents(
        self, collection: str, *, owner: tuple[str, str] | None = None, actor: str | None = None
    ) -> SyncDocuments: ...
    @overload
    def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: S,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        migrations: MigrationRegistry | None = None,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> SyncSession[S]: ...
    @overload
    def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: Mapping[str, Any] | Envelope = ...,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        untyped: bool = False,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> SyncSession[Mapping[str, Any]]: ...
    @overload
    def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        archived: bool = False,
    ) -> SyncSession[S]: ...
    @overload
    def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        untyped: bool = False,
        archived: bool = False,
    ) -> SyncSession[Mapping[str, Any]]: ...
    @overload
    def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
    ) -> SyncSession[S] | None: ...
    @overload
    def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> SyncSession[Mapping[str, Any]] | None: ...
    @overload
    def get_or_create(
        self,
        app: str,
        user: str,
        id: str,
        *,
        state: S,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        tail: int = 20,
        migrations: MigrationRegistry | None = None,
    ) -> SyncSession[S]: ...
    @overload
    def get_or_create(
        self,
        app: str,
        user: str,
        id: str,
        *,
        state: Mapping[str, Any] | Envelope = ...,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        tail: int = 20,
        untyped: bool = False,
    ) -> SyncSession[Mapping[str, Any]]: ...
    def get_many(
        self, keys: Iterable[AnyKey], *, tail: int = 20, actor: str | None = None
    ) -> tuple[SyncSession[Mapping[str, Any]] | None, ...]: ...
    @overload
    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        lease: Lease | None = None,
    ) -> SyncSession[S]: ...
    @overload
    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        untyped: bool = False,
    ) -> SyncSession[Mapping[str, Any]]: ...
    @overload
    def app(
        self,
        name: str,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
    ) -> SyncApp[S]: ...
    @overload
    def app(
        self, name: str, *, actor: str | None = None, untyped: bool = False
    ) -> SyncApp[Mapping[str, Any]]: ...
    def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        order: Order = "created",
        reverse: bool = True,
        prefix: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page: ...
    def each(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        order: Order = "created",
        reverse: bool = True,
        prefix: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
    ) -> Iterator[Head]: ...
    def names(self, app: str, user: str | None = None) -> Mapping[str, Any]: ...
    def watch(
        self, *, app: str | None = None, key: AnyKey | None = None, after: str | None = None
    ) -> Iterator[FeedEntry]: ...
    def position(self) -> str: ...
    def now(self) -> datetime: ...
    def commit(self) -> SyncCommit: ...
    def flush(self) -> None: ...
    def wake(
        self,
        key: AnyKey | str,
        *then: Any,
        harness: Harness | None = None,
        lease_seconds: float = 30,
        retries: int = ...,
        on_mismatch: OnMismatch = "ask",
        permissions: Mapping[str, Permission] = ...,
        agent: str | None = None,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
    ) -> Woken: ...
    def resume(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tools: ToolRegistry | None = None,
        retrieve: Retrieve | None = None,
        memory: Sequence[str] | None = None,
        queries: Sequence[Any] | None = None,
        fresh_seconds: float = 3600,
        deadline_seconds: float = 10,
        cache_seconds: float = 604800,
        tokens: int | None = None,
        tokens_min: int = 1,
        plan: Function | None = None,
        role: str | Function | None = None,
        fallback: bool = False,
        activate: bool = True,
        state_type: type[Any] | None = None,
        actor: str | None = None,
    ) -> tuple[SyncSession[Any], Resumption]: ...
    def unarchive(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        actor: str | None = None,
    ) -> Transition: ...
    @overload
    def export(self, key: AnyKey, path: str | Path) -> None: ...
    @overload
    def export(self, app: str, user: str, id: str, /, path: str | Path) -> None: ...
    def import_(self, path: str | Path) -> Key: ...
    def copy(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        to: SyncLimpet,
        progress: Progress | None = None,
    ) -> Copied: ...
    def delete(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> bool: ...
    def erase(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        forks: Forks = "refuse",
    ) -> Erasure | None: ...
    def erase_user(self, app: str, user: str) -> Erasures: ...
    def learnings(self, agent: str) -> tuple[Learning, ...]: ...
    def promote(
        self,
        agent: str,
        learning: Learning,
        *,
        session: AnyKey | None = None,
        actor: str | None = None,
    ) -> Document: ...
    def memory_of(self, agent: str) -> str: ...
