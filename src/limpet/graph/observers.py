"""Observers and tracers: what happened to each attempt of each node, delivered beside the run.

Every attempt gives `started` and then exactly one of `completed` and `suspended`. Events of one
invocation are delivered one after another, each to the observers of the graphs around the node, the
outermost first, and then to those of the invocation. An observer that raises is logged and changes
nothing. The run does not wait for observers; `drain` does, and `drain_events_for` does for one
invocation.

A tracer is called in line instead, around what it traces, so that its spans are current there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from limpet.errors import GraphMisused
from limpet.model import described

_LOG: Final = logging.getLogger("limpet.graph")
Phase: TypeAlias = Literal["started", "completed", "suspended"]
_PHASES: Final[frozenset[str]] = frozenset(["started", "completed", "suspended"])
SpanKind: TypeAlias = Literal["invocation", "node", "subgraph", "fan_out_instance", "branch"]


class SuspensionDescriptor(msgspec.Struct, frozen=True):
    """The signal that a suspended invocation waits for. `metadata` is plain JSON data."""

    signal_id: str
    metadata: dict[str, Any] = {}


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of one attempt of a node.

    `namespace` has the names of the nodes around it, the outermost first, and its own at the end.
    The two chains have an entry for each node around it: the index of the instance or the name of
    the branch that it is in there, None where that node is of another kind. `fan_out_index` and
    `branch_name` are the innermost of them. `attempt_index` is that of the innermost retry around
    the node, from 0. `error` is what the node raises, with its category; `descriptor` is there if
    the node is suspended.
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
    fan_out_index_chain: tuple[int | None, ...] = ()
    branch_name_chain: tuple[str | None, ...] = ()
    session_id: str | None = None
    descriptor: SuspensionDescriptor | None = None


Observer: TypeAlias = Callable[[NodeEvent], Awaitable[None] | None]


class Watcher(NamedTuple):
    """An observer, and the phases of which it gets events."""

    observer: Observer
    phases: frozenset[str]


def watcher(observer: Observer, phases: Iterable[Phase] | None = None) -> Watcher:
    """An observer of these phases, of all of them by default. Raises GraphMisused."""
    if not callable(observer):
        raise GraphMisused(f"{described(observer)} is not an observer. Pass a function.")
    if phases is None:
        return Watcher(observer, _PHASES)
    wanted = frozenset(phases) if isinstance(phases, Iterable) else frozenset()
    if isinstance(phases, str) or not wanted or not wanted <= _PHASES:
        raise GraphMisused(
            f"phases is {described(phases)}. Pass a set of one or more of 'started', 'completed' "
            "and 'suspended', or leave it out for all of them."
        )
    return Watcher(observer, wanted)


class GraphSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run, described for the tracer that traces it."""

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

    def span(self, span: GraphSpan, /) -> AbstractContextManager[Any]:
        """A context manager that is entered before the part runs and exited after it.

        It sees the exception that the part raised, and must not swallow it.
        """
        ...


class Drained(msgspec.Struct, frozen=True):
    """The result of a drain: how many events were undelivered when it stopped waiting."""

    undelivered_count: int
    timeout_reached: bool


class Delivery:
    """Delivers the events of one invocation, in order, in a task of its own."""

    __slots__ = ("_done", "_events", "_graph", "_put", "_waiters", "invocation_id", "task")

    def __init__(self, invocation_id: str, deliveries: set[Delivery]) -> None:
        self._events: deque[tuple[NodeEvent, Sequence[Observer]]] = deque()
        self._graph, self.invocation_id = deliveries, invocation_id
        self._put = self._done = 0  # events so far: queued, and delivered or dropped
        self._waiters: list[tuple[int, asyncio.Future[int]]] = []  # until so many are done
        self.task: asyncio.Task[None] | None = None

    def put(self, event: NodeEvent, observers: Sequence[Observer]) -> None:
        """Queue an event. The task is started when it is needed and ends when it has nothing."""
        self._events.append((event, observers))
        self._put += 1
        if self.task is None or self.task.done():
            self._graph.add(self)  # keeps the task alive, and lets drain find it
            self.task = asyncio.get_running_loop().create_task(self._deliver())

    @property
    def waiting(self) -> int:
        """The number of undelivered events; one may be under way."""
        return self._put - self._done

    def caught_up(self) -> tuple[int, asyncio.Future[int]]:
        """Return the count of events so far, and a future that has how many were dropped once
        all are delivered."""
        made = (self._put, asyncio.get_running_loop().create_future())
        self._waiters.append(made)
        return made

    def left(self, until: int) -> int:
        """The number of undelivered events among the first `until`."""
        return max(0, until - self._done)

    def drop(self) -> None:
        """Deliver nothing more of what is queued. The observer that is busy is cancelled."""
        self._events.clear()
        if self.task is not None:
            self.task.cancel()
            self.task = None  # an event that comes later has a task of its own
        self._graph.discard(self)
        for until, future in self._waiters:
            if not future.done():
                future.set_result(self.left(until))
        self._waiters.clear()
        self._done = self._put

    async def _deliver(self) -> None:
        own = asyncio.current_task()
        try:
            while self._events and self.task is own:
                event, observers = self._events.popleft()
                for observer in observers:
                    await _tell(observer, event)
                if self.task is own:
                    self._note()
        finally:
            if self.task is own:
                self._graph.discard(self)

    def _note(self) -> None:
        """One more event is delivered."""
        self._done += 1
        for until, future in self._waiters:
            if until <= self._done and not future.done():
                future.set_result(0)
        self._waiters = [one for one in self._waiters if not one[1].done()]


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
    """Return for the log the type of an error, file and line; not its text, which may quote
    state."""
    frame = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at={PurePath(frame.filename).name}:{frame.lineno}"


async def drain(deliveries: set[Delivery], seconds: float | None) -> Drained:
    """Wait until the deliveries are done, `seconds` at most; what is left then is dropped.

    An event that came late would be taken for one of the invocation that runs by then.
    """
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while tasks := [d.task for d in deliveries if d.task is not None and not d.task.done()]:
        _check_outside(tasks)
        left = None if until is None else max(0.0, until - loop.time())
        await asyncio.wait(tasks, timeout=left)
        if left is not None and loop.time() >= (until or 0.0):
            break
    waiting = sum(delivery.waiting for delivery in deliveries)
    if waiting:
        for delivery in tuple(deliveries):
            delivery.drop()
    return Drained(waiting, waiting > 0)


async def drain_events_for(
    deliveries: set[Delivery], invocation_id: str, seconds: float | None
) -> Drained:
    """Wait until what the invocation has emitted up to now is delivered, `seconds` at most."""
    pending = [d for d in deliveries if d.invocation_id == invocation_id and d.waiting]
    _check_outside([delivery.task for delivery in pending])
    asked = [(delivery, *delivery.caught_up()) for delivery in pending]
    if not asked:
        return Drained(0, False)
    _, late = await asyncio.wait([future for *_, future in asked], timeout=seconds)
    left = 0
    for delivery, until, future in asked:
        left += delivery.left(until) if future in late else future.result()
        future.cancel()
    return Drained(left, bool(late))


def _check_outside(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Refuse an observer that would wait for its own events."""
    if asyncio.current_task() in tasks:
        raise GraphMisused(
            "an observer called drain, and would wait for itself. Call it in a node, or after the "
            "invocation."
        )
