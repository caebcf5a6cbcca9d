"""The loop that takes a graph from node to node, and the nodes that are functions or graphs.

A step is: run the node, fold its update into the state, evaluate its edge, notify the observers,
save a checkpoint. Where nobody watches a function without middleware, it is called directly;
without a checkpointer only the first three are left, and a step costs little more than the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, TypeAlias

from limpet.errors import (
    CheckpointError,
    EdgeException,
    GraphError,
    Interrupted,
    NodeException,
    RoutingError,
    StepLimitReached,
    SuspensionError,
    TurnMismatch,
    error_text,
)
from limpet.graph.checkpoint import Frame
from limpet.graph.context import CURRENT, GraphPlan, Scope, SuspendSignal, unwrap, unwrap_suspension
from limpet.graph.engine.checkpoint_writer import CheckpointWriter
from limpet.graph.state import CheckedProjection
from limpet.model import described

Next: TypeAlias = Callable[[Any], Awaitable[Mapping[str, Any]]]
Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Mapping[str, Any]]]
# An error that ends the run, whatever node it comes from: of suspending, or of the turn.
_STOPS: Final = (SuspensionError, TurnMismatch, Interrupted)
# Never collected as the failure of one instance, and not retried: the whole run cannot go on.
FATAL: Final = (CheckpointError, *_STOPS)
_BREATHE: Final = 128  # after so many steps others on the event loop get their turn


class End:
    """The type of END."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "END"


END: Final = End()
"""The target of an edge that ends the graph."""


class Edge:
    """The edge that leaves a node: one target, or a function that chooses one."""

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
            target = self.fn(state)
        except Exception as error:
            reason = error_text(error)
            raise EdgeException(reason, node=self.source, recoverable_state=state) from error
        if target is END and self.ends:
            return None
        if isinstance(target, str) and target in self.names:
            return target
        named = repr(target) if isinstance(target, (str, End)) else described(target)
        raise RoutingError(named, node=self.source, recoverable_state=state)


class GraphStep(Protocol):
    """A node as the engine sees it, with the edge that leaves it."""

    name: str
    fn: Callable[[Any], Awaitable[Mapping[str, Any]]] | None  # of a function node
    middleware: tuple[Middleware, ...]
    # A step of its own, with a number and events. A subgraph is not: its inner nodes are.
    counts: bool

    def run(self, scope: Scope, state: Any, /) -> Awaitable[Any]:
        """The node's update."""
        ...

    def next(self, state: Any, /) -> str | None:
        """The node that follows; None at the end. Raises EdgeException and RoutingError."""
        ...


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
        projection: CheckedProjection,
        middleware: tuple[Middleware, ...],
        edge: Edge,
    ) -> None:
        self.name, self.graph, self.projection = name, graph, projection
        self.middleware, self.next = middleware, edge

    async def run(self, scope: Scope, state: Any) -> Any:
        """Run the subgraph, or the rest of it; the update that it gives."""
        inner, run = Scope(scope.run, self.graph, scope), scope.run
        rest = scope.take_rest()
        frames = () if rest is None else rest[0]
        start, node = start_inside(inner, frames, self.name, lambda: self.projection.enter(state))
        if run.writer is not None and scope.frame is not None:
            inner.frame = run.writer.push(scope.frame, self.graph.plan, start, node, inner.rest)
        with run.span("subgraph", self.name, scope):
            final = await run_graph(inner, start, node)
        return self.projection.leave(final)


def start_inside(
    inner: Scope, frames: tuple[Frame, ...], name: str, fresh: Callable[[], Any]
) -> tuple[Any, str | None]:
    """The state and node at which a graph inside the node `name` starts.

    That is where a resumed run stopped, if it had frames there; else the entry, with `fresh()`.
    """
    graph = inner.graph
    if not frames:
        return fresh(), graph.entry
    inner.rest, inner.resumed = (frames[1:], frames[0].progress), True
    return graph.plan.load(frames[0].state, f"the state in {name!r}"), frames[0].node


async def run_graph(scope: Scope, state: Any, node: str | None) -> Any:
    """Run the scope's graph from `node` to its end; the final state."""
    run, steps, plan = scope.run, scope.graph.steps, scope.graph.plan
    writer = run.writer
    unseen = not scope.watched and run.tracer is None and run.turn is None
    left = limit = run.steps_max or scope.graph.steps_max
    scope.body = True  # of an instance or branch: the attempt before may have left it
    token = CURRENT.set(scope)
    try:
        while node is not None:
            if not left:
                raise StepLimitReached(limit, node=node, recoverable_state=state)
            left -= 1
            step = steps[node]
            scope.node, scope.state, scope.attempt = node, state, scope.base
            scope.number = run.step
            if step.counts:
                run.step += 1
                if not run.step % _BREATHE:
                    await asyncio.sleep(0)
            if unseen and step.fn is not None and not step.middleware:
                try:
                    try:
                        update = await step.fn(state)
                    except BaseExceptionGroup as group:
                        unwrap(group)
                except Exception as error:
                    if passes(step, error):
                        raise
                    raise failure(step, error, state) from error
                state = plan.apply(state, update, node)
                target = step.next(state)
                if writer is not None:
                    scope.rest = None
                    if _note_step(scope, writer, state, update, target):
                        await writer.save(state if scope.outer is None else None)
                node = target
            else:
                state, node = await _advance(scope, step, state)
        return state
    finally:
        CURRENT.reset(token)


async def _advance(scope: Scope, step: GraphStep, state: Any) -> tuple[Any, str | None]:
    """One step with all that may watch it."""
    turn = scope.run.turn
    if turn is None:
        return await _step(scope, step, state)
    run = scope.enter(turn, step.name)
    with turn.calls(run.visit):
        try:
            return await _step(scope, step, state)
        except Exception as error:
            turn.fail(run, scope.outer_span, error)
            raise


async def _step(scope: Scope, step: GraphStep, state: Any) -> tuple[Any, str | None]:
    attempts = _Attempts(scope, step, state)
    scope.body = False  # until the node itself runs
    try:
        call = with_middleware(step.middleware, attempts)(state)
        update = await (unwrap_suspension(call) if step.middleware else call)
    except Exception as error:
        raised = attempts.raised(error)
        attempts.end(error=raised)
        if raised is error:
            raise
        raise raised from error
    except BaseException as error:
        attempts.end(error=error)
        raise
    try:
        new = scope.graph.plan.apply(state, update, step.name)
        target = step.next(new)
    except Exception as error:
        attempts.end(error=error)
        raise
    attempts.end(post=new)
    scope.body, scope.rest = True, None
    _complete_run(scope)
    writer = scope.run.writer
    if writer is not None and _note_step(scope, writer, new, update, target):
        await writer.save(new if scope.outer is None else None)
    return new, target


def _note_step(
    scope: Scope, writer: CheckpointWriter, new: Any, update: Any, target: str | None
) -> bool:
    """Note the step. True if it is to be saved now."""
    if scope.frame is None:
        return False
    return writer.complete_node(scope.frame, new, update, target, scope.position())


class _Attempts:
    """The attempts of one node: each is announced when it starts and once when it ends.

    Nothing is announced of a subgraph: its inner nodes have events of their own.
    """

    __slots__ = ("_count", "_failed", "_open", "_pre", "_scope", "_state", "_step", "_tells")

    def __init__(self, scope: Scope, step: GraphStep, state: Any) -> None:
        self._scope, self._step, self._state = scope, step, state
        self._count, self._open, self._pre = 0, False, None
        self._tells = scope.watched and step.counts
        self._failed: NodeException | None = None

    async def __call__(self, state: Any) -> Any:
        """Run the node once. A success stays open until its edge has been evaluated."""
        scope, step, tracer = self._scope, self._step, self._scope.run.tracer
        self.end()
        scope.attempt = attempt_of(step.middleware, self._count, scope.base)
        again = self._count > 0
        self._pre, self._open = state, True
        self._count += 1
        if self._tells:
            scope.emit("started", state)
        wrapped, scope.body = scope.body, step.fn is not None
        try:
            with in_attempt(scope, again=again):
                if tracer is None:
                    return await unwrap_suspension(step.run(scope, state))
                with scope.run.span("node", step.name, scope):
                    return await unwrap_suspension(step.run(scope, state))
        except SuspendSignal as signal:
            self._open = False
            if signal.completed and step.fn is not None:
                _complete_run(scope)
            if self._tells:
                scope.emit("suspended", state, descriptor=signal.descriptor)
            raise
        except BaseException as error:
            self.end(error=self.raised(error))
            raise
        finally:
            scope.body = wrapped

    def end(self, post: Any = None, error: BaseException | None = None) -> None:
        """Announce the end of the attempt that is open, if there is one."""
        if self._open:
            self._open = False
            if self._tells:
                self._scope.emit("completed", self._pre, post, error)

    def raised(self, error: BaseException) -> BaseException:
        """The error as it leaves the node, with its category: events have the one that is raised"""
        if not isinstance(error, Exception) or passes(self._step, error):
            return error
        if self._failed is None or self._failed.__cause__ is not error:
            self._failed = failure(self._step, error, self._state)
            self._failed.__cause__ = error
        return self._failed


def in_attempt(scope: Scope, *, again: bool | None) -> AbstractContextManager[None]:
    """One attempt of the scope's node: in a turn, its calls are made under a name of its own.
    `again` says that it follows another attempt of this run; None, that it is around all of them.
    """
    turn, run = scope.run.turn, scope.node_run
    if turn is None or run is None:
        return nullcontext()
    run.begin_attempt(turn.attempt(run.visit, again=again is True))
    return turn.calls(run.part)


def _complete_run(scope: Scope) -> None:
    """Note, in a turn, that the scope's node is done."""
    if scope.run.turn is not None and scope.node_run is not None:
        scope.run.turn.complete(scope.node_run, scope.outer_span)


def attempt_of(middleware: tuple[Middleware, ...], count: int, base: int) -> int:
    """The number of this attempt, from 0: that of the innermost retry around it.

    `count` is how often the middleware has called what it stands around; unless it retries, the
    attempt is that of what is around it, `base`.
    """
    retries = count > 0 or any(hasattr(layer, "max_attempts") for layer in middleware)
    return count if retries else base


def with_middleware(middleware: tuple[Middleware, ...], inner: Next) -> Next:
    """The innermost call with its middleware around it, the first one outermost."""
    call = inner
    for layer in reversed(middleware):
        call = _wrap_layer(layer, call)
    return call


def _wrap_layer(layer: Middleware, call: Next) -> Next:
    async def through(state: Any) -> Mapping[str, Any]:
        return await layer(state, call)

    return through


def passes(step: GraphStep, error: Exception) -> bool:
    """True if an error leaves a node as it is: of a graph inside it, of suspending, of its turn."""
    return isinstance(error, _STOPS if step.fn is not None else (GraphError, *_STOPS))


def failure(step: GraphStep, error: Exception, state: Any) -> NodeException:
    """The NodeException that reports an error of a node."""
    return NodeException(error_text(error), node=step.name, recoverable_state=state)


async def run_together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs at the same time. The first that fails ends the others, and is raised.

    All of them have ended when this returns or raises, also if this task is cancelled.
    """
    failed: list[BaseException] = []

    async def watched(job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except BaseException as error:
            failed.append(error)
            raise

    tasks = [asyncio.ensure_future(watched(job)) for job in jobs]
    if not tasks:  # a resumed run may find that all had been done
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        first = failed[0] if failed else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if first is not None:
        raise first
