"""Context: which invocation the running code belongs to.

One context variable holds the graph that is under way. Nodes, middleware and observers read the
three ids from it; it is reset when the invocation ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from limpet.graph.binding import Binding
    from limpet.graph.checkpoint import Frame, Progress
    from limpet.graph.engine.compiled import CompiledGraph
    from limpet.graph.engine.track import LiveFrame, Tracker
    from limpet.graph.observe import Delivery, Observer, Tracer


class Invocation:
    """One run of a graph: its ids, and what watches and keeps it."""

    __slots__ = (
        "binding",
        "correlation_id",
        "deliveries",
        "delivery",
        "invocation_id",
        "metadata",
        "observers",
        "session_id",
        "step",
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
        self.invocation_id, self.correlation_id = invocation_id, correlation_id
        self.session_id = session_id
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata or {}))
        self.step = 0
        self.observers: tuple[Observer, ...] = ()
        self.delivery: Delivery | None = None
        self.deliveries: set[Delivery] = set()  # of the graph that was invoked
        self.tracer: Tracer | None = None
        self.tracker: Tracker | None = None
        self.binding: Binding | None = None


class Scope:
    """One graph under way: an invocation's own, a subgraph, an instance of a fan-out, a branch."""

    __slots__ = (
        "attempt",
        "body",
        "branch_name",
        "collecting",
        "fan_out_index",
        "frame",
        "graph",
        "node",
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
        graph: CompiledGraph[Any],
        outer: Scope | None = None,
        *,
        fan_out_index: int | None = None,
        branch_name: str | None = None,
        collecting: bool = False,
    ) -> None:
        self.run, self.graph, self.outer = run, graph, outer
        self.node, self.state, self.attempt, self.body = "", None, 0, True
        self.frame: LiveFrame | None = None
        self.rest: tuple[tuple[Frame, ...], Progress | None] | None = None
        if outer is None:
            self.parents: tuple[str, ...] = ()
            self.parents_states: tuple[Any, ...] = ()
            self.observers: tuple[Observer, ...] = graph.observers
            self.fan_out_index, self.branch_name = fan_out_index, branch_name
            self.collecting = collecting
        else:
            self.parents = (*outer.parents, outer.node)
            self.parents_states = (*outer.parents_states, outer.state)
            self.observers = outer.observers + graph.observers
            self.fan_out_index = outer.fan_out_index if fan_out_index is None else fan_out_index
            self.branch_name = outer.branch_name if branch_name is None else branch_name
            self.collecting = collecting or outer.collecting
        self.watched = bool(self.observers or run.observers)

    def take_rest(self) -> tuple[tuple[Frame, ...], Progress | None] | None:
        """What a resumed run found inside the node at its cursor; once, for the first attempt."""
        rest, self.rest = self.rest, None
        return rest


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
