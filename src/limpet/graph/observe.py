"""Observers: what happened to each attempt of each node, delivered beside the run.

Every attempt gives `started` and then exactly one of `completed` and `suspended`. Events of one
invocation are delivered one after another, each to the observers of the graphs around the node, the
outermost first, and then to those of the invocation. An observer that raises is logged and changes
nothing. The run does not wait for observers; `drain` does.

A tracer is called in line instead, around what it traces, so that its spans are current there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from limpet.errors import GraphMisused
from limpet.model import described

_LOG: Final = logging.getLogger("limpet.graph")

Phase: TypeAlias = Literal["started", "completed", "suspended"]
SpanKind: TypeAlias = Literal["invocation", "node", "subgraph", "fan_out_instance", "branch"]


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of one attempt of a node.

    `namespace` has the names of the nodes around it, the outermost first, and its own at the end.
    """

    phase: Phase
    node_name: str
    namespace: tuple[str, ...]
    step: int
    pre_state: Any
    post_state: Any = None
    error: BaseException | None = None
    parent_states: tuple[Any, ...] = ()
    attempt_index: int = 0
    fan_out_index: int | None = None
    branch_name: str | None = None


Observer: TypeAlias = Callable[[NodeEvent], Awaitable[None] | None]


def checked_observer(observer: Observer) -> Observer:
    """The observer, if it can be called. Raises GraphMisused."""
    if not callable(observer):
        raise GraphMisused(f"{described(observer)} is not an observer. Pass a function.")
    return observer


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracer is told about the part of a run that it traces."""

    kind: SpanKind
    name: str
    invocation_id: str
    correlation_id: str
    session_id: str | None = None
    namespace: tuple[str, ...] = ()
    attempt_index: int = 0
    fan_out_index: int | None = None
    branch_name: str | None = None


class Tracer(Protocol):
    """Opens a span around each part of a run."""

    def span(self, span: Span, /) -> AbstractContextManager[Any]:
        """A context manager that is entered before the part runs and exited after it.

        It sees the exception that the part raised, and must not swallow it.
        """
        ...


class Drained(msgspec.Struct, frozen=True):
    """What `drain` found: how many events had not been delivered when it stopped waiting."""

    undelivered: int
    timed_out: bool


class Delivery:
    """Delivers the events of one invocation, in order, in a task of its own."""

    __slots__ = ("_events", "_graph", "task")

    def __init__(self, deliveries: set[Delivery]) -> None:
        self._events: asyncio.Queue[tuple[NodeEvent, tuple[Observer, ...]]] = asyncio.Queue()
        self._graph = deliveries
        self.task: asyncio.Task[None] | None = None

    def put(self, event: NodeEvent, observers: tuple[Observer, ...]) -> None:
        """Queue an event. The task is started when it is needed and ends when it has nothing."""
        self._events.put_nowait((event, observers))
        if self.task is None or self.task.done():
            self._graph.add(self)  # keeps the task alive, and lets drain find it
            self.task = asyncio.get_running_loop().create_task(self._deliver())

    @property
    def waiting(self) -> int:
        """How many events have not been delivered; one may be under way."""
        return self._events.qsize() + (self.task is not None and not self.task.done())

    async def _deliver(self) -> None:
        try:
            while not self._events.empty():
                event, observers = self._events.get_nowait()
                for observer in observers:
                    await _tell(observer, event)
        finally:
            self._graph.discard(self)


async def _tell(observer: Observer, event: NodeEvent) -> None:
    try:
        answer = observer(event)
        if inspect.isawaitable(answer):
            await answer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Something that an observer waits for may be cancelled, or it may try to suspend: that is
        # its failure. Only if the delivery is cancelled, at the end of the loop, does it stop.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        what = (event.node_name, event.phase, raised(error))
        _LOG.error("observer failed: node=%s phase=%s error=%s", *what)


def raised(error: BaseException) -> str:
    """For the log: the type of an error, file and line; not its text, which may quote state."""
    frame = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at={PurePath(frame.filename).name}:{frame.lineno}"


async def drain(deliveries: set[Delivery], seconds: float | None) -> Drained:
    """Wait until the deliveries are done, `seconds` at most."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while tasks := [d.task for d in deliveries if d.task is not None and not d.task.done()]:
        left = None if until is None else max(0.0, until - loop.time())
        await asyncio.wait(tasks, timeout=left)
        if left is not None and loop.time() >= (until or 0.0):
            break
    waiting = sum(delivery.waiting for delivery in deliveries)
    return Drained(waiting, waiting > 0)
