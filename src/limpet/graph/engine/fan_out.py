"""Fan-out: one subgraph run once for each item of a list, or a number of times.

Instances run at the same time, as many as `concurrency` allows; their results are merged in the
order of their indexes when all have ended. Each instance is saved when it is done, so a resumed run
repeats none that had finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from limpet.errors import (
    CheckpointError,
    CheckpointRecordInvalid,
    FanOutEmpty,
    NodeException,
    SuspensionError,
)
from limpet.errors.graph import said
from limpet.graph.checkpoint import Progress, Slot
from limpet.graph.context import Scope
from limpet.graph.engine.nodes import Edge
from limpet.graph.engine.run import Middleware, attempt_of, chained, run_graph, together
from limpet.graph.plan import GraphPlan
from limpet.graph.project import Crossing
from limpet.graph.suspend import SuspendSignal, unwrapped
from limpet.model import described

ErrorPolicy: TypeAlias = Literal["fail_fast", "collect"]
OnEmpty: TypeAlias = Literal["raise", "noop"]
# What a resumed run does with an instance that had begun and was not done.
ResumeInstances: TypeAlias = Literal["continue", "restart"]
# Never collected as the failure of one instance: the whole run cannot go on.
FATAL = (CheckpointError, SuspensionError)


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
        crossing: Crossing,
        how: FanOut,
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.graph, self.crossing, self.how = name, graph, crossing, how
        self.middleware, self.next = middleware, edge
        self._collected = (how.collect_field, *how.extra_outputs.values())

    async def run(self, scope: Scope, state: Any) -> Any:
        """Run what is left of the instances; the update with the results of all of them."""
        items, total = self._items(state)
        found = scope.take_rest()
        progress = None if found is None else found[1]
        if progress is not None and progress.total != total:
            reason = f"{self.name!r} had {progress.total} instances and now has {total}"
            raise CheckpointRecordInvalid(scope.run.invocation_id, reason)
        if total == 0:
            return self._empty(state)
        tracker, frame = scope.run.tracker, scope.frame
        if tracker is not None and frame is not None:
            tracker.begin(frame, total, progress)
        work = _Work(self, scope, state, items, total, self._found(scope, progress))
        concurrency = self._concurrency(state, total)
        try:
            await together([work.some() for _ in range(min(concurrency, work.left))])
        except FATAL:
            raise
        except Exception as error:
            reason = said(error)
            raise NodeException(self.name, reason, state) from error
        return self._update(work.results)

    def _found(self, scope: Scope, progress: Progress | None) -> Mapping[str, Slot]:
        """What a resumed run found of the instances.

        Those that are to restart are left out, unless the invocation has taken a signal: what it
        brought stands in the state of one of them.
        """
        if progress is None:
            return {}
        taken = scope.run.tracker is not None and scope.run.tracker.signals
        if self.how.resume_instances == "continue" or taken:
            return progress.slots
        return {key: slot for key, slot in progress.slots.items() if slot.done}

    def _items(self, state: Any) -> tuple[Any, int]:
        how = self.how
        if how.items_field is not None:
            items = getattr(state, how.items_field)
            return items, len(items)
        count = how.count(state) if callable(how.count) else how.count
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"the count of a fan-out is a number from 0, not {count!r}")
        return None, count

    def _concurrency(self, state: Any, total: int) -> int:
        asked = self.how.concurrency
        asked = asked(state) if callable(asked) else asked
        if asked is None:
            return total
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
            raise ValueError(f"the concurrency of a fan-out is a number from 1, not {asked!r}")
        return asked

    def _empty(self, state: Any) -> dict[str, Any]:
        if self.how.on_empty == "raise":
            raise FanOutEmpty(self.name, state)
        return self._update([])

    def _update(self, results: list[Slot | dict[str, Any]]) -> dict[str, Any]:
        how = self.how
        # Of a degraded instance a field may be missing: it is null at its place, so that the lists
        # of one fan-out stay aligned.
        good = [result for result in results if isinstance(result, dict)]
        update: dict[str, Any] = {how.target_field: [r.get(how.collect_field) for r in good]}
        for outer, inner in how.extra_outputs.items():
            update[outer] = [result.get(inner) for result in good]
        if how.count_field is not None:
            update[how.count_field] = len(results)
        if how.errors_field is not None:
            update[how.errors_field] = [r.error for r in results if isinstance(r, Slot)]
        return update

    async def instance(
        self, scope: Scope, state: Any, item: Any, at: int, found: Slot | None
    ) -> Any:
        """Run one instance, or the rest of it; the inner fields that are collected."""
        graph, run, how = self.graph, scope.run, self.how
        inner = Scope(run, graph, scope, fan_out_index=at, collecting=how.error_policy == "collect")
        if found is not None and found.frames:
            frame = found.frames[0]
            start, node = graph.plan.load(frame.state, f"the state in {self.name!r}"), frame.node
            inner.rest = (found.frames[1:], frame.progress)
        else:
            more = {} if how.item_field is None else {how.item_field: item}
            start, node = self.crossing.enter(state, **more), graph.entry

        tries, around = 0, inner.base

        async def once(begin: Any) -> dict[str, Any]:
            nonlocal tries
            inner.base = attempt_of(how.instance_middleware, tries, around)
            tries += 1
            if run.tracker is not None and scope.frame is not None:  # each attempt begins again
                inner.frame = run.tracker.enter_slot(
                    scope.frame, str(at), graph.plan, begin, node, inner.rest, batched=True
                )
            held = (await run_graph(inner, begin, node)).__dict__
            return {name: held[name] for name in self._collected}

        if not how.instance_middleware and run.tracer is None:
            return await once(start)
        with run.span("fan_out_instance", self.name, inner):
            result = await chained(how.instance_middleware, once)(start)
        if not isinstance(result, Mapping):
            raise TypeError(f"middleware of an instance returned {described(result)}, not a dict")
        return {name: result[name] for name in self._collected if name in result}

    def stored(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The stored form of an instance's result."""
        fields = self.graph.plan.fields
        return {n: None if v is None else fields[n].dump(v) for n, v in result.items()}

    def loaded(self, slot: Slot) -> Slot | dict[str, Any]:
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
        found: Mapping[str, Slot],
    ) -> None:
        self._step, self._scope, self._state, self._items = step, scope, state, items
        self.results: list[Any] = [None] * total
        self._found = found
        todo = []
        for at in range(total):
            slot = self._found.get(str(at))
            if slot is not None and slot.done:
                self.results[at] = step.loaded(slot)
            else:
                todo.append(at)
        self.left = len(todo)
        self._todo: Iterator[int] = iter(todo)

    async def some(self) -> None:
        """Run instances, one after another, until none is left."""
        tracker, frame = self._scope.run.tracker, self._scope.frame
        for at in self._todo:
            result = await self._one(at)
            self.results[at] = result
            if tracker is not None and frame is not None:
                slot = result
                if not isinstance(result, Slot):
                    slot = Slot(done=True, result=self._step.stored(result))
                await tracker.completed_slot(frame, str(at), slot, batched=True)

    async def _one(self, at: int) -> Any:
        item = None if self._items is None else self._items[at]
        found = self._found.get(str(at))
        try:
            instance = self._step.instance(self._scope, self._state, item, at, found)
            return await unwrapped(instance)
        except SuspendSignal as signal:
            signal.leave("fan_out_index", at)
            raise
        except FATAL:
            raise
        except Exception as error:
            if self._step.how.error_policy == "fail_fast":
                raise
            return Slot(done=True, error={"fan_out_index": at, **described_error(error)})


def described_error(error: BaseException) -> dict[str, Any]:
    """An error as an entry of an errors field."""
    cause = error.__cause__ or error
    return {
        "category": getattr(error, "category", "node_exception"),
        "message": str(error),
        "cause_type": type(cause).__name__,
    }
