"""Context: the running invocation, what its code may ask of it, and how a node suspends it.

One context variable holds the graph that is under way. Nodes, middleware and observers read the ids
of the invocation from it; it is reset when the invocation ends. All reports about a run, as an
event, a span or on a log record, are made here, from where the run stands.

`suspend` raises a signal that no `except Exception` catches. It ends the attempt, the graphs around
it and the invocation, which is saved with its session and returns `Suspended`. A later
`invoke(resume_invocation=…, signal_payload=…)` continues it under the same invocation id.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

import msgspec

from limpet.errors import GraphError, GraphInvalid, GraphMisused, SuspensionInUnsupportedContext
from limpet.graph.checkpoint import Checkpointer, Frame, LeasingCheckpointer, Position, Progress
from limpet.graph.engine.checkpoint_writer import CheckpointWriter, LiveFrame, RunIds
from limpet.graph.engine.turn_checkpoints import NodeRun, TurnCheckpoints
from limpet.graph.observers import (
    Delivery,
    GraphSpan,
    NodeEvent,
    Phase,
    SpanKind,
    SuspensionDescriptor,
    Tracer,
    Watcher,
)
from limpet.graph.sessions import Binding, SessionConfig, exact
from limpet.graph.state import State, StatePlan
from limpet.model import described
from limpet.model.state.label_migrations import LabelRegistry

T = TypeVar("T")


class Invocation(RunIds):
    """One run of a graph: its ids, and what watches and keeps it."""

    __slots__ = (
        "binding",
        "deliveries",
        "delivery",
        "ended",
        "metadata",
        "observers",
        "step",
        "steps_max",
        "tracer",
        "turn",
        "writer",
    )

    def __init__(
        self,
        invocation_id: str,
        correlation_id: str,
        session_id: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(invocation_id, correlation_id, session_id)
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata or {}))
        self.step, self.ended = 0, False
        self.observers: tuple[Watcher, ...] = ()
        self.delivery: Delivery | None = None
        self.deliveries: set[Delivery] = set()  # of the graph that was invoked
        self.tracer: Tracer | None = None
        self.steps_max: int | None = None  # of every graph of the run, if the caller gave one
        self.writer: CheckpointWriter | None = None
        self.binding: Binding | None = None
        self.turn: TurnCheckpoints | None = None  # of the worker that runs it, if there is one

    def span(
        self, kind: SpanKind, name: str, scope: Scope | None = None
    ) -> AbstractContextManager[Any]:
        """A span of the tracer around this part of the run; nothing if there is no tracer."""
        if self.tracer is None:
            return nullcontext()
        span = GraphSpan(
            kind=kind,
            name=name,
            invocation_id=self.invocation_id,
            correlation_id=self.correlation_id,
            session_id=self.session_id,
            namespace=_place(kind, name, scope),
            attempt_index=0 if scope is None else scope.attempt,
            fan_out_index=None if scope is None else scope.fan_out_index,
            branch_name=None if scope is None else scope.branch_name,
        )
        return self.tracer.span(span)


def _place(kind: SpanKind, name: str, scope: Scope | None) -> tuple[str, ...]:
    """The nodes down to this part. An instance or branch is a part of its node, not one inside."""
    if scope is None:
        return ()
    inside = kind in ("fan_out_instance", "branch")
    return scope.parents if inside else (*scope.parents, name)


class Scope:
    """One graph under way: an invocation's own, a subgraph, an instance of a fan-out, a branch."""

    __slots__ = (
        "attempt",
        "base",
        "body",
        "branch_name",
        "branch_names",
        "collecting",
        "fan_out_index",
        "fan_out_indexes",
        "frame",
        "graph",
        "node",
        "node_run",
        "number",
        "observers",
        "outer",
        "parents",
        "parents_states",
        "path",
        "rest",
        "resumed",
        "run",
        "state",
        "visits",
        "watched",
    )

    def __init__(
        self,
        run: Invocation,
        graph: GraphPlan[Any],
        outer: Scope | None = None,
        *,
        fan_out_index: int | None = None,
        branch_name: str | None = None,
        collecting: bool = False,
    ) -> None:
        self.run, self.graph, self.outer = run, graph, outer
        self.node, self.state, self.number, self.body = "", None, 0, True
        # The attempt of the node around this graph: its own nodes report it too, unless they
        # are retried themselves.
        self.base: int = 0 if outer is None else outer.attempt
        self.attempt: int = self.base
        self.frame: LiveFrame | None = None
        self.rest: tuple[tuple[Frame, ...], Progress | None] | None = None
        if outer is None:
            self.parents: tuple[str, ...] = ()
            self.parents_states: tuple[Any, ...] = ()
            self.observers: tuple[Watcher, ...] = graph.observers
            self.fan_out_index, self.branch_name = fan_out_index, branch_name
            self.fan_out_indexes: tuple[int | None, ...] = ()
            self.branch_names: tuple[str | None, ...] = ()
            self.collecting = collecting
        else:
            self.parents = (*outer.parents, outer.node)
            self.parents_states = (*outer.parents_states, outer.state)
            self.observers = outer.observers + graph.observers
            self.fan_out_index = outer.fan_out_index if fan_out_index is None else fan_out_index
            self.branch_name = outer.branch_name if branch_name is None else branch_name
            self.fan_out_indexes = (*outer.fan_out_indexes, fan_out_index)
            self.branch_names = (*outer.branch_names, branch_name)
            self.collecting = collecting or outer.collecting
        self.watched = bool(self.observers or run.observers)
        # In a turn: the name of this graph's run, how often each node was visited, and the visit
        # that is under way. A resumed graph has visits that an earlier run of the turn recorded.
        self.path, self.resumed = "", False
        self.visits: dict[str, int] = {}
        self.node_run: NodeRun | None = None
        if run.turn is not None and outer is not None and outer.node_run is not None:
            self.path = outer.node_run.part
            if branch_name is not None or fan_out_index is not None:
                key = str(fan_out_index) if branch_name is None else branch_name
                self.path = run.turn.slot(self.path, key)

    def enter(self, turn: TurnCheckpoints, node: str) -> NodeRun:
        """Begin a visit of the node, in a turn."""
        before = self.visits.get(node)
        run = turn.enter(self.path, node, before, resumed=self.resumed, parent=self.outer_span)
        self.visits[node], self.node_run = run.number, run
        return run

    @property
    def outer_span(self) -> str | None:
        """The span of the node around this graph, in a turn."""
        outer = None if self.outer is None else self.outer.node_run
        return None if outer is None else outer.span

    def take_rest(self) -> tuple[tuple[Frame, ...], Progress | None] | None:
        """Take what a resumed run found inside the node at its cursor; first attempt only."""
        rest, self.rest = self.rest, None
        return rest

    def position(self) -> Position:
        """Return the position of the current node in the run."""
        return Position(
            node=self.node,
            step=self.number,
            parents=self.parents,
            attempt_index=self.attempt,
            fan_out_index=self.fan_out_index,
            branch_name=self.branch_name,
        )

    def emit(
        self,
        phase: Phase,
        pre_state: Any,
        post_state: Any = None,
        error: BaseException | None = None,
        descriptor: SuspensionDescriptor | None = None,
    ) -> None:
        """Tell the observers of this phase about the current node."""
        run = self.run
        watching = [w.observer for w in (*self.observers, *run.observers) if phase in w.phases]
        if not watching:
            return
        if run.delivery is None:
            run.delivery = Delivery(run.invocation_id, run.deliveries)
        event = NodeEvent(
            phase=phase,
            node_name=self.node,
            namespace=(*self.parents, self.node),
            step=self.number,
            pre_state=pre_state,
            post_state=post_state,
            error=error,
            parent_states=self.parents_states,
            attempt_index=self.attempt,
            fan_out_index=self.fan_out_index,
            branch_name=self.branch_name,
            fan_out_index_chain=self.fan_out_indexes,
            branch_name_chain=self.branch_names,
            session_id=run.session_id,
            descriptor=descriptor,
        )
        run.delivery.put(event, watching)


CURRENT: Final[ContextVar[Scope | None]] = ContextVar("limpet_graph", default=None)
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def current_session_id() -> str | None:
    """The session of the invocation that this code runs in; None if it has none."""
    scope = CURRENT.get()
    return None if scope is None else scope.run.session_id


def current_invocation_id() -> str | None:
    """The id of the invocation that this code runs in; None outside of one."""
    scope = CURRENT.get()
    return None if scope is None else scope.run.invocation_id


def current_correlation_id() -> str | None:
    """The correlation id of the invocation that this code runs in; None outside of one."""
    scope = CURRENT.get()
    return None if scope is None else scope.run.correlation_id


def current_metadata() -> Mapping[str, Any]:
    """The metadata that the caller gave to `invoke`; empty outside of an invocation."""
    scope = CURRENT.get()
    return _NOTHING if scope is None else scope.run.metadata


def current_node() -> str | None:
    """The name of the node that this code runs in; None outside of an invocation."""
    scope = CURRENT.get()
    return None if scope is None else scope.node


def current_attempt() -> int:
    """The number of this attempt of the node, from 0."""
    scope = CURRENT.get()
    return 0 if scope is None else scope.attempt


def identity() -> dict[str, str]:
    """The ids that are bound here, by name: none outside of an invocation."""
    ids = {
        "session_id": current_session_id(),
        "invocation_id": current_invocation_id(),
        "correlation_id": current_correlation_id(),
    }
    return {name: value for name, value in ids.items() if value is not None}


class IdentityFilter(logging.Filter):
    """Passes every record, and gives it the ids of the invocation that emitted it.

    With a QueueHandler it belongs there: the listener runs in a thread that has no invocation.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        for name, value in identity().items():
            setattr(record, name, value)
        return True


async def save_session(pending_update: Mapping[str, Any] | None = None) -> None:
    """Save the session of this invocation now, in the middle of the run.

    With `pending_update` the saved state has it folded in, as the node's own result will. Without a
    session it does nothing. Raises SessionSaveFailed, and GraphMisused inside a subgraph, a fan-out
    or a branch, and in a task that outlived its invocation.
    """
    scope = CURRENT.get()
    if scope is None or scope.run.binding is None:
        return
    if scope.run.ended:
        raise GraphMisused(
            "save_session was called in a task that outlived its invocation: it would replace what "
            "was saved at the end. Wait for the task in its node."
        )
    if scope.outer is not None:
        raise GraphMisused(
            "save_session was called inside a subgraph, a fan-out or a branch, which do not see "
            "the session. Call it in a node of the outermost graph."
        )
    state = scope.state
    if pending_update:
        state = scope.graph.plan.apply(state, pending_update, scope.node)
    await scope.run.binding.save(state)


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an invocation that waits for a signal.

    `state` is the state of the outermost graph and `node_name` the node of it that suspended;
    `namespace` is the path from there to the node that called `suspend`. Inside a fan-out or
    branches the descriptor's metadata has `fan_out_index` or `branch_name`, of the innermost one.
    """

    invocation_id: str
    correlation_id: str
    descriptor: SuspensionDescriptor
    state: Any
    node_name: str
    namespace: tuple[str, ...]
    session_id: str | None = None


class SuspendSignal(BaseException):
    """Carries a suspension from its node to the invocation. Not an error: nothing may catch it."""

    def __init__(
        self,
        descriptor: SuspensionDescriptor,
        *,
        completed: bool,
        node_name: str,
        namespace: tuple[str, ...],
        frame: LiveFrame | None,
        position: Position,
    ) -> None:
        super().__init__(descriptor.signal_id)
        self.descriptor, self.completed = descriptor, completed
        self.node_name, self.namespace, self.frame = node_name, namespace, frame
        self.position = position  # of the node, if the suspension completes it
        self.slots: list[str] = []  # the instances and branches around the node
        self.outcome: Suspended | None = None  # once it is saved

    def leave(self, kind: Literal["fan_out_index", "branch_name"], value: int | str) -> None:
        """Leave an instance or a branch: the descriptor says which one. The innermost counts."""
        self.slots.insert(0, str(value))
        metadata = {kind: value, **self.descriptor.metadata}
        self.descriptor = SuspensionDescriptor(self.descriptor.signal_id, metadata)

    def document(self) -> dict[str, Any]:
        """The suspension as a record stores it."""
        return {
            "descriptor": msgspec.to_builtins(self.descriptor),
            "completed": self.completed,
            "node_name": self.node_name,
            "namespace": list(self.namespace),
            "slots": list(self.slots),
        }


async def suspend(
    descriptor: SuspensionDescriptor | str, *, mark_node_completed: bool = True
) -> NoReturn:
    """End this attempt, and the run, until a signal resumes the invocation.

    With `mark_node_completed` the resumed run continues after this node; without, it runs this node
    again, as the same attempt. Raises SuspensionInUnsupportedContext outside the body of a node,
    and inside a fan-out or branch with error_policy="collect".
    """
    if isinstance(descriptor, str):
        descriptor = SuspensionDescriptor(descriptor)
    _check(descriptor)
    scope = CURRENT.get()
    if scope is None or scope.run.ended:
        raise SuspensionInUnsupportedContext("", "no graph is running")
    if not scope.body:
        raise SuspensionInUnsupportedContext(scope.node, "middleware called suspend")
    if scope.collecting:
        reason = "its fan-out or branches collect errors, so the others would go on"
        raise SuspensionInUnsupportedContext(scope.node, reason)
    raise SuspendSignal(
        descriptor,
        completed=mark_node_completed,
        node_name=scope.node,
        namespace=(*scope.parents, scope.node),
        frame=scope.frame or (None if scope.outer is None else scope.outer.frame),
        position=scope.position(),
    )


def _check(descriptor: Any) -> None:
    """Refuse in the node what could not be stored when the run ends."""
    known = isinstance(descriptor, SuspensionDescriptor)
    if not known or not isinstance(descriptor.signal_id, str) or not descriptor.signal_id:
        raise GraphMisused("suspend takes a SuspensionDescriptor or a signal id. Pass one of them.")
    if not isinstance(descriptor.metadata, dict):
        raise GraphMisused(f"the metadata is {described(descriptor.metadata)}. Pass a dict.")
    exact(descriptor.metadata, "the metadata")


async def unwrap_suspension(call: Awaitable[T]) -> T:
    """Await the call. A task group in it, of a node or of middleware, hides no suspension."""
    try:
        return await call
    except BaseExceptionGroup as group:
        unwrap(group)


def unwrap(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise what the errors of a task group mean: a suspension, unless another of them failed."""
    signals, others = group.split(SuspendSignal)
    if signals is None:
        raise group
    error: BaseException = signals if others is None else others
    while others is None and isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    raise error from None


# --- plans ---------------------------------------------------------------------------------------


S = TypeVar("S", bound=State)


class CompileWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a graph may do, and that is rarely meant.

    `projection_reducer_round_trip`: a value goes into an inner graph and comes back into the same
    field, whose reducer adds it a second time.
    """

    category: Literal["projection_reducer_round_trip"]
    node: str
    field: str
    reducer: str


class GraphPlan(Generic[S]):
    """The steps of a graph by name, and what stands around them."""

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
        steps_max: int,
        warnings: tuple[CompileWarning, ...] = (),
    ) -> None:
        self.name, self.plan, self.entry = name, plan, entry
        self.steps: dict[str, Any] = dict(steps)
        self.checkpointer, self.migrations = checkpointer, migrations
        self.leasing = checkpointer if isinstance(checkpointer, LeasingCheckpointer) else None
        self.session, self.tracer = session, tracer
        self.steps_max = check_steps_max(steps_max, GraphInvalid)
        self.observers: tuple[Watcher, ...] = ()
        self.deliveries: set[Delivery] = set()
        self.warnings = warnings  # what the compiler found; each was logged, too
        self.warned = False  # of a session id without a session store

    @property
    def state_type(self) -> type[S]:
        """The State class of the graph."""
        return self.plan.of

    def inside(self, node: str) -> GraphPlan[Any] | None:
        """The graph that a subgraph node runs; None for any other node."""
        step: Any = self.steps.get(node)
        graph: GraphPlan[Any] | None = step.graph if _kind(step) == "subgraph" else None
        return graph

    def branches_of(self, node: str) -> Mapping[str, Any]:
        """The branches of a parallel-branches node, by name."""
        branches: Mapping[str, Any] = getattr(self.steps.get(node), "branches", {})
        return branches

    def branch_graph(self, node: str, key: str) -> GraphPlan[Any] | None:
        """The graph that an instance or a branch runs; None for a branch that is a call."""
        step = self.steps[node]
        if step.kind == "fan_out":
            graph: GraphPlan[Any] = step.graph
            return graph
        branch: GraphPlan[Any] | None = step.branches[key][0].subgraph
        return branch


def check_steps_max(steps_max: int, refusal: type[GraphError]) -> int:
    """Check the limit of nodes that one run may run, and return it. Raises `refusal`."""
    if type(steps_max) is not int or steps_max < 1:
        raise refusal(f"steps_max is {described(steps_max)}. Pass a number of nodes from 1.")
    return steps_max


def _kind(step: Any) -> str:
    return getattr(step, "kind", "")


DRAWN_EDGES_MAX = 200
_SHAPES = {
    "function": ("[", "]"),
    "subgraph": ("[[", "]]"),
    "fan_out": ("[/", "/]"),
    "branches": ("{{", "}}"),
}


def drawing(graph: GraphPlan[Any]) -> dict[str, Any] | None:
    """A graph as its session records it: `nodes` with their kinds, and `edges` from node to node
    (None: the end), each with True if a function chooses. None if it is too large to be drawn."""
    nodes = [[name, step.kind] for name, step in graph.steps.items()]
    edges: list[list[Any]] = []
    for name, step in graph.steps.items():
        edge = step.next
        if edge.fn is None:
            edges.append([name, edge.target, False])
            continue
        targets: tuple[str | None, ...] = (*graph.steps, None)
        edges += [[name, to, True] for to in (targets if edge.drawn is None else edge.drawn)]
    if len(edges) > DRAWN_EDGES_MAX:
        return None
    return {"entry": graph.entry, "nodes": nodes, "edges": edges}


def mermaid(graph: GraphPlan[Any]) -> str:
    """The Mermaid text of a graph."""
    ids = {name: f"n{at}" for at, name in enumerate(graph.steps)}
    lines = ["flowchart TD", "    start([start])", "    finish([END])"]
    for name, step in graph.steps.items():
        opening, closing = _SHAPES[step.kind]
        lines.append(f'    {ids[name]}{opening}"{_label(name, step)}"{closing}')
    lines.append(f"    start --> {ids[graph.entry]}")
    for name, step in graph.steps.items():
        edge = step.next
        if edge.fn is None:
            lines.append(f"    {ids[name]} --> {ids.get(edge.target or '', 'finish')}")
            continue
        targets: tuple[str | None, ...] = (*graph.steps, None)
        for target in targets if edge.drawn is None else edge.drawn:
            lines.append(f"    {ids[name]} -.-> {ids.get(target or '', 'finish')}")
    return "\n".join(lines) + "\n"


def _label(name: str, step: Any) -> str:
    text = name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    if step.kind == "branches":
        inside = ", ".join(str(branch) for branch in step.branches)
        text += ": " + inside.replace('"', "&quot;")
    return text
