"""Context: which invocation the running code belongs to, and what it may ask of it.

One context variable holds the graph that is under way. Nodes, middleware and observers read the
three ids from it; it is reset when the invocation ends. What is told about a run, as an event or a
span, is described here, from where the run stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from limpet.errors import GraphMisused
from limpet.graph.binding import Binding
from limpet.graph.checkpoint import Frame, Position, Progress
from limpet.graph.descriptor import SuspensionDescriptor
from limpet.graph.engine.track import LiveFrame, RunIds, Tracker
from limpet.graph.observe import Delivery, NodeEvent, Phase, Span, SpanKind, Tracer, Watcher
from limpet.graph.plan import GraphPlan


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
        "tracker",
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
        self.tracker: Tracker | None = None
        self.binding: Binding | None = None

    def span(
        self, kind: SpanKind, name: str, scope: Scope | None = None
    ) -> AbstractContextManager[Any]:
        """A span of the tracer around this part of the run; nothing if there is no tracer."""
        if self.tracer is None:
            return nullcontext()
        span = Span(
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
        "number",
        "observers",
        "outer",
        "parents",
        "parents_states",
        "rest",
        "run",
        "state",
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
        # Which attempt of what is around it this graph belongs to: its nodes say so, unless they
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

    def take_rest(self) -> tuple[tuple[Frame, ...], Progress | None] | None:
        """What a resumed run found inside the node at its cursor; once, for the first attempt."""
        rest, self.rest = self.rest, None
        return rest

    def position(self) -> Position:
        """Where the current node stands in the run."""
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
    """Which attempt of the node this is, from 0."""
    scope = CURRENT.get()
    return 0 if scope is None else scope.attempt


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
