"""The compiled graph: what `GraphBuilder.compile` returns. It never changes and may be shared.

`invoke` is one run: load the session, find the state to start with, run, save. Errors raised before
the first node leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from limpet.errors import (
    GraphMisused,
    SessionWriteConflict,
    SuspensionPersistenceFailed,
    SuspensionRecordInvalid,
)
from limpet.graph.binding import Binding, SessionConfig
from limpet.graph.checkpoint import (
    ChangeCheckpointer,
    Checkpointer,
    CheckpointRecord,
    JointCheckpointer,
    Position,
)
from limpet.graph.context import CURRENT, Invocation, Scope
from limpet.graph.draw import mermaid
from limpet.graph.ending import ending_of, finish, leave_record
from limpet.graph.observe import Delivery, Drained, Observer, Tracer, drain, span_of
from limpet.graph.resume import Start, load_record, start_of
from limpet.graph.run import run_graph
from limpet.graph.state import State, StatePlan
from limpet.graph.suspend import Suspended, SuspendSignal
from limpet.graph.track import LiveFrame, Tracker
from limpet.model.state.labels import LabelRegistry
from limpet.model.values import described

if TYPE_CHECKING:
    pass

S = TypeVar("S", bound=State)


class Ran:
    """What a caller may want to know of a run beside its result."""

    __slots__ = ("entry_state", "found_session", "invocation_id")

    def __init__(self) -> None:
        self.invocation_id = ""
        self.found_session = False
        self.entry_state: Any = None  # None if it was refused before it could start


class CompiledGraph(Generic[S]):
    """A graph that can be run."""

    def __init__(
        self,
        name: str,
        plan: StatePlan[S],
        entry: str,
        steps: Mapping[str, Any],
        *,
        checkpointer: Checkpointer | None = None,
        migrations: LabelRegistry,
        session: SessionConfig | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.name, self.plan, self.entry = name, plan, entry
        self.steps: dict[str, Any] = dict(steps)
        self.checkpointer, self.migrations = checkpointer, migrations
        self._changes = checkpointer if isinstance(checkpointer, ChangeCheckpointer) else None
        self.session, self.tracer = session, tracer
        self.observers: tuple[Observer, ...] = ()
        self._deliveries: set[Delivery] = set()

    @property
    def state_type(self) -> type[S]:
        """The State class of the graph."""
        return self.plan.of

    # --- running --------------------------------------------------------------------------------

    async def invoke(
        self,
        initial: S | Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        correlation_id: str | None = None,
        invocation_id: str | None = None,
        resume_invocation: str | None = None,
        signal_payload: Mapping[str, Any] | None = None,
        observers: Iterable[Observer] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the graph to its end; the final state, or `Suspended`.

        With `session_id` the session is loaded before and saved after. With `resume_invocation` an
        unfinished invocation continues where it stopped, and `initial` is ignored; a completed one
        begins a new turn with `initial` folded into its state; a suspended one continues with
        `signal_payload`. A resumed invocation has a new id, unless it was suspended, and keeps its
        correlation id.
        """
        return await self.run(
            Ran(),
            initial,
            session_id=session_id,
            correlation_id=correlation_id,
            invocation_id=invocation_id,
            resume_invocation=resume_invocation,
            signal_payload=signal_payload,
            observers=observers,
            metadata=metadata,
        )

    async def run(
        self,
        ran: Ran,
        initial: S | Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        correlation_id: str | None = None,
        invocation_id: str | None = None,
        resume_invocation: str | None = None,
        signal_payload: Mapping[str, Any] | None = None,
        observers: Iterable[Observer] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """The same as `invoke`, and note in `ran` how it went, also if it raises."""
        _check_ids(session_id, correlation_id, invocation_id, resume_invocation)
        record = None
        if resume_invocation is not None:
            signal = signal_payload is not None
            record = await load_record(self.checkpointer, resume_invocation, signal=signal)
            correlation_id = record.correlation_id
            if record.status == "suspended":
                invocation_id = record.invocation_id
        elif signal_payload is not None:
            raise GraphMisused(
                "signal_payload was given without resume_invocation. Pass the id of the invocation "
                "that is suspended."
            )
        run = Invocation(
            invocation_id or str(uuid4()), correlation_id or str(uuid4()), session_id, metadata
        )
        run.observers, run.tracer = tuple(observers or ()), self.tracer
        run.deliveries, ran.invocation_id = self._deliveries, run.invocation_id
        scope = Scope(run, self)
        token = CURRENT.set(scope)
        try:
            if run.tracer is None:
                return await self._invoke(scope, ran, record, initial, signal_payload)
            with run.tracer.span(span_of(run, "invocation", self.name)):
                return await self._invoke(scope, ran, record, initial, signal_payload)
        finally:
            CURRENT.reset(token)

    async def _invoke(
        self,
        scope: Scope,
        ran: Ran,
        record: CheckpointRecord | None,
        initial: Any,
        payload: Any,
    ) -> Any:
        run = scope.run
        if self.session is not None and run.session_id is not None:
            run.binding = Binding(self.session, run.session_id)
            ran.found_session = await run.binding.load()
        if record is not None:
            start = start_of(self, record, initial, payload)
        else:
            state = self.plan.made({} if initial is None else initial, "the initial state")
            start = Start(state if run.binding is None else run.binding.merged(state), self.entry)
        ran.entry_state = start.state
        if self.checkpointer is not None:
            await self._track(scope, self.checkpointer, start, record)
        if record is not None:
            scope.rest = start.inside
        try:
            final = await run_graph(scope, start.state, start.node)
        except SuspendSignal as signal:
            return await self._suspend(scope, signal)
        except BaseException as error:
            await leave_record(run, error)
            raise
        await finish(run, final)
        return final

    async def _track(
        self,
        scope: Scope,
        checkpointer: Checkpointer,
        start: Start,
        record: CheckpointRecord | None,
    ) -> None:
        """Follow the run from where it starts.

        The start is saved while the first node waits, or with it: a step is one commit. A resumed
        suspension is claimed at once, so that no other resumes it.
        """
        run = scope.run
        tracker = run.tracker = Tracker(checkpointer, self._changes, run, self.name, self.plan)
        scope.frame = LiveFrame(tracker.box, self.plan, start.state, start.node, stored=True)
        scope.frame.rest = start.inside
        if record is not None and record.status != "completed":
            tracker.positions = list(record.completed_positions)
        tracker.ending = ending_of(run, checkpointer)
        if record is None or record.status != "suspended":
            tracker.begin_soon()
        elif not await tracker.claim(record.revision):
            reason = "it has been resumed already"
            raise SuspensionRecordInvalid(record.invocation_id, reason)

    async def _suspend(self, scope: Scope, signal: SuspendSignal) -> Suspended:
        """Save the suspended record with the session; what the caller gets."""
        run, tracker = scope.run, scope.run.tracker
        if tracker is None or scope.frame is None:
            reason = "the graph has no checkpointer, so nothing could resume it"
            raise SuspensionPersistenceFailed(run.invocation_id, reason)
        state = scope.frame.state
        if signal.completed:
            tracker.positions.append(
                Position(node=signal.node_name, step=run.step, parents=signal.namespace[:-1])
            )
        await tracker.settled()
        record = tracker.suspended(signal.document())
        try:
            await _keep(run, tracker.checkpointer, record, state)
        except Exception as error:
            with suppress(Exception):  # what stays is an invocation that can be resumed
                await tracker.unsuspend()
            if isinstance(error, SessionWriteConflict):
                raise
            reason = f"{type(error).__name__}: {error}"[:500]
            raise SuspensionPersistenceFailed(run.invocation_id, reason) from error
        return Suspended(
            invocation_id=run.invocation_id,
            correlation_id=run.correlation_id,
            session_id=run.session_id,
            descriptor=signal.descriptor,
            state=state,
            node_name=signal.node_name,
            namespace=signal.namespace,
        )

    # --- watching -------------------------------------------------------------------------------

    def attach_observer(self, observer: Observer) -> Observer:
        """Tell the observer about every invocation that starts from now on. Returns it."""
        if not callable(observer):
            raise GraphMisused(f"{described(observer)} is not an observer. Pass a function.")
        self.observers = (*self.observers, observer)
        return observer

    def detach_observer(self, observer: Observer) -> None:
        """Stop telling the observer. Does nothing if it is not attached."""
        self.observers = tuple(one for one in self.observers if one is not observer)

    async def drain(self, timeout: float | None = None) -> Drained:  # noqa: ASYNC109  # its known name
        """Wait until observers have been told everything, `timeout` seconds at most."""
        return await drain(self._deliveries, timeout)

    def draw(self) -> str:
        """The graph as a Mermaid flowchart."""
        return mermaid(self)

    # --- looking inside -------------------------------------------------------------------------

    def inside(self, node: str) -> CompiledGraph[Any] | None:
        """The graph that a subgraph node runs; None for any other node."""
        step: Any = self.steps.get(node)
        found: CompiledGraph[Any] | None = step.graph if _kind(step) == "subgraph" else None
        return found

    def branches_of(self, node: str) -> Mapping[str, Any]:
        """The branches of a parallel-branches node, by name."""
        found: Mapping[str, Any] = getattr(self.steps.get(node), "branches", {})
        return found

    def branch_graph(self, node: str, key: str) -> CompiledGraph[Any] | None:
        """The graph that an instance or a branch runs; None for a branch that is a call."""
        step = self.steps[node]
        if step.kind == "fan_out":
            graph: CompiledGraph[Any] = step.graph
            return graph
        branch: CompiledGraph[Any] | None = step.branches[key][0].subgraph
        return branch


def _kind(step: Any) -> str:
    return getattr(step, "kind", "")


async def _keep(
    run: Invocation, checkpointer: Checkpointer, record: CheckpointRecord, state: Any
) -> None:
    """Save a suspended record and its session: in one commit where both live together.

    Otherwise the record is saved first: a crash in between leaves a session that is older than the
    suspended run, and the run saves it when it ends.
    """
    binding = run.binding
    if binding is None or not binding.auto_save:
        await checkpointer.save(record)
    elif isinstance(checkpointer, JointCheckpointer) and checkpointer.joins(binding.store):
        version = await checkpointer.save_with_session(
            record, binding.store, binding.record(state), expected_version=binding.expected
        )
        binding.saved(version)
    else:
        await checkpointer.save(record)
        await binding.save(state)


def _check_ids(
    session_id: object, correlation_id: object, invocation_id: object, resume_invocation: object
) -> None:
    given = {
        "session_id": session_id,
        "correlation_id": correlation_id,
        "invocation_id": invocation_id,
        "resume_invocation": resume_invocation,
    }
    for name, value in given.items():
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise GraphMisused(
                f"{name} is {described(value)}. Pass a text that is not empty, or leave it out."
            )
