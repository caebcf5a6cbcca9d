"""The compiled graph: what `GraphBuilder.compile` returns. It never changes and may be shared.

An invocation loads its session, finds the state to start with, runs, and saves. Errors raised
before the first node leave everything as it was.

At the end session and checkpoint agree. A completed run saves its session and completes its record,
in one commit where both live together. Elsewhere the session is saved while the record still says
that the run is at its end; a run that is resumed there runs no node and saves the session again. So
a session never misses the turn of a completed invocation, wherever the process dies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from limpet.errors import (
    CheckpointSaveFailed,
    GraphMisused,
    SessionSaveFailed,
    SessionWriteConflict,
    SuspensionPersistenceFailed,
    SuspensionRecordInvalid,
    error_text,
)
from limpet.graph.checkpoint import Checkpointer, CheckpointRecord, JointCheckpointer
from limpet.graph.context import (
    CURRENT,
    GraphPlan,
    Invocation,
    Scope,
    Suspended,
    SuspendSignal,
    check_steps_max,
    mermaid,
)
from limpet.graph.engine.checkpoint_writer import CheckpointWriter, Ending, LiveFrame
from limpet.graph.engine.loop import run_graph
from limpet.graph.engine.resume import (
    ResumeLease,
    Start,
    check_no_session,
    check_session,
    check_signal,
    check_unused,
    id_taken,
    start_of,
)
from limpet.graph.engine.turn_checkpoints import TurnCheckpoints
from limpet.graph.observers import (
    Drained,
    Observer,
    Phase,
    Watcher,
    drain,
    drain_events_for,
    watcher,
)
from limpet.graph.sessions import Binding
from limpet.graph.state import State
from limpet.model import described

S = TypeVar("S", bound=State)
_LOG: Final = logging.getLogger("limpet.graph")
_IDS: Final = ("session_id", "correlation_id", "invocation_id", "resume_invocation", "signal_id")


class CompiledGraph(GraphPlan[S]):
    """A graph that can be run."""

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
        signal_id: str | None = None,
        observers: Iterable[Observer] | None = None,
        metadata: Mapping[str, Any] | None = None,
        steps_max: int | None = None,
    ) -> Any:
        """Run the graph to its end; the final state, or `Suspended`.

        With `session_id` the session is loaded before and saved after. With `resume_invocation` an
        unfinished invocation continues where it stopped, and `initial` is ignored; a completed one
        begins a new turn with `initial` folded into its state; a suspended one continues with
        `signal_payload`. A resumed invocation has a new id, unless it was suspended, and keeps its
        correlation id.

        `signal_id` names the signal that is delivered: an invocation that waits for another one
        refuses it. An invocation that took its signal and has completed refuses every late resume
        with SuspensionRecordInvalid, unless `initial` sets a field: that begins a new turn.

        `steps_max` replaces the step limits that this graph and those inside it were compiled with.
        A run that stopped at its limit can be resumed: each call counts from zero.
        """
        arguments = InvokeArguments(
            initial=initial,
            session_id=session_id,
            correlation_id=correlation_id,
            invocation_id=invocation_id,
            resume_invocation=resume_invocation,
            signal_payload=signal_payload,
            signal_id=signal_id,
            observers=observers,
            metadata=metadata,
            steps_max=steps_max,
        )
        return await invoke(self, arguments, RunReport())

    # --- watching -------------------------------------------------------------------------------

    def attach_observer(
        self, observer: Observer, *, phases: Iterable[Phase] | None = None
    ) -> Observer:
        """Tell the observer about every invocation that starts from now on. Returns it.

        `phases` says which events it gets: some of started, completed and suspended; all of them
        by default. Raises GraphMisused for another word, and if there is none.
        """
        self.observers = (*self.observers, watcher(observer, phases))
        return observer

    def detach_observer(self, observer: Observer) -> None:
        """Stop telling the observer. Does nothing if it is not attached."""
        self.observers = tuple(one for one in self.observers if one.observer is not observer)

    async def drain(self, timeout: float | None = None) -> Drained:  # noqa: ASYNC109  # its known name
        """Wait until observers have every event, `timeout` seconds at most.

        After that, what is left is not delivered: an observer that is busy is cancelled, and no
        event of these invocations reaches one later.
        """
        return await drain(self.deliveries, timeout)

    async def drain_events_for(
        self,
        invocation_id: str,
        timeout: float | None = None,  # noqa: ASYNC109  # its known name
    ) -> Drained:
        """Wait until observers have the events that this invocation has emitted up to now.

        It may be called in a node of that invocation: later events, such as the end of that node,
        are not waited for. After `timeout` seconds it says how many are left, and they are still
        delivered.
        """
        return await drain_events_for(self.deliveries, invocation_id, timeout)

    def draw(self) -> str:
        """The graph as a Mermaid flowchart."""
        return mermaid(self)


class InvokeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of an invocation; `CompiledGraph.invoke` says what they mean."""

    initial: Any = None
    session_id: str | None = None
    correlation_id: str | None = None
    invocation_id: str | None = None
    resume_invocation: str | None = None
    signal_payload: Mapping[str, Any] | None = None
    signal_id: str | None = None
    observers: Iterable[Observer] | None = None
    metadata: Mapping[str, Any] | None = None
    steps_max: int | None = None
    turn: TurnCheckpoints | None = None  # the turn that it runs in, which has its checkpoints

    def check(self) -> None:
        """Refuse ids that are not text, and a signal for nobody."""
        for name in _IDS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise GraphMisused(
                    f"{name} is {described(value)}. Pass a text that is not empty, or leave it out."
                )
        for name in ("signal_payload", "signal_id"):
            if getattr(self, name) is not None and self.resume_invocation is None:
                raise GraphMisused(
                    f"{name} was given without resume_invocation. Pass the id of the invocation "
                    "that is suspended."
                )
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise GraphMisused(f"metadata is {described(self.metadata)}. Pass a dict.")
        if self.steps_max is not None:
            check_steps_max(self.steps_max, GraphMisused)

    @property
    def is_signal(self) -> bool:
        """True if the caller delivers a signal, with a payload or only by its name."""
        return self.signal_payload is not None or self.signal_id is not None

    def watchers(self) -> tuple[Watcher, ...]:
        """The observers of this invocation alone."""
        if self.observers is None:
            return ()
        if not isinstance(self.observers, Iterable):
            raise GraphMisused(f"observers is {described(self.observers)}. Pass a list of them.")
        return tuple([watcher(observer) for observer in self.observers])


class RunReport:
    """Facts about a run beside its result, for its caller, also if it raised."""

    __slots__ = ("entry_state", "found_session", "invocation_id")

    def __init__(self) -> None:
        self.invocation_id = ""
        self.found_session = False
        self.entry_state: Any = None  # None if it was refused before it could start


async def invoke(graph: GraphPlan[Any], arguments: InvokeArguments, report: RunReport) -> Any:
    """Run the graph; the final state, or `Suspended`."""
    arguments.check()
    watchers = arguments.watchers()
    if arguments.resume_invocation is None:
        return await _invoke(graph, arguments, report, watchers, None, None)
    lease, signal = ResumeLease(graph.checkpointer, graph.leasing), arguments.is_signal
    try:
        record = await lease.resume(arguments.resume_invocation, signal=signal)
        check_signal(record, arguments.signal_id, arguments.initial, signal=signal)
        check_session(record, arguments.session_id, signal=signal)
        return await _invoke(graph, arguments, report, watchers, lease, record)
    finally:
        await lease.release()


async def _invoke(
    graph: GraphPlan[Any],
    arguments: InvokeArguments,
    report: RunReport,
    watchers: tuple[Watcher, ...],
    lease: ResumeLease | None,
    record: CheckpointRecord | None,
) -> Any:
    run = Invocation(
        *await _ids(graph, arguments, record), arguments.session_id, arguments.metadata
    )
    run.observers, run.tracer, run.steps_max = watchers, graph.tracer, arguments.steps_max
    run.turn = arguments.turn
    run.deliveries, report.invocation_id = graph.deliveries, run.invocation_id
    scope = Scope(run, graph)
    token = CURRENT.set(scope)
    try:
        with run.span("invocation", graph.name):  # which sees a suspension as its parts do
            return await _run(scope, arguments, report, lease, record)
    except SuspendSignal as signal:
        return signal.outcome  # as `_run` saved it
    finally:
        run.ended = True  # tasks that nodes left behind still see it
        CURRENT.reset(token)


async def _ids(
    graph: GraphPlan[Any], arguments: InvokeArguments, record: CheckpointRecord | None
) -> tuple[str, str]:
    """The ids of the invocation and of its correlation: one id serves as both, if none is given.

    A suspended invocation keeps its own. One that goes on from another has a new one, not the
    caller's: that is for invocations that begin. An id of the caller's must be new: its record
    would take the place of another's, which may be paused.
    """
    correlation_id = arguments.correlation_id if record is None else record.correlation_id
    given = arguments.invocation_id
    if arguments.turn is not None:
        return arguments.turn.turn.id, correlation_id or arguments.turn.turn.id
    if record is not None and record.status == "suspended":
        given = record.invocation_id
    elif record is not None and record.status != "completed":
        given = None
    elif (
        given is not None
        and given != arguments.resume_invocation
        and graph.checkpointer is not None
    ):
        await check_unused(graph.checkpointer, given)
    id = given or str(uuid4())
    return id, correlation_id or (id if given is None else str(uuid4()))


async def _run(
    scope: Scope,
    arguments: InvokeArguments,
    report: RunReport,
    lease: ResumeLease | None,
    record: CheckpointRecord | None,
) -> Any:
    run, graph = scope.run, scope.graph
    if graph.session is not None and run.session_id is not None:
        run.binding = Binding(graph.session, run.session_id)
        report.found_session = await run.binding.load()
        if report.found_session and record is not None:
            check_no_session(record, signal=arguments.is_signal)
    elif run.session_id is not None and not graph.warned:
        graph.warned = True
        _LOG.warning("session without a store: graph=%s", graph.name)
    start = _start(scope, arguments, record)
    report.entry_state = start.state
    if graph.checkpointer is not None:
        named = run.invocation_id == arguments.invocation_id
        await _start_writing(scope, graph.checkpointer, start, lease, record, named=named)
    try:
        final = await run_graph(scope, start.state, start.node)
    except SuspendSignal as signal:
        signal.outcome = await save_suspension(scope, signal)
        raise
    except BaseException as error:
        await save_start_of(run, error)
        raise
    await finish(run, final)
    return final


def _start(scope: Scope, arguments: InvokeArguments, record: CheckpointRecord | None) -> Start:
    """Return the start of the run: the record, or the entry with the session and the input."""
    graph, binding = scope.graph, scope.run.binding
    if record is not None:
        start = start_of(graph, record, arguments.initial, arguments.signal_payload)
        scope.rest, scope.resumed = start.inside, True
        return start
    initial = {} if arguments.initial is None else arguments.initial
    state = graph.plan.validate(initial, "the initial state")
    return Start(state if binding is None else binding.start_state(state), graph.entry)


async def _start_writing(
    scope: Scope,
    checkpointer: Checkpointer,
    start: Start,
    lease: ResumeLease | None,
    record: CheckpointRecord | None,
    *,
    named: bool,
) -> None:
    """Follow the run from where it starts.

    The start is saved while the first node waits, or with it: a step is one commit. An id that
    others may know, of a suspended run or named by the caller, is claimed before the first node:
    of several runs that start under it at once only one runs.
    """
    run, graph = scope.run, scope.graph
    writer = run.writer = CheckpointWriter(checkpointer, graph.leasing, run, graph.name, graph.plan)
    scope.frame = LiveFrame(writer.stack, graph.plan, start.state, start.node, stored=True)
    scope.frame.rest = start.inside
    unfinished = None if record is None or record.status == "completed" else record
    if unfinished is not None:
        writer.positions = list(unfinished.completed_positions)
        writer.signals = unfinished.signals + (unfinished.status == "suspended")
    writer.ending = ending_of(run, checkpointer)
    if unfinished is not None and unfinished.status == "suspended":
        if not await writer.claim(unfinished.revision):
            reason = "it has been resumed already"
            raise SuspensionRecordInvalid(unfinished.invocation_id, reason)
    elif lease and unfinished is not None and unfinished.invocation_id != run.invocation_id:
        await lease.pass_on(unfinished, writer, run.invocation_id)
    elif named and graph.leasing is not None:
        goes_on = record is not None and record.invocation_id == run.invocation_id
        if not await writer.claim(record.revision if record and goes_on else 0):
            raise id_taken(run.invocation_id)
    else:
        writer.begin_soon()


def ending_of(run: Invocation, checkpointer: Checkpointer) -> Ending:
    """Return how the last step of this run is saved."""
    binding = run.binding
    if binding is None or not binding.auto_save:
        return "alone"
    joint = isinstance(checkpointer, JointCheckpointer) and checkpointer.joins(binding.store)
    return "with session" if joint else "after session"


async def save_start_of(run: Invocation, error: BaseException) -> None:
    """Save where a run started that failed before anything was saved.

    If that fails too, the run's own error says so: it is the one that the caller has to see.
    """
    if run.writer is None or isinstance(error, CheckpointSaveFailed):
        return
    try:
        await run.writer.save_start()
    except CheckpointSaveFailed as unsaved:
        error.add_note(f"The run cannot be resumed: {unsaved}")


async def finish(run: Invocation, final: Any) -> None:
    """Save the session and the completed record. Raises SessionSaveFailed with the result."""
    await _close(run)
    binding, writer = run.binding, run.writer
    if binding is not None and binding.auto_save:
        if writer is not None and writer.ending == "with session":
            await _save_with_session(binding, writer, final)
            return
        await binding.save(final, result=final)
    if writer is not None:
        await writer.end()


async def _close(run: Invocation) -> None:
    """Let nothing that a node left behind save the session after the end, or over it."""
    run.ended = True
    if run.binding is not None:
        await run.binding.wait_saved()


async def _save_with_session(binding: Binding, writer: CheckpointWriter, final: Any) -> None:
    """One commit. If it fails, the last step is saved without the session, which is as it was."""
    checkpointer: Any = writer.checkpointer  # a JointCheckpointer, as `ending_of` found
    await writer.wait_saved()
    try:
        version = await checkpointer.save_with_session(
            writer.completed_record(),
            binding.store,
            binding.record(final),
            expected_version=binding.expected,
        )
    except Exception as error:
        with suppress(Exception):
            await writer.save_last_step()
        if isinstance(error, SessionWriteConflict):
            error.result = final
            raise
        reason = error_text(error)
        raise SessionSaveFailed(binding.session_id, reason, final) from error
    binding.note_version(version)


async def save_suspension(scope: Scope, signal: SuspendSignal) -> Suspended:
    """Save the suspended record with the session; what the caller gets."""
    run, writer = scope.run, scope.run.writer
    if writer is None or scope.frame is None:
        reason = "the graph has no checkpointer, so nothing could resume it"
        advice = "Build the graph with with_checkpointer(…)"
        raise SuspensionPersistenceFailed(run.invocation_id, reason, advice)
    await _close(run)
    state = scope.frame.state
    if signal.completed:
        writer.positions.append(signal.position)
    await writer.wait_saved()
    record = writer.suspended_record(signal.document(), signal.frame)
    try:
        # Save a suspended record and its session: in one commit where both live together.
        # Otherwise the record is saved first: a crash in between leaves a session that is older
        # than the suspended run, and the run saves it when it ends.
        checkpointer = writer.checkpointer
        binding = run.binding
        if binding is None or not binding.auto_save:
            await checkpointer.save(record)
        elif isinstance(checkpointer, JointCheckpointer) and checkpointer.joins(binding.store):
            version = await checkpointer.save_with_session(
                record, binding.store, binding.record(state), expected_version=binding.expected
            )
            binding.note_version(version)
        else:
            await checkpointer.save(record)
            await binding.save(state)
    except Exception as error:
        with suppress(Exception):  # what stays is an invocation that can be resumed
            await writer.save_unsuspended()
        if isinstance(error, SessionWriteConflict):
            raise
        reason = error_text(error)
        raise SuspensionPersistenceFailed(run.invocation_id, reason) from error
    return Suspended(
        invocation_id=run.invocation_id,
        correlation_id=run.correlation_id,
        session_id=run.session_id,
        descriptor=signal.descriptor,
        state=state,
        node_name=signal.namespace[0],
        namespace=signal.namespace,
    )
