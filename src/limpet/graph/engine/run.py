"""Running: the loop that takes a graph from node to node.

A step is: run the node, fold its update into the state, evaluate its edge, tell the observers, save
a checkpoint. Where nobody watches a function without middleware, it is called directly; without a
checkpointer only the first three are left, and a step costs little more than the node itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from limpet.errors import (
    GraphError,
    NodeException,
    StepLimitReached,
    SuspensionError,
)
from limpet.errors.graph import said
from limpet.graph.context import CURRENT, Scope
from limpet.graph.engine.track import Tracker
from limpet.graph.suspend import SuspendSignal, unwrap, unwrapped

Next: TypeAlias = Callable[[Any], Awaitable[Mapping[str, Any]]]
Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Mapping[str, Any]]]

_BREATHE: Final = 128  # after so many steps others on the event loop get their turn


class Step(Protocol):
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


async def run_graph(scope: Scope, state: Any, node: str | None) -> Any:
    """Run the scope's graph from `node` to its end; the final state."""
    run, steps, plan = scope.run, scope.graph.steps, scope.graph.plan
    unseen, tracker = not scope.watched and run.tracer is None, run.tracker
    left = limit = run.steps_max or scope.graph.steps_max
    scope.body = True  # of an instance or branch: the attempt before may have left it
    token = CURRENT.set(scope)
    try:
        while node is not None:
            if not left:
                raise StepLimitReached(node, limit, state)
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
                if tracker is not None:
                    scope.rest = None
                    if _completed(scope, tracker, state, update, target):
                        await tracker.save(state if scope.outer is None else None)
                node = target
            else:
                state, node = await _advance(scope, step, state)
        return state
    finally:
        CURRENT.reset(token)


async def _advance(scope: Scope, step: Step, state: Any) -> tuple[Any, str | None]:
    """One step with all that may watch it."""
    attempts = _Attempts(scope, step, state)
    scope.body = False  # until the node itself runs
    try:
        call = chained(step.middleware, attempts)(state)
        update = await (unwrapped(call) if step.middleware else call)
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
    tracker = scope.run.tracker
    if tracker is not None and _completed(scope, tracker, new, update, target):
        await tracker.save(new if scope.outer is None else None)
    return new, target


def _completed(scope: Scope, tracker: Tracker, new: Any, update: Any, target: str | None) -> bool:
    """Note the step. Whether it is to be saved now."""
    if scope.frame is None:
        return False
    return tracker.completed(scope.frame, new, update, target, scope.position())


class _Attempts:
    """The attempts of one node: each is announced when it starts and once when it ends.

    Nothing is announced of a subgraph: its inner nodes have events of their own.
    """

    __slots__ = ("_count", "_failed", "_open", "_pre", "_scope", "_state", "_step", "_tells")

    def __init__(self, scope: Scope, step: Step, state: Any) -> None:
        self._scope, self._step, self._state = scope, step, state
        self._count, self._open, self._pre = 0, False, None
        self._tells = scope.watched and step.counts
        self._failed: NodeException | None = None

    async def __call__(self, state: Any) -> Any:
        """Run the node once. A success stays open until its edge has been evaluated."""
        scope, step, tracer = self._scope, self._step, self._scope.run.tracer
        self.end()
        scope.attempt = attempt_of(step.middleware, self._count, scope.base)
        self._pre, self._open = state, True
        self._count += 1
        if self._tells:
            scope.emit("started", state)
        wrapped, scope.body = scope.body, step.fn is not None
        try:
            if tracer is None:
                return await unwrapped(step.run(scope, state))
            with scope.run.span("node", step.name, scope):
                return await unwrapped(step.run(scope, state))
        except SuspendSignal as signal:
            self._open = False
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


def attempt_of(middleware: tuple[Middleware, ...], count: int, base: int) -> int:
    """Which attempt this is, from 0: that of the innermost retry around it.

    `count` is how often the middleware has called what it stands around; unless it retries, the
    attempt is that of what is around it, `base`.
    """
    retries = count > 0 or any(hasattr(layer, "max_attempts") for layer in middleware)
    return count if retries else base


def chained(middleware: tuple[Middleware, ...], inner: Next) -> Next:
    """The innermost call with its middleware around it, the first one outermost."""
    call = inner
    for layer in reversed(middleware):
        call = _layered(layer, call)
    return call


def _layered(layer: Middleware, call: Next) -> Next:
    async def through(state: Any) -> Mapping[str, Any]:
        return await layer(state, call)

    return through


def passes(step: Step, error: Exception) -> bool:
    """Whether an error leaves a node as it is: one of a graph inside it, or of suspending."""
    return isinstance(error, SuspensionError if step.fn is not None else GraphError)


def failure(step: Step, error: Exception, state: Any) -> NodeException:
    """What the error of a node becomes."""
    return NodeException(step.name, said(error), state)


async def together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
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
