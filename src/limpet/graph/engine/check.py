"""Checks: what a graph must be before it can be compiled. Each failure has its own error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from limpet.errors import (
    DanglingEdge,
    FanOutCountModeAmbiguous,
    FanOutDegradedUpdate,
    FanOutFieldNotList,
    GraphInvalid,
    MultipleOutgoingEdges,
    NoDeclaredEntry,
    ParallelBranchesInvalidBranchSpec,
    ParallelBranchesNoBranches,
    UnreachableNode,
)
from limpet.graph.engine.branches import Branch, BranchesStep
from limpet.graph.engine.fan_out import FanOut, FanOutStep
from limpet.graph.engine.nodes import Edge, SubgraphStep
from limpet.graph.plan import CompileWarning
from limpet.graph.project import check_names
from limpet.graph.state import StatePlan
from limpet.model import described
from limpet.model.state.reducers import Append, BoundedAppend, ConcatFlatten, MergeAll

_POLICIES: Final = ("fail_fast", "collect")
# Reducers that change a field when the value that it has is merged into it again.
_GROWING: Final = (Append, BoundedAppend, ConcatFlatten, MergeAll)


def check_edges(nodes: Iterable[str], edges: Iterable[Edge], entry: str | None) -> dict[str, Edge]:
    """The edge that leaves each node, if there is an entry and no node has two.

    Of several mistakes an edge that leads nowhere is reported last, by `check_ways`: it is often
    what another mistake left behind, such as a node that nothing leads to.
    """
    names = set(nodes)
    if entry is None:
        raise NoDeclaredEntry("set_entry was not called")
    if entry not in names:
        raise NoDeclaredEntry(f"{entry!r} is not a node of this graph")
    found: dict[str, Edge] = {}
    for edge in edges:
        if found.setdefault(edge.source, edge) is not edge:
            raise MultipleOutgoingEdges(edge.source)
    return found


def check_ways(nodes: Iterable[str], edges: Mapping[str, Edge], entry: str) -> None:
    """Refuse a node that cannot be reached or left, and an edge that leads nowhere."""
    names = set(nodes)
    reached = _reached(names, edges, entry)
    for name in nodes:
        if name not in reached:
            raise UnreachableNode(name)
    for edge in edges.values():
        if edge.source not in names:
            raise DanglingEdge(edge.source, "starts at a node that does not exist")
        for target in (edge.target, *(edge.drawn or ())):
            if target is not None and target not in names:
                raise DanglingEdge(edge.source, f"leads to {target!r}, which does not exist")
    for name in nodes:
        if name not in edges:
            raise DanglingEdge(name, "is missing")


def _reached(names: set[str], edges: Mapping[str, Edge], entry: str) -> set[str]:
    """The nodes that a run may come to. A function may choose any, unless it declares targets."""
    reached, waiting = {entry}, [entry]
    while waiting:
        edge = edges.get(waiting.pop())
        if edge is None:
            continue
        targets: Iterable[str | None] = (edge.target,)
        if edge.fn is not None:
            targets = names if edge.drawn is None else edge.drawn
        new = {target for target in targets if target in names} - reached
        reached |= new
        waiting += new
    return reached


def check_fan_out(node: str, how: FanOut, inner: StatePlan[Any], outer: StatePlan[Any]) -> None:
    """Check the settings of a fan-out against the two State classes."""
    _check_mode(node, how)
    check_names(node, outer, [name for name in (how.items_field,) if name is not None])
    check_names(node, inner, [name for name in (how.item_field,) if name is not None])
    check_names(node, inner, [how.collect_field, *how.extra_outputs.values()])
    targets = [how.target_field, *how.extra_outputs]
    targets += [how.errors_field] if how.errors_field is not None else []
    check_names(node, outer, targets)
    check_names(node, outer, [name for name in (how.count_field,) if name is not None])
    for name in [*([how.items_field] if how.items_field else []), *targets]:
        if not outer.fields[name].holds_list:
            raise FanOutFieldNotList(node, name)
    _check_settings(node, how)
    if how.resume_instances not in ("continue", "restart"):
        raise GraphInvalid(
            f"{node!r} has resume_instances={how.resume_instances!r}. Pass 'continue' or 'restart'."
        )
    for layer in how.instance_middleware:
        degraded = getattr(layer, "degraded_update", None)
        if isinstance(degraded, Mapping) and how.collect_field not in degraded:
            raise FanOutDegradedUpdate(node, how.collect_field)


def _check_mode(node: str, how: FanOut) -> None:
    if how.items_field is not None and how.count is not None:
        raise FanOutCountModeAmbiguous(node, "has items_field and count")
    if how.items_field is None and how.count is None:
        raise FanOutCountModeAmbiguous(node, "has neither items_field nor count")
    if (how.items_field is None) != (how.item_field is None):
        raise FanOutCountModeAmbiguous(node, "has only one of items_field and item_field")


def _check_settings(node: str, how: FanOut) -> None:
    for name, least in (("count", 0), ("concurrency", 1)):
        value = getattr(how, name)
        number = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if value is not None and not callable(value) and not number:
            raise GraphInvalid(
                f"fan-out node {node!r} has {name}={value!r}. Pass a number from {least}, or a "
                "function of the state."
            )
    check_policy(node, how.error_policy)
    if how.on_empty not in ("raise", "noop"):
        raise GraphInvalid(f"{node!r} has on_empty={how.on_empty!r}. Pass 'raise' or 'noop'.")


def check_policy(node: str, error_policy: object) -> None:
    """Check an error policy."""
    if error_policy not in _POLICIES:
        raise GraphInvalid(
            f"{node!r} has error_policy={error_policy!r}. Pass 'fail_fast' or 'collect'."
        )


def check_branches(node: str, branches: object) -> dict[str, Branch]:
    """The branches by name; a graph or a function stands for a branch of it."""
    if not isinstance(branches, Mapping) or not branches:
        raise ParallelBranchesNoBranches(node)
    return {_branch_name(node, name): _branch(node, name, b) for name, b in branches.items()}


def _branch_name(node: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ParallelBranchesInvalidBranchSpec(node, str(name), "has no name")
    return name


def _branch(node: str, name: str, given: Any) -> Branch:
    if isinstance(given, Branch):
        branch = given
    elif hasattr(given, "steps"):
        branch = Branch(subgraph=given)
    elif callable(given):
        branch = Branch(call=given)
    else:
        raise ParallelBranchesInvalidBranchSpec(node, name, f"is {described(given)}")
    if (branch.subgraph is None) == (branch.call is None):
        had = "both a subgraph and a call" if branch.call else "neither a subgraph nor a call"
        raise ParallelBranchesInvalidBranchSpec(node, name, f"has {had}")
    if branch.call is not None and (branch.inputs or branch.outputs):
        reason = "is a call with inputs or outputs, which only a subgraph has"
        raise ParallelBranchesInvalidBranchSpec(node, name, reason)
    if branch.subgraph is not None and not hasattr(branch.subgraph, "steps"):
        raise ParallelBranchesInvalidBranchSpec(node, name, "has a subgraph that is not compiled")
    return branch


def round_trips(steps: Mapping[str, Any], plan: StatePlan[Any]) -> tuple[CompileWarning, ...]:
    """The fields whose value goes into a graph inside and comes back, to be added once more."""
    found = []
    for name, step in steps.items():
        for inward, outward in _ways(step):
            for inner, outer in inward.items():
                reducer = plan.fields[outer].reducer
                if outward.get(outer) == inner and isinstance(reducer, _GROWING):
                    found.append(
                        CompileWarning(
                            category="projection_reducer_round_trip",
                            node=name,
                            field=outer,
                            reducer=reducer.name,
                        )
                    )
    return tuple(dict.fromkeys(found))


def _ways(step: Any) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """What goes into each graph inside a step, and what comes out: inner ← outer, outer ← inner."""
    if isinstance(step, FanOutStep):
        how = step.how
        yield step.crossing.inward, {how.target_field: how.collect_field, **how.extra_outputs}
    elif isinstance(step, BranchesStep):
        for _, crossing in step.branches.values():
            if crossing is not None:
                yield crossing.inward, crossing.outward
    elif isinstance(step, SubgraphStep):
        yield step.crossing.inward, step.crossing.outward
