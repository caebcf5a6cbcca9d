"""Making steps: what a builder has collected about a node becomes a step, when all is checked.

A maker is called once the graph's edges are known, with the middleware around the node and the edge
that leaves it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from limpet.errors import DanglingEdge, GraphInvalid
from limpet.graph.engine.branches import Branch, BranchesStep
from limpet.graph.engine.check import (
    check_branches,
    check_edges,
    check_fan_out,
    check_policy,
    check_ways,
)
from limpet.graph.engine.fan_out import (
    ErrorPolicy,
    FanOut,
    FanOutStep,
    OnEmpty,
    ResumeInstances,
)
from limpet.graph.engine.nodes import END, Edge, End, FunctionStep, SubgraphStep
from limpet.graph.engine.run import Middleware
from limpet.graph.project import Crossing, ExplicitMapping, Projection, check_names, projection_of
from limpet.graph.state import StatePlan
from limpet.model import described

__all__ = [
    "Branch",
    "Edge",
    "End",
    "ErrorPolicy",
    "FanOut",
    "Maker",
    "Middleware",
    "OnEmpty",
    "ResumeInstances",
    "branches",
    "choice",
    "edge",
    "fan_out",
    "function",
    "layers_of",
    "steps_of",
    "subgraph",
]

Maker: TypeAlias = Callable[[tuple[Middleware, ...], Edge], Any]
Node: TypeAlias = Callable[[Any], Awaitable[Mapping[str, Any]]]


def function(name: str, fn: Node) -> Maker:
    """Makes a node that is an async function."""
    check_function(name, fn)
    return lambda layers, edge: FunctionStep(name, fn, layers, edge)


def subgraph(
    name: str,
    plan: StatePlan[Any],
    graph: Any,
    projection: Projection | None,
    inputs: Mapping[str, str] | None,
    outputs: Mapping[str, str] | None,
) -> Maker:
    """Makes a node that is another graph."""
    check_compiled(name, graph)

    def make(layers: tuple[Middleware, ...], edge: Edge) -> SubgraphStep:
        chosen = projection_of(name, projection, inputs, outputs)
        return SubgraphStep(name, graph, Crossing(name, graph.plan, plan, chosen), layers, edge)

    return make


def fan_out(
    name: str, plan: StatePlan[Any], graph: Any, how: FanOut, inputs: Mapping[str, str] | None
) -> Maker:
    """Makes a node that runs a graph for each item."""
    check_compiled(name, graph)

    def make(layers: tuple[Middleware, ...], edge: Edge) -> FanOutStep:
        check_fan_out(name, how, graph.plan, plan)
        crossing = Crossing(name, graph.plan, plan, ExplicitMapping(inputs, {}))
        return FanOutStep(name, graph, crossing, how, layers, edge)

    return make


def branches(
    name: str,
    plan: StatePlan[Any],
    given: object,
    error_policy: ErrorPolicy,
    errors_field: str | None,
) -> Maker:
    """Makes a node that runs branches."""

    def make(layers: tuple[Middleware, ...], edge: Edge) -> BranchesStep:
        check_policy(name, error_policy)
        check_names(name, plan, [] if errors_field is None else [errors_field])
        found = check_branches(name, given)
        made = {key: (branch, _crossing(name, plan, branch)) for key, branch in found.items()}
        return BranchesStep(name, made, plan, error_policy, errors_field, layers, edge)

    return make


def edge(source: str, target: str | End) -> Edge:
    """An edge to one node, or to the end."""
    if target is not END and not isinstance(target, str):
        raise DanglingEdge(str(source), f"leads to {described(target)}")
    return Edge(source, None if isinstance(target, End) else target)


def choice(source: str, fn: Callable[[Any], Any], targets: Iterable[str | End] | None) -> Edge:
    """An edge whose target a function chooses."""
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise GraphInvalid(f"the edge of {source!r} is not a plain function. Pass one.")
    drawn = None
    if targets is not None:
        drawn = tuple([None if isinstance(target, End) else target for target in targets])
    return Edge(source, None, fn, drawn=drawn)


def steps_of(
    nodes: Mapping[str, tuple[tuple[Middleware, ...], Maker]],
    edges: Iterable[Edge],
    entry: str | None,
    outer: tuple[Middleware, ...],
) -> dict[str, Any]:
    """The steps of a graph, each with its edge and the middleware around it."""
    leaving, names = check_edges(nodes, edges, entry), frozenset(nodes)
    steps = {}
    for name, (layers, make) in nodes.items():
        found = leaving.get(name) or Edge(name)
        steps[name] = make(outer + layers, Edge(name, found.target, found.fn, names, found.drawn))
    assert entry is not None  # as checked
    check_ways(nodes, leaving, entry)
    return steps


def layers_of(name: str, middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """The middleware as a tuple. Raises GraphInvalid if one cannot be called."""
    layers = tuple(middleware)
    for layer in layers:
        if not callable(layer):
            raise GraphInvalid(f"middleware of {name!r} is {described(layer)}. Pass a callable.")
    return layers


def check_function(name: str, fn: object) -> None:
    """Refuse what cannot be awaited as a node."""
    plain = inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn)
    wraps = hasattr(fn, "__wrapped__") or getattr(fn, "__name__", "") == "<lambda>"
    if not callable(fn) or (plain and not wraps):
        raise GraphInvalid(
            f"node {name!r} is {described(fn)}. Pass an async function of the state: async def."
        )


def check_compiled(name: str, graph: object) -> None:
    """Refuse a subgraph that is not a compiled graph."""
    if not hasattr(graph, "steps"):
        raise GraphInvalid(f"node {name!r} has {described(graph)} as subgraph. Compile it first.")


def _crossing(name: str, plan: StatePlan[Any], branch: Branch) -> Crossing | None:
    if branch.subgraph is None:
        return None
    chosen = projection_of(name, None, branch.inputs, branch.outputs)
    return Crossing(name, branch.subgraph.plan, plan, chosen)
