"""The compiled graph: what `GraphBuilder.compile` returns. It never changes and may be shared.

It has the steps, and what stands around them: observers, a checkpointer, a session store, a tracer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from limpet.errors import GraphMisused
from limpet.graph.binding import SessionConfig
from limpet.graph.checkpoint import ChangeCheckpointer, Checkpointer
from limpet.graph.engine.draw import mermaid
from limpet.graph.engine.invoke import Call, Ran, invoke
from limpet.graph.observe import Delivery, Drained, Observer, Tracer, drain
from limpet.graph.state import State, StatePlan
from limpet.model.state.labels import LabelRegistry
from limpet.model.values import described

S = TypeVar("S", bound=State)


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
        self.changes = checkpointer if isinstance(checkpointer, ChangeCheckpointer) else None
        self.session, self.tracer = session, tracer
        self.observers: tuple[Observer, ...] = ()
        self.deliveries: set[Delivery] = set()

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
        call = Call(
            initial=initial,
            session_id=session_id,
            correlation_id=correlation_id,
            invocation_id=invocation_id,
            resume_invocation=resume_invocation,
            signal_payload=signal_payload,
            observers=observers,
            metadata=metadata,
        )
        return await invoke(self, call, Ran())

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
        return await drain(self.deliveries, timeout)

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
