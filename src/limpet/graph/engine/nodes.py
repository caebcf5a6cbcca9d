"""Nodes: functions and subgraphs as steps of a graph, each with the edge that leaves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from limpet.errors import EdgeException, RoutingError
from limpet.errors.graph import said
from limpet.graph.context import Scope
from limpet.graph.engine.run import Middleware, run_graph
from limpet.graph.plan import GraphPlan
from limpet.graph.project import Crossing
from limpet.model import described


class End:
    """The type of END."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "END"


END: Final = End()
"""The target of an edge that ends the graph."""


class Edge:
    """What follows a node: one target, or a function that chooses one."""

    __slots__ = ("drawn", "ends", "fn", "names", "source", "target")

    def __init__(
        self,
        source: str,
        target: str | None = None,
        fn: Callable[[Any], Any] | None = None,
        names: frozenset[str] = frozenset(),
        drawn: tuple[str | None, ...] | None = None,
    ) -> None:
        self.source, self.target, self.fn = source, target, fn
        self.drawn = drawn  # the targets that were declared for the function, if any
        self.names = names if drawn is None else frozenset([name for name in drawn if name])
        self.ends = drawn is None or None in drawn

    def __call__(self, state: Any) -> str | None:
        """The node that follows; None at the end."""
        if self.fn is None:
            return self.target
        try:
            found = self.fn(state)
        except Exception as error:
            reason = said(error)
            raise EdgeException(self.source, reason, state) from error
        if found is END and self.ends:
            return None
        if isinstance(found, str) and found in self.names:
            return found
        named = repr(found) if isinstance(found, (str, End)) else described(found)
        raise RoutingError(self.source, named, state)


class FunctionStep:
    """A node that is an async function of the state."""

    kind = "function"
    counts = True

    def __init__(
        self,
        name: str,
        fn: Callable[[Any], Awaitable[Mapping[str, Any]]],
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.middleware, self.next = name, middleware, edge
        self.fn: Callable[[Any], Awaitable[Mapping[str, Any]]] | None = fn
        self._fn = fn

    async def run(self, scope: Scope, state: Any) -> Any:
        """The function's update."""
        return await self._fn(state)


class SubgraphStep:
    """A node that is another graph."""

    kind = "subgraph"
    counts = False
    fn = None

    def __init__(
        self,
        name: str,
        graph: GraphPlan[Any],
        crossing: Crossing,
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.graph, self.crossing = name, graph, crossing
        self.middleware, self.next = middleware, edge

    async def run(self, scope: Scope, state: Any) -> Any:
        """Run the subgraph, or the rest of it; the update that it gives."""
        inner, run = Scope(scope.run, self.graph, scope), scope.run
        found = scope.take_rest()
        if found is not None and found[0]:
            frame = found[0][0]
            start, node = (
                self.graph.plan.load(frame.state, f"the state in {self.name!r}"),
                frame.node,
            )
            inner.rest = (found[0][1:], frame.progress)
        else:
            start, node = self.crossing.enter(state), self.graph.entry
        if run.tracker is not None and scope.frame is not None:
            inner.frame = run.tracker.push(scope.frame, self.graph.plan, start, node, inner.rest)
        with run.span("subgraph", self.name, scope):
            final = await run_graph(inner, start, node)
        return self.crossing.leave(final)
