"""Parallel nodes: a fan-out over the items of a list, and branches that run at the same time.

A fan-out runs one subgraph once for each item, or a number of times, as many at once as
`concurrency` allows; results are merged in the order of the indexes when all have ended. Branches
are several subgraphs or calls that start from the state of the node's entry; their updates are
merged in the order in which they were declared. Each instance and branch is saved when it is done,
so a resumed run repeats none that had finished.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from limpet.errors import (
    CheckpointRecordInvalid,
    FanOutEmpty,
    NodeException,
    ParallelBranchesBranchFailed,
    error_text,
)
from limpet.graph.checkpoint import Progress, ProgressSlot
from limpet.graph.context import CURRENT, GraphPlan, Scope, SuspendSignal, unwrap_suspension
from limpet.graph.engine.loop import (
    FATAL,
    Edge,
    Middleware,
    Next,
    attempt_of,
    in_attempt,
    run_graph,
    run_together,
    start_inside,
    with_middleware,
)
from limpet.graph.state import CheckedProjection, Contributions, StatePlan
from limpet.model import described

if TYPE_CHECKING:
    from limpet.graph.engine.compiled import CompiledGraph

ErrorPolicy: TypeAlias = Literal["fail_fast", "collect"]
OnEmpty: TypeAlias = Literal["raise", "noop"]
# A resumed run continues or restarts an instance that had begun and was not done.
ResumeInstances: TypeAlias = Literal["continue", "restart"]


class FanOut(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a fan-out node."""

    collect_field: str
    target_field: str
    items_field: str | None = None
    item_field: str | None = None
    count: int | Callable[[Any], int] | None = None
    concurrency: int | Callable[[Any], int] | None = 10
    error_policy: ErrorPolicy = "fail_fast"
    on_empty: OnEmpty = "raise"
    errors_field: str | None = None
    count_field: str | None = None
    extra_outputs: Mapping[str, str] = {}  # outer field → inner field
    instance_middleware: tuple[Middleware, ...] = ()
    resume_instances: ResumeInstances = "continue"


class FanOutStep:
    """A node that runs its subgraph for each item."""

    kind = "fan_out"
    counts = True
    fn = None

    def __init__(
        self,
        name: str,
        graph: GraphPlan[Any],
        projection: CheckedProjection,
        settings: FanOut,
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.graph, self.projection, self.settings = name, graph, projection, settings
        self.middleware, self.next = middleware, edge
        self._collected = (settings.collect_field, *settings.extra_outputs.values())

    async def run(self, scope: Scope, state: Any) -> Any:
        """Run what is left of the instances; the update with the results of all of them."""
        items, total = self._items(state)
        rest = scope.take_rest()
        progress = None if rest is None else rest[1]
        if progress is not None and progress.total != total:
            reason = f"{self.name!r} had {progress.total} instances and now has {total}"
            raise CheckpointRecordInvalid(scope.run.invocation_id, reason)
        if total == 0:
            return self._empty(state)
        writer, frame = scope.run.writer, scope.frame
        if writer is not None and frame is not None:
            writer.begin(frame, total, progress)
        work = _Work(self, scope, state, items, total, self._resumable(scope, progress))
        concurrency = self._concurrency(state, total)
        try:
            await run_together([work.some() for _ in range(min(concurrency, work.left))])
        except FATAL:
            raise
        except Exception as error:
            reason = error_text(error)
            raise NodeException(reason, node=self.name, recoverable_state=state) from error
        return self._update(work.results)

    def _resumable(self, scope: Scope, progress: Progress | None) -> Mapping[str, ProgressSlot]:
        """The slots of the instances that a resumed run goes on with.

        Those that are to restart are left out, unless the invocation has taken a signal: what it
        brought stands in the state of one of them.
        """
        if progress is None:
            return {}
        taken = scope.run.writer is not None and scope.run.writer.signals
        if self.settings.resume_instances == "continue" or taken:
            return progress.slots
        return {key: slot for key, slot in progress.slots.items() if slot.done}

    def _items(self, state: Any) -> tuple[Any, int]:
        settings = self.settings
        if settings.items_field is not None:
            items = getattr(state, settings.items_field)
            return items, len(items)
        count = settings.count(state) if callable(settings.count) else settings.count
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"the count of a fan-out is a number from 0, not {count!r}")
        return None, count

    def _concurrency(self, state: Any, total: int) -> int:
        asked = self.settings.concurrency
        asked = asked(state) if callable(asked) else asked
        if asked is None:
            return total
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
            raise ValueError(f"the concurrency of a fan-out is a number from 1, not {asked!r}")
        return asked

    def _empty(self, state: Any) -> dict[str, Any]:
        if self.settings.on_empty == "raise":
            raise FanOutEmpty(node=self.name, recoverable_state=state)
        return self._update([])

    def _update(self, results: list[ProgressSlot | dict[str, Any]]) -> dict[str, Any]:
        settings = self.settings
        # Of a degraded instance a field may be missing: it is null at its place, so that the lists
        # of one fan-out stay aligned.
        good = [result for result in results if isinstance(result, dict)]
        collected = [result.get(settings.collect_field) for result in good]
        update: dict[str, Any] = {settings.target_field: collected}
        for outer, inner in settings.extra_outputs.items():
            update[outer] = [result.get(inner) for result in good]
        if settings.count_field is not None:
            update[settings.count_field] = len(results)
        if settings.errors_field is not None:
            update[settings.errors_field] = [
                r.error for r in results if isinstance(r, ProgressSlot)
            ]
        return update

    async def instance(
        self, scope: Scope, state: Any, item: Any, at: int, slot: ProgressSlot | None
    ) -> Any:
        """Run one instance, or the rest of it; the inner fields that are collected."""
        graph, run, settings = self.graph, scope.run, self.settings
        inner = Scope(
            run, graph, scope, fan_out_index=at, collecting=settings.error_policy == "collect"
        )
        more = {} if settings.item_field is None else {settings.item_field: item}
        frames = () if slot is None else slot.frames
        start, node = start_inside(
            inner, frames, self.name, lambda: self.projection.enter(state, **more)
        )
        attempt = _attempts(scope, inner, str(at), node, settings.instance_middleware, batched=True)

        async def once(begin: Any) -> dict[str, Any]:
            held = await attempt(begin)
            return {name: held[name] for name in self._collected}

        if not settings.instance_middleware and run.tracer is None:
            return await once(start)
        with run.span("fan_out_instance", self.name, inner):
            result = await with_middleware(settings.instance_middleware, once)(start)
        if not isinstance(result, Mapping):
            raise TypeError(f"middleware of an instance returned {described(result)}, not a dict")
        return {name: result[name] for name in self._collected if name in result}

    def stored(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The stored form of an instance's result."""
        fields = self.graph.plan.fields
        return {n: None if v is None else fields[n].dump(v) for n, v in result.items()}

    def loaded(self, slot: ProgressSlot) -> ProgressSlot | dict[str, Any]:
        """The result of a stored instance; the slot itself if it failed."""
        if slot.result is None:
            return slot
        fields = self.graph.plan.fields
        return {n: None if v is None else fields[n].load(v) for n, v in slot.result.items()}


class _Work:
    """The instances of one run of a fan-out, shared by the workers that take them."""

    def __init__(
        self,
        step: FanOutStep,
        scope: Scope,
        state: Any,
        items: Any,
        total: int,
        slots: Mapping[str, ProgressSlot],
    ) -> None:
        self._step, self._scope, self._state, self._items = step, scope, state, items
        self.results: list[Any] = [None] * total
        self._slots = slots
        todo = []
        for at in range(total):
            slot = self._slots.get(str(at))
            if slot is not None and slot.done:
                self.results[at] = step.loaded(slot)
            else:
                todo.append(at)
        self.left = len(todo)
        self._todo: Iterator[int] = iter(todo)

    async def some(self) -> None:
        """Run instances, one after another, until none is left."""
        writer, frame = self._scope.run.writer, self._scope.frame
        for at in self._todo:
            result = await self._one(at)
            self.results[at] = result
            if writer is not None and frame is not None:
                slot = result
                if not isinstance(result, ProgressSlot):
                    slot = ProgressSlot(done=True, result=self._step.stored(result))
                _complete_slot(self._scope, str(at))
                await writer.complete_slot(frame, str(at), slot, batched=True)

    async def _one(self, at: int) -> Any:
        item = None if self._items is None else self._items[at]
        slot = self._slots.get(str(at))
        try:
            instance = self._step.instance(self._scope, self._state, item, at, slot)
            return await unwrap_suspension(instance)
        except SuspendSignal as signal:
            signal.leave("fan_out_index", at)
            raise
        except FATAL:
            raise
        except Exception as error:
            if self._step.settings.error_policy == "fail_fast":
                raise
            return ProgressSlot(done=True, error={"fan_out_index": at, **error_entry(error)})


def error_entry(error: BaseException) -> dict[str, Any]:
    """An error as an entry of an errors field."""
    cause = error.__cause__ or error
    return {
        "category": getattr(error, "category", "node_exception"),
        "message": str(error),
        "cause_type": type(cause).__name__,
    }


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
        branches: Mapping[str, tuple[Branch, CheckedProjection | None]],
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
        rest = scope.take_rest()
        progress = None if rest is None else rest[1]
        slots = {} if progress is None else progress.slots
        results: dict[str, ProgressSlot | Mapping[str, Any]] = {
            name: self._load_update(slot) for name, slot in slots.items() if slot.done
        }
        if scope.run.writer is not None and scope.frame is not None:
            scope.run.writer.begin(scope.frame, len(self.branches), progress)
        names = [name for name in self.branches if name not in results]
        await run_together([self._branch(scope, state, n, slots.get(n), results) for n in names])
        parts = [results[name] for name in self.branches if name in results]
        updates = [part for part in parts if not isinstance(part, ProgressSlot)]
        if self.errors_field is not None:
            errors = [part.error for part in parts if isinstance(part, ProgressSlot)]
            updates.append({self.errors_field: errors})
        return Contributions(updates)

    async def _branch(
        self,
        scope: Scope,
        state: Any,
        name: str,
        slot: ProgressSlot | None,
        results: dict[str, Any],
    ) -> None:
        """Run one branch and keep its update, or its error."""
        try:
            result: Any = await unwrap_suspension(self._update(scope, state, name, slot))
        except SuspendSignal as signal:
            signal.leave("branch_name", name)
            raise
        except FATAL:
            raise
        except Exception as error:
            if self.error_policy == "fail_fast":
                reason = error_text(error)
                raise ParallelBranchesBranchFailed(
                    name, reason, node=self.name, recoverable_state=state
                ) from error
            result = ProgressSlot(done=True, error={"branch_name": name, **error_entry(error)})
        if result is None:  # not to be run this time
            return
        results[name] = result
        writer, frame = scope.run.writer, scope.frame
        if writer is not None and frame is not None:
            slot = result if isinstance(result, ProgressSlot) else self._store_update(result)
            _complete_slot(scope, name)
            await writer.complete_slot(frame, name, slot)

    async def _update(self, scope: Scope, state: Any, name: str, slot: ProgressSlot | None) -> Any:
        branch, projection = self.branches[name]
        if slot is None and branch.when is not None and not branch.when(state):
            return None
        inner = Scope(
            scope.run,
            branch.subgraph or scope.graph,
            scope,
            branch_name=name,
            collecting=self.error_policy == "collect",
        )
        with scope.run.span("branch", name, inner):
            if projection is None:
                return await self._call_branch(inner, branch, state, name)
            frames = () if slot is None else slot.frames
            start, node = start_inside(inner, frames, self.name, lambda: projection.enter(state))
            attempt = _attempts(scope, inner, inner.branch_name or "", node, branch.middleware)
            result = await with_middleware(branch.middleware, attempt)(start)
            if not isinstance(result, Mapping):
                raise TypeError(f"middleware of a branch returned {described(result)}, not a dict")
            return projection.project(result)

    async def _call_branch(self, inner: Scope, branch: Branch, state: Any, name: str) -> Any:
        assert branch.call is not None
        inner.node, inner.state = name, state
        turn, call = inner.run.turn, branch.call
        if turn is not None:
            inner.node_run = turn.enter_slot(inner.path, inner.outer_span)
        token = CURRENT.set(inner)
        if branch.middleware:
            inner.body = False
            call = _in_body(inner, call, branch.middleware)
        try:
            with in_attempt(inner, again=None):
                update = await with_middleware(branch.middleware, call)(state)
            self.plan.apply(state, update, self.name)  # refused here, its error is the branch's own
        except SuspendSignal as signal:
            if turn is not None and signal.completed:
                turn.complete_slot(inner.path)
            raise
        except Exception as error:
            if turn is not None and inner.node_run is not None:
                turn.fail(inner.node_run, inner.outer_span, error)
            raise
        finally:
            CURRENT.reset(token)
        if turn is not None and inner.node_run is not None:
            turn.leave_slot(inner.node_run, inner.outer_span)
        return update

    def _store_update(self, update: Mapping[str, Any]) -> ProgressSlot:
        fields = self.plan.fields
        return ProgressSlot(
            done=True, result={name: fields[name].dump_update(v) for name, v in update.items()}
        )

    def _load_update(self, slot: ProgressSlot) -> ProgressSlot | Mapping[str, Any]:
        if slot.result is None:
            return slot
        fields = self.plan.fields
        return {name: fields[name].load_update(value) for name, value in slot.result.items()}


def _attempts(
    scope: Scope,
    inner: Scope,
    key: str,
    node: str | None,
    middleware: tuple[Middleware, ...],
    *,
    batched: bool = False,
) -> Next:
    """Runs the graph of an instance or branch from `node`. Each call is an attempt from there."""
    tries, around, path = 0, inner.base, inner.path

    async def once(begin: Any) -> Mapping[str, Any]:
        nonlocal tries
        inner.base = attempt_of(middleware, tries, around)
        if inner.run.turn is not None:
            inner.path, inner.visits = inner.run.turn.attempt(path, again=tries > 0), {}
        tries += 1
        writer, plan = scope.run.writer, inner.graph.plan
        if writer is not None and scope.frame is not None:
            inner.frame = writer.enter_slot(
                scope.frame, key, plan, begin, node, inner.rest, batched=batched
            )
        final: Mapping[str, Any] = (await run_graph(inner, begin, node)).__dict__
        return final

    return once


def _complete_slot(scope: Scope, key: str) -> None:
    """Note, in a turn, that an instance or branch of the scope's node is done."""
    turn, run = scope.run.turn, scope.node_run
    if turn is not None and run is not None:
        turn.complete_slot(turn.slot(run.part, key))


def _in_body(
    scope: Scope,
    call: Callable[[Any], Awaitable[Mapping[str, Any]]],
    middleware: tuple[Middleware, ...],
) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
    tries = 0

    async def body(state: Any) -> Mapping[str, Any]:
        nonlocal tries
        again = tries > 0
        scope.body, scope.attempt = True, attempt_of(middleware, tries, scope.base)
        tries += 1
        try:
            with in_attempt(scope, again=again):
                return await call(state)
        finally:
            scope.body = False

    return body
