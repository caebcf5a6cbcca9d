"""The plan of a graph: its steps, what it was compiled with, and its drawing.

Data that a run reads. `CompiledGraph` is a plan with the verbs of a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from limpet.errors import GraphError, GraphInvalid
from limpet.graph.checkpoint import Checkpointer, LeasingCheckpointer
from limpet.graph.observers import Delivery, Tracer, Watcher
from limpet.graph.sessions import SessionConfig
from limpet.graph.state import State, StatePlan
from limpet.model import described
from limpet.model.state.label_migrations import LabelRegistry

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


_SHAPES = {
    "function": ("[", "]"),
    "subgraph": ("[[", "]]"),
    "fan_out": ("[/", "/]"),
    "branches": ("{{", "}}"),
}


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
