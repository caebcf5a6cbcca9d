"""Parallel branches: several subgraphs or calls run at the same time.

Each branch starts from the state of the node's entry. Their updates are merged in the order in
which the branches were declared, when all have ended. A branch that is done is saved, so a resumed
run does not repeat it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.errors import ParallelBranchesBranchFailed
from limpet.errors.graph import said
from limpet.graph.checkpoint import Slot
from limpet.graph.context import CURRENT, Scope
from limpet.graph.engine.fan_out import FATAL, ErrorPolicy, described_error
from limpet.graph.engine.nodes import Edge
from limpet.graph.engine.run import Middleware, attempt_of, chained, run_graph, together
from limpet.graph.project import Crossing
from limpet.graph.state import Contributions, StatePlan
from limpet.graph.suspend import SuspendSignal, unwrapped
from limpet.model import described

if TYPE_CHECKING:
    from limpet.graph.engine.compiled import CompiledGraph


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One branch: a subgraph with its mappings, or a call, an async function of the state.

    With `when` it runs only if that function of the state returns true.
    """

    subgraph: CompiledGraph[Any] | None = None
    call: Callable[[Any], Awaitable[Mapping[str, Any]]] | None = None
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None
    when: Callable[[Any], bool] | None = None
    middleware: tuple[Middleware, ...] = ()


class BranchesStep:
    """A node that runs its branches."""

    kind = "branches"
    counts = True
    fn = None

    def __init__(
        self,
        name: str,
        branches: Mapping[str, tuple[Branch, Crossing | None]],
        plan: StatePlan[Any],
        error_policy: ErrorPolicy,
        errors_field: str | None,
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.branches, self.plan = name, dict(branches), plan
        self.error_policy, self.errors_field = error_policy, errors_field
        self.middleware, self.next = middleware, edge

    async def run(self, scope: Scope, state: Any) -> Any:
        """Run the branches that are left; the updates of all of them."""
        found = scope.take_rest()
        progress = None if found is None else found[1]
        slots = {} if progress is None else progress.slots
        results: dict[str, Slot | Mapping[str, Any]] = {
            name: self._loaded(slot) for name, slot in slots.items() if slot.done
        }
        if scope.run.tracker is not None and scope.frame is not None:
            scope.run.tracker.begin(scope.frame, len(self.branches), progress)
        names = [name for name in self.branches if name not in results]
        await together([self._branch(scope, state, n, slots.get(n), results) for n in names])
        parts = [results[name] for name in self.branches if name in results]
        updates = [part for part in parts if not isinstance(part, Slot)]
        if self.errors_field is not None:
            errors = [part.error for part in parts if isinstance(part, Slot)]
            updates.append({self.errors_field: errors})
        return Contributions(updates)

    async def _branch(
        self, scope: Scope, state: Any, name: str, found: Slot | None, results: dict[str, Any]
    ) -> None:
        """Run one branch and keep its update, or its error."""
        try:
            result: Any = await unwrapped(self._update(scope, state, name, found))
        except SuspendSignal as signal:
            signal.leave("branch_name", name)
            raise
        except FATAL:
            raise
        except Exception as error:
            if self.error_policy == "fail_fast":
                reason = said(error)
                raise ParallelBranchesBranchFailed(self.name, name, reason, state) from error
            result = Slot(done=True, error={"branch_name": name, **described_error(error)})
        if result is None:  # not to be run this time
            return
        results[name] = result
        tracker, frame = scope.run.tracker, scope.frame
        if tracker is not None and frame is not None:
            slot = result if isinstance(result, Slot) else self._stored(result)
            await tracker.completed_slot(frame, name, slot)

    async def _update(self, scope: Scope, state: Any, name: str, found: Slot | None) -> Any:
        branch, crossing = self.branches[name]
        if found is None and branch.when is not None and not branch.when(state):
            return None
        inner = Scope(
            scope.run,
            branch.subgraph or scope.graph,
            scope,
            branch_name=name,
            collecting=self.error_policy == "collect",
        )
        with scope.run.span("branch", name, inner):
            if crossing is None:
                return await self._called(inner, branch, state, name)
            return await self._run_subgraph(scope, inner, branch, crossing, state, found)

    async def _called(self, inner: Scope, branch: Branch, state: Any, name: str) -> Any:
        assert branch.call is not None
        inner.node, inner.state = name, state
        token = CURRENT.set(inner)
        call = branch.call
        if branch.middleware:
            inner.body = False
            call = _in_body(inner, call, branch.middleware)
        try:
            update = await chained(branch.middleware, call)(state)
        finally:
            CURRENT.reset(token)
        self.plan.apply(state, update, self.name)  # refused here, its error is the branch's own
        return update

    async def _run_subgraph(
        self,
        scope: Scope,
        inner: Scope,
        branch: Branch,
        crossing: Crossing,
        state: Any,
        found: Slot | None,
    ) -> Any:
        graph, tracker = inner.graph, scope.run.tracker
        if found is not None and found.frames:
            frame = found.frames[0]
            start, node = graph.plan.load(frame.state, f"the state in {self.name!r}"), frame.node
            inner.rest = (found.frames[1:], frame.progress)
        else:
            start, node = crossing.enter(state), graph.entry

        tries, around = 0, inner.base

        async def once(begin: Any) -> Mapping[str, Any]:
            nonlocal tries
            inner.base = attempt_of(branch.middleware, tries, around)
            tries += 1
            if tracker is not None and scope.frame is not None:  # each attempt begins again
                name = inner.branch_name or ""
                inner.frame = tracker.enter_slot(
                    scope.frame, name, graph.plan, begin, node, inner.rest
                )
            final: Mapping[str, Any] = (await run_graph(inner, begin, node)).__dict__
            return final

        result = await chained(branch.middleware, once)(start)
        if not isinstance(result, Mapping):
            raise TypeError(f"middleware of a branch returned {described(result)}, not a dict")
        return crossing.project(result)

    def _stored(self, update: Mapping[str, Any]) -> Slot:
        fields = self.plan.fields
        return Slot(
            done=True, result={name: fields[name].dump_update(v) for name, v in update.items()}
        )

    def _loaded(self, slot: Slot) -> Slot | Mapping[str, Any]:
        if slot.result is None:
            return slot
        fields = self.plan.fields
        return {name: fields[name].load_update(value) for name, value in slot.result.items()}


def _in_body(
    scope: Scope,
    call: Callable[[Any], Awaitable[Mapping[str, Any]]],
    middleware: tuple[Middleware, ...],
) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
    tries = 0

    async def body(state: Any) -> Mapping[str, Any]:
        nonlocal tries
        scope.body, scope.attempt = True, attempt_of(middleware, tries, scope.base)
        tries += 1
        try:
            return await call(state)
        finally:
            scope.body = False

    return body
