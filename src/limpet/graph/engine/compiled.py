"""The compiled graph: what `GraphBuilder.compile` returns. It never changes and may be shared.

It is the plan of a graph with the verbs of its caller: run it, watch it, draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from limpet.graph.engine.draw import mermaid
from limpet.graph.engine.invoke import Call, Ran, invoke
from limpet.graph.observe import Drained, Observer, Phase, drain, drain_events_for, watcher
from limpet.graph.plan import GraphPlan
from limpet.graph.state import State

S = TypeVar("S", bound=State)


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
        call = Call(
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
        return await invoke(self, call, Ran())

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
