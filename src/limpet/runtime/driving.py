"""Driving a harness: its coroutine in a task that can be stopped for a reason.

Whoever stops it says why. A pause, a lost lease and the end of the worker cancel it; an interrupt
is raised in it as Interrupted, at its next await.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Literal, TypeAlias

from limpet.errors import Interrupted, InvalidInput, TurnMisused
from limpet.model import described
from limpet.session.logs import SESSION

Stopped: TypeAlias = Literal["paused", "interrupted", "lost", "stopped", "mismatch", "ended"]
GRACE_SECONDS: Final = 10.0  # for a harness that was stopped to come to its end


def harness_of(given: Any) -> Callable[[Any], Awaitable[Any]]:
    """The function that runs a turn. Raises InvalidInput."""
    run = getattr(given, "run", given)
    if not callable(run) or inspect.isclass(given):
        raise InvalidInput(
            f"{described(given)} is not a harness. Pass an async function of a turn, or an object "
            "with an async run(turn)."
        )
    if _is_surely_plain(run):
        raise InvalidInput(
            f"the harness {described(given)} is not async. Define it with `async def`."
        )
    found: Callable[[Any], Awaitable[Any]] = run
    return found


class Driver:
    """One run of a harness."""

    def __init__(self, key: object) -> None:
        self._key = key
        self._task: asyncio.Task[Any] | None = None
        self._running: Awaitable[Any] | None = None
        self._over: asyncio.Future[None] | None = None  # for whoever waits for the end
        self._gave_up = False  # a run that was stopped takes too long
        self._is_over = False  # the harness returned or raised
        self.stopped: Stopped | None = None
        self.note: str | None = None

    def stop(self, why: Stopped, note: str | None = None) -> None:
        """End the run. The first reason counts, but for a lost lease, after which nothing does."""
        if self.stopped is None or why == "lost":
            self.stopped, self.note = why, note
            if self._task is not None:
                self._cancel(self._task)

    def check(self) -> None:
        """Raise if the run has been stopped: what it does now would come too late."""
        if self.stopped == "interrupted":
            raise Interrupted(self._key, self.note)
        if self.stopped is not None:
            raise asyncio.CancelledError(self.stopped)
        if self._is_over:
            raise TurnMisused("the turn is over. In the harness, await everything that it starts.")

    async def run(self, harness: Callable[[Any], Awaitable[Any]], turn: Any) -> Exception | None:
        """Run it to its end, or until it is stopped; the error it raised, if any."""
        try:
            running = harness(turn)
        except Exception as mistake:  # it takes no turn, or is not async and raised
            return mistake
        if not inspect.isawaitable(running):
            return TurnMisused("a harness is an async function. Define it with `async def`.")
        self._running = running
        task = self._task = asyncio.get_running_loop().create_task(self._main(running))
        task.add_done_callback(self._never_began)
        if self.stopped is not None:
            self._cancel(task)
        try:
            await self._ended(task)
        except asyncio.CancelledError:  # whoever runs the wake is cancelled: so is the harness
            self.stop("stopped")
            await self._ended(task)
            raise
        self._is_over = True
        if not task.done() or task.cancelled():
            if self.stopped is None:
                return TurnMisused("the harness cancelled itself. Let it return or raise.")
            return None
        error = task.exception()
        if error is None or isinstance(error, Exception):
            return error
        raise error

    async def _ended(self, task: asyncio.Task[Any]) -> None:
        """Wait for the end; of one that was stopped, not for long."""
        if not task.done() and not self._gave_up:
            self._over = asyncio.get_running_loop().create_future()
            await self._over
        if not task.done():
            SESSION.warning("harness does not end: session=%s why=%s", self._key, self.stopped)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up)
        task.add_done_callback(lambda _: timer.cancel())

    def _give_up(self) -> None:
        self._gave_up = True
        self._end()

    def _never_began(self, task: asyncio.Task[Any]) -> None:
        """It was cancelled before its first step, so nothing of it has run."""
        _let_go(self._running)
        self._end()

    def _end(self) -> None:
        """Wake whoever waits."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _main(self, running: Awaitable[Any]) -> Any:
        # From here on it wakes who waits by itself: a callback would take a turn of the loop more.
        if (task := asyncio.current_task()) is not None:
            task.remove_done_callback(self._never_began)
        try:
            result = await self._driven(running)
        except GeneratorExit:  # the loop is gone, and so is whoever waited
            raise
        except BaseException:
            self._end()
            raise
        self._end()
        return result

    @types.coroutine
    def _driven(self, running: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """The harness, with a cancellation by an interrupt turned into Interrupted."""
        steps = running.__await__()
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    waits_for = next(steps) if thrown is None else steps.throw(thrown)
                except StopIteration as end:
                    return end.value
                thrown = None
                try:
                    yield waits_for
                except GeneratorExit:
                    raise
                except BaseException as error:  # what it waits for failed: the harness may catch it
                    cancelled = isinstance(error, asyncio.CancelledError)
                    interrupted = cancelled and self.stopped == "interrupted"
                    thrown = Interrupted(self._key, self.note) if interrupted else error
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()


def _let_go(running: Awaitable[Any] | None) -> None:
    """Of a harness that was stopped before its first step, nobody else does."""
    close = getattr(running, "close", None)
    if close is not None:
        close()


def _is_surely_plain(run: Any) -> bool:
    """Whether no call of it can give something to await: it is a generator, or only ever returns
    constants. What returns the result of a call is left alone, as the function of a decorator."""
    while isinstance(run, functools.partial):
        run = run.func
    if not inspect.isroutine(run):
        run = getattr(run, "__call__", None)  # noqa: B004  # that of an object, for its code
    code = getattr(run, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
        return False
    return bool(code.co_flags & inspect.CO_GENERATOR) or _returns_constants(code)


def _returns_constants(code: types.CodeType) -> bool:
    """Whether every return is of a constant, such as the None at the end of a function."""
    before = ""
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_VALUE" and (before != "LOAD_CONST" or step.is_jump_target):
            return False  # what it jumps there with may be anything
        before = step.opname
    return True
